// Fills with random values, each thread with a Philox sequence of its own.

template <typename T>
__device__ __forceinline__ void write(T *out, const Draw &, i64 at, T v) { out[at] = v; }
__device__ __forceinline__ void write(void *out, const Draw &p, i64 at, i64 v) {
    store_integer(out, p.dtype, at, v);
}

// Calls `f(words, lane values)` for each four words, and writes what it leaves.
template <typename T, int lanes, typename P, typename F>
__device__ __forceinline__ void fill(P *out, const u64 *state, const Draw &p, F f) {
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    Place place = resolve(p.place, state);
    u64 counter = place.offset / 4;
    for (u64 first = thread; first < p.numel; first += p.threads * lanes) {
        T values[lanes];
        f(philox(place.seed, thread, counter++), values);
#pragma unroll
        for (int i = 0; i < lanes; i++) {
            u64 index = first + p.threads * i;
            if (index < p.numel) write(out, p, offset_of(p.order, index), values[i]);
        }
    }
}

template <typename T>
__device__ __forceinline__ void uniform(T *out, const u64 *state, const Draw &p) {
    typedef Element<T> E;
    typedef compute_t<T> A;
    const int lanes = Lanes<A>::count;
    T from = E::store((A)p.a), to = E::store((A)p.b);
    A base = E::load(from), end = E::load(to), range = E::load(E::store(end - base));
    fill<T, lanes>(out, state, p, [=](Words x, T *values) {
        A u[lanes];
        Lanes<A>::uniform(x, u);
#pragma unroll
        for (int i = 0; i < lanes; i++) {
            T value = E::store(u[i] * range + base);
            // Draws are in (0, 1]; the result is to be in [from, to).
            values[i] = E::load(value) == end ? from : value;
        }
    });
}

template <typename T>
__device__ __forceinline__ void normal(T *out, const u64 *state, const Draw &p) {
    typedef Element<T> E;
    typedef compute_t<T> A;
    const int lanes = Lanes<A>::count;
    A mean = (A)p.a, std = (A)p.b;
    fill<T, lanes>(out, state, p, [=](Words x, T *values) {
        A z[lanes];
        Lanes<A>::normal(x, z);
#pragma unroll
        for (int i = 0; i < lanes; i++) values[i] = E::store(z[i] * std + mean);
    });
}

__device__ __forceinline__ float fast_log(float x) { return __logf(x); }
__device__ __forceinline__ double fast_log(double x) { return log(x); }

template <typename A>
struct HalfEpsilon;
template <>
struct HalfEpsilon<float> {
    static constexpr float value = 0x1p-24f;
};
template <>
struct HalfEpsilon<double> {
    static constexpr double value = 0x1p-53;
};

template <typename T>
__device__ __forceinline__ void exponential(T *out, const u64 *state, const Draw &p) {
    typedef Element<T> E;
    typedef compute_t<T> A;
    const int lanes = Lanes<A>::count;
    A factor = (A)-1.0 / (A)p.a;
    fill<T, lanes>(out, state, p, [=](Words x, T *values) {
        A u[lanes];
        Lanes<A>::uniform(x, u);
#pragma unroll
        for (int i = 0; i < lanes; i++) {
            // Never zero, which the distribution excludes.
            A ln = u[i] >= (A)1 - HalfEpsilon<A>::value ? -HalfEpsilon<A>::value : fast_log(u[i]);
            values[i] = E::store(factor * ln);
        }
    });
}

template <typename A>
__device__ __forceinline__ void bernoulli(void *out, const u64 *state, const Draw &p) {
    const int lanes = Lanes<A>::count;
    A probability = (A)p.a;
    fill<i64, lanes>(out, state, p, [=](Words x, i64 *values) {
        A u[lanes];
        Lanes<A>::uniform(x, u);
#pragma unroll
        for (int i = 0; i < lanes; i++) values[i] = u[i] < probability;
    });
}

__device__ __forceinline__ void randint32(void *out, const u64 *state, const Draw &p) {
    u32 range = (u32)p.range;
    i64 base = p.base;
    fill<i64, 4>(out, state, p, [=](Words x, i64 *values) {
#pragma unroll
        for (int i = 0; i < 4; i++) values[i] = (i64)(x.w[i] % range) + base;
    });
}

__device__ __forceinline__ void randint64(void *out, const u64 *state, const Draw &p) {
    u64 range = p.range;
    i64 base = p.base;
    fill<i64, 2>(out, state, p, [=](Words x, i64 *values) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u64 bits = wide(x.w[2 * i], x.w[2 * i + 1]);
            // A range of 2^64 is written as 0.
            values[i] = (i64)((range ? bits % range : bits) + (u64)base);
        }
    });
}

template <typename W> __device__ __forceinline__ void randint(void *out, const u64 *state, const Draw &p) {
    if constexpr (sizeof(W) == 4) randint32(out, state, p);
    else randint64(out, state, p);
}

#define RANDOM(NAME, T, BODY)                                             \
    extern "C" __global__ __launch_bounds__(256, 4) void NAME(            \
        T *out, const u64 *state, const __grid_constant__ Draw p) { BODY(out, state, p); }
