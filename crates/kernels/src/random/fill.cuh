// Fills with the random values of PyTorch's kernels. PyTorch's thread `t` of `threads` draws
// `lanes` values at a time from its own Philox sequence, for the elements t, t + threads, t + 2
// threads, ... A thread here does the work of `per` of PyTorch's threads, which are neighbours if
// their elements can be stored together.

template <typename T, int per> struct alignas(per * sizeof(T)) Run { T v[per]; };
// Values that a thread makes in a round.
template <typename T, int lanes, int per> struct Round { Run<T, per> run[lanes]; };

template <typename T>
__device__ __forceinline__ void write(T *out, const Draw &, i64 at, T v) { out[at] = v; }
__device__ __forceinline__ void write(void *out, const Draw &p, i64 at, i64 v) {
    store_integer(out, p.dtype, at, v);
}

// Stores elements one by one, if they are not adjacent or a round is not complete. The elements are
// those of PyTorch's threads `t`, `t + step`, ...
template <typename T, int lanes, int per, typename P>
__device__ __noinline__ void
store_each(P *out, const Draw &p, u64 from, i64 t, u32 step, Round<T, lanes, per> round) {
#pragma unroll 1
    for (int i = 0; i < lanes && from < p.numel + per; i++, from += p.threads) {
#pragma unroll 1
        for (int s = 0; s < per; s++) {
            const u64 of = t + (u64)step * s;
            if (of < p.threads && from + of < p.numel) {
                write(out, p, offset_of(p.order, from + of), round.run[i].v[s]);
            }
        }
    }
}

__device__ __forceinline__ bool together(void *) { return false; }
template <typename T> __device__ __forceinline__ bool together(T *) { return true; }
// Stores a run with one instruction. An assignment may compile to several.
template <typename R, typename T>
__device__ __forceinline__ void store_run(T *out, i64 at, const R &run) {
    if constexpr (sizeof(R) == 16) __stwb((uint4 *)(out + at), *(const uint4 *)&run);
    else __stwb((uint2 *)(out + at), *(const uint2 *)&run);
}
template <typename R> __device__ __forceinline__ void store_run(void *, i64, const R &) {}

// Calls `f(words, values)` for each draw of four words, and writes the values.
template <typename T, int lanes, int per, typename P, typename F>
__device__ __forceinline__ void fill(P *out, const u64 *state, const Draw &p, F f) {
    const u64 group = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (group >= p.groups) return;
    const i64 t = p.aligned ? (i64)(group * per - p.skew) : (i64)group;
    const u32 step = p.aligned ? 1 : (u32)p.groups;
    const PhiloxState from = resolve(p.philox, state);
    // Rounds that begin at or before element `last` store whole runs.
    const bool whole = together(out) && p.aligned && t >= 0 && t + per <= (i64)p.threads;
    const i64 last = whole ? (i64)p.numel - (i64)((lanes - 1) * p.threads) - per - t : -1;
    for (u64 turn = blockIdx.y; turn < p.rounds; turn += gridDim.y) {
        const u64 counter = from.offset / 4 + turn;
        Round<T, lanes, per> round;
#pragma unroll
        for (int s = 0; s < per; s++) {
            T values[lanes];
            f(philox(from.seed, (u32)t + step * s, counter), values);
#pragma unroll
            for (int i = 0; i < lanes; i++) round.run[i].v[s] = values[i];
        }
        const u64 from = turn * lanes * p.threads;
        if ((i64)from <= last) {
#pragma unroll
            for (int i = 0; i < lanes; i++) {
                store_run(out, (i64)(from + i * p.threads) + t, round.run[i]);
            }
        } else {
            store_each(out, p, from, t, step, round);
        }
    }
}

template <typename T, int per>
__device__ __forceinline__ void uniform(T *out, const u64 *state, const Draw &p) {
    typedef Element<T> E;
    typedef compute_t<T> A;
    const int lanes = Lanes<A>::count;
    T from = E::store((A)p.a), to = E::store((A)p.b);
    A base = E::load(from), end = E::load(to), range = E::load(E::store(end - base));
    fill<T, lanes, per>(out, state, p, [=](Words x, T *values) {
        A u[lanes];
        Lanes<A>::uniform(x, u);
#pragma unroll
        for (int i = 0; i < lanes; i++) {
            T value = E::store(u[i] * range + base);
            // Draws lie in (0, 1], but values must lie in [from, to).
            values[i] = E::load(value) == end ? from : value;
        }
    });
}

template <typename T, int per>
__device__ __forceinline__ void normal(T *out, const u64 *state, const Draw &p) {
    typedef Element<T> E;
    typedef compute_t<T> A;
    const int lanes = Lanes<A>::count;
    A mean = (A)p.a, std = (A)p.b;
    fill<T, lanes, per>(out, state, p, [=](Words x, T *values) {
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

template <typename T, int per>
__device__ __forceinline__ void exponential(T *out, const u64 *state, const Draw &p) {
    typedef Element<T> E;
    typedef compute_t<T> A;
    const int lanes = Lanes<A>::count;
    // The factor -1 / lambda.
    A factor = (A)p.a;
    fill<T, lanes, per>(out, state, p, [=](Words x, T *values) {
        A u[lanes];
        Lanes<A>::uniform(x, u);
#pragma unroll
        for (int i = 0; i < lanes; i++) {
            // The distribution excludes 0.
            A ln = u[i] >= (A)1 - HalfEpsilon<A>::value ? -HalfEpsilon<A>::value : fast_log(u[i]);
            values[i] = E::store(factor * ln);
        }
    });
}

template <typename A, int per>
__device__ __forceinline__ void bernoulli(void *out, const u64 *state, const Draw &p) {
    const int lanes = Lanes<A>::count;
    A probability = (A)p.a;
    fill<i64, lanes, per>(out, state, p, [=](Words x, i64 *values) {
        A u[lanes];
        Lanes<A>::uniform(x, u);
#pragma unroll
        for (int i = 0; i < lanes; i++) values[i] = u[i] < probability;
    });
}

__device__ __forceinline__ void randint32(void *out, const u64 *state, const Draw &p) {
    u32 range = (u32)p.range;
    i64 base = p.base;
    fill<i64, 4, 1>(out, state, p, [=](Words x, i64 *values) {
#pragma unroll
        for (int i = 0; i < 4; i++) values[i] = (i64)(x.w[i] % range) + base;
    });
}

__device__ __forceinline__ void randint64(void *out, const u64 *state, const Draw &p) {
    u64 range = p.range;
    i64 base = p.base;
    fill<i64, 2, 1>(out, state, p, [=](Words x, i64 *values) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u64 bits = wide(x.w[2 * i], x.w[2 * i + 1]);
            // A range of 2^64 is stored as 0.
            values[i] = (i64)((range ? bits % range : bits) + (u64)base);
        }
    });
}

template <typename W, int per> __device__ __forceinline__ void randint(void *out, const u64 *state, const Draw &p) {
    if constexpr (sizeof(W) == 4) randint32(out, state, p);
    else randint64(out, state, p);
}

#define RANDOM(NAME, T, BODY)                                             \
    extern "C" __global__ __launch_bounds__(256, 4) void NAME(            \
        T *out, const u64 *state, const __grid_constant__ Draw p) { BODY(out, state, p); }
