// Softmax over one dimension, its maximum subtracted. A NaN need not be kept by the maximum: it comes
// back in the sum.

// What is stored with fewer bits is computed with fewer.
template <class T> __device__ __forceinline__ f32 exponential(f32 v) {
    if constexpr (sizeof(T) == 2) return __expf(v);
    else return expf(v);
}
template <class T> __device__ __noinline__ f64 exponential(f64 v) { return exp(v); }
// Called, here and there: each is short to run and long to compile.
__device__ __noinline__ f32 logarithm(f32 v) { return logf(v); }
__device__ __noinline__ f64 logarithm(f64 v) { return log(v); }
template <class C> __device__ __noinline__ C inverse(C v) { return (C)1 / v; }

struct Larger {
    static __device__ __forceinline__ f32 of(f32 a, f32 b) { return fmaxf(a, b); }
    static __device__ __forceinline__ f64 of(f64 a, f64 b) { return fmax(a, b); }
};
struct Plus {
    template <class C> static __device__ __forceinline__ C of(C a, C b) { return a + b; }
};

// Negative infinity, as bits: a quotient would be computed.
template <class C> __device__ __forceinline__ C lowest() {
    if constexpr (same<C, f32>::value) return __int_as_float(0xff800000);
    else return __longlong_as_double(0xfff0000000000000);
}

// Folds the values of a power of two of lanes; every one gets the result.
template <class F, class C> __device__ __forceinline__ C fold_lanes(C v, u32 lanes) {
#pragma unroll 1
    for (u32 half = lanes / 2; half > 0; half /= 2) v = F::of(v, __shfl_xor_sync(~0u, v, half));
    return v;
}

template <class F, class C> __device__ __forceinline__ C fold_warp(C v) {
#pragma unroll
    for (int half = 16; half > 0; half /= 2) v = F::of(v, __shfl_xor_sync(~0u, v, half));
    return v;
}

// Folds the values of a block; every thread gets the result. `shared` is for this fold alone.
template <class F, class C> __device__ __forceinline__ C fold_block(C v, C* shared, C none) {
    v = fold_warp<F>(v);
    const u32 lane = threadIdx.x % 32;
    if (lane == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    return fold_warp<F>(lane < blockDim.x / 32 ? shared[lane] : none);
}

// Sum and maximum of a part, as what is added with another maximum.
template <class T, class C> __device__ __forceinline__ C rescaled(C sum, C from, C to) {
    return from == to ? sum : sum * exponential<T>(from - to);
}

// What values become: themselves less `shift`, exponentiated and scaled unless their logarithm is wanted.
template <class T, class C> struct Result {
    C largest, scale;
    bool log;
    __device__ __forceinline__ Result(C largest, C sum, bool log)
        : largest(largest), scale(log ? logarithm(sum) : inverse(sum)), log(log) {}
    __device__ __forceinline__ C of(C x) const {
        return log ? x - largest - scale : exponential<T>(x - largest) * scale;
    }
};

// Elements of a vector that are from `skip` on and before `end`. Called: only the ends of a row are so.
template <class T, int V>
__device__ __noinline__ Vec<T, V> load_some(const T* from, u32 i, u32 skip, u32 end, T none) {
    Vec<T, V> raw;
#pragma unroll
    for (int j = 0; j < V; j++) raw.v[j] = i + j >= skip && i + j < end ? from[i + j] : none;
    return raw;
}

template <class T, int V>
__device__ __noinline__ void store_some(T* to, u32 i, u32 skip, u32 end, Vec<T, V> raw) {
#pragma unroll
    for (int j = 0; j < V; j++) {
        if (i + j >= skip && i + j < end) to[i + j] = raw.v[j];
    }
}

// A dense row, whose vectors may begin before it and end after it, in both tensors alike.
template <class T, int V> struct Row {
    typedef Vec<T, V> Vector;
    const T* from;
    T* to;
    u32 skip, end;

    __device__ __forceinline__ Row(const T* source, T* result, u32 size) {
        skip = (u32)((u64)source / sizeof(T) % V);
        from = source - skip;
        to = result - skip;
        end = skip + size;
    }
    __device__ __forceinline__ bool is_whole(u32 i) const { return i >= skip && i + V <= end; }

    // The vector at `i`, negative infinities in place of what is outside.
    __device__ __forceinline__ Vector some(u32 i) const {
        T none;
        store(none, lowest<compute_t<T>>());
        return load_some<T, V>(from, i, skip, end, none);
    }
};

template <class T, int V>
__device__ __forceinline__ void loaded(const Vec<T, V>& raw, compute_t<T> (&v)[V]) {
#pragma unroll
    for (int j = 0; j < V; j++) v[j] = load(raw.v[j]);
}

// The vectors `team` apart from `i` on, of which only the first and one other may be cut.
template <class T, int V, int K>
__device__ __forceinline__ void
load_row(const Row<T, V>& row, u32 i, u32 team, compute_t<T> (&v)[K][V]) {
    Vec<T, V> first = {}, last = {};
    if (i < row.skip) first = row.some(i);
    // A long row has it in its last round.
    if (row.end % V && i + K * team * V > row.end / V * V) last = row.some(row.end / V * V);
#pragma unroll
    for (int k = 0; k < K; k++) {
        const u32 at = i + k * team * V;
        Vec<T, V> raw;
#pragma unroll
        for (int j = 0; j < V; j++) store(raw.v[j], lowest<compute_t<T>>());
        if (row.is_whole(at)) raw = *(const Vec<T, V>*)(row.from + at);
        else if (k == 0 && at < row.skip) raw = first;
        else if (at < row.end) raw = last;
        loaded(raw, v[k]);
    }
}

template <class T, int V, int K>
__device__ __forceinline__ void
store_row(const Row<T, V>& row, u32 i, u32 team, const compute_t<T> (&v)[K][V]) {
    Vec<T, V> first = {}, last = {};
    bool has_last = false;
#pragma unroll
    for (int k = 0; k < K; k++) {
        const u32 at = i + k * team * V;
        Vec<T, V> raw;
#pragma unroll
        for (int j = 0; j < V; j++) store(raw.v[j], v[k][j]);
        if (row.is_whole(at)) {
            *(Vec<T, V>*)(row.to + at) = raw;
        } else if (k == 0 && at < row.skip) {
            first = raw;
        } else if (at < row.end) {
            last = raw;
            has_last = true;
        }
    }
    if (i < row.skip) store_some<T, V>(row.to, i, row.skip, row.end, first);
    if (has_last) store_some<T, V>(row.to, row.end / V * V, row.skip, row.end, last);
}

// A row that its threads hold: `K` vectors each. `t` is the thread's number among the `team`.
template <class T, int V, int K, class Fold, class Total>
__device__ __forceinline__ void
held(const Row<T, V>& row, u32 t, u32 team, bool log, Fold largest_of, Total total_of) {
    typedef compute_t<T> C;
    C v[K][V], largest = lowest<C>(), sum = 0;
    load_row<T, V, K>(row, t * V, team, v);
#pragma unroll
    for (int k = 0; k < K; k++) {
#pragma unroll
        for (int j = 0; j < V; j++) largest = Larger::of(largest, v[k][j]);
    }
    largest = largest_of(largest);
#pragma unroll
    for (int k = 0; k < K; k++) {
        // None of the team has these.
        if (k * team * V >= row.end) continue;
#pragma unroll
        for (int j = 0; j < V; j++) {
            v[k][j] -= largest;
            const C e = exponential<T>(v[k][j]);
            sum += e;
            if (!log) v[k][j] = e;
        }
    }
    sum = total_of(sum);
    const C scale = log ? (C)1 : inverse(sum), shift = log ? logarithm(sum) : (C)0;
#pragma unroll
    for (int k = 0; k < K; k++) {
#pragma unroll
        for (int j = 0; j < V; j++) v[k][j] = v[k][j] * scale - shift;
    }
    store_row<T, V, K>(row, t * V, team, v);
}

// Rows of up to 32 * K * V elements with what lies beside them in their vectors, a team of `p.tiles` lanes
// for each.
template <class T, int K> __device__ __forceinline__ void short_rows(const T* source, T* result, const Rows& p) {
    constexpr int V = vector_width(sizeof(T));
    typedef compute_t<T> C;
    const u32 team = (u32)p.tiles, teams = blockDim.x / team;
    for (u64 first = (u64)blockIdx.x * teams; first < p.rows; first += (u64)gridDim.x * teams) {
        // A team beyond the last row folds with the others of its warp, but has nothing.
        const u64 own = first + threadIdx.x / team, row = own < p.rows ? own : p.rows - 1;
        Row<T, V> of(source + walk(p.walk, 0, row), result + walk(p.walk, 1, row), (u32)p.size);
        if (own >= p.rows) of.end = of.skip;
        held<T, V, K>(
            of, threadIdx.x % team, team, p.log, [=](C v) { return fold_lanes<Larger>(v, team); },
            [=](C v) { return fold_lanes<Plus>(v, team); });
    }
}

// The same of up to blockDim.x * K * V, a block for each.
template <class T, int K> __device__ __forceinline__ void rows(const T* source, T* result, const Rows& p) {
    constexpr int V = vector_width(sizeof(T));
    typedef compute_t<T> C;
    __shared__ C largest[32], sums[32];
    const u64 row = blockIdx.x;
    const Row<T, V> of(source + walk(p.walk, 0, row), result + walk(p.walk, 1, row), (u32)p.size);
    held<T, V, K>(
        of, threadIdx.x, blockDim.x, p.log, [](C v) { return fold_block<Larger>(v, largest, lowest<C>()); },
        [](C v) { return fold_block<Plus>(v, sums, (C)0); });
}

// Longer rows: read for the sum, and once more, from the end, which the cache may still have.
template <class T, int U> __device__ __forceinline__ void long_rows(const T* source, T* result, const Rows& p) {
    constexpr int V = vector_width(sizeof(T));
    typedef compute_t<T> C;
    __shared__ C shared[64];
    const u64 number = blockIdx.x;
    const Row<T, V> row(source + walk(p.walk, 0, number), result + walk(p.walk, 1, number), (u32)p.size);
    const u32 team = blockDim.x, step = team * V * U, steps = (row.end + step - 1) / step;
    C v[U][V], largest = lowest<C>(), sum = 0;
    for (u32 n = 0; n < steps; n++) {
        load_row<T, V, U>(row, n * step + threadIdx.x * V, team, v);
        C now = largest;
#pragma unroll
        for (int u = 0; u < U; u++) {
#pragma unroll
            for (int j = 0; j < V; j++) now = Larger::of(now, v[u][j]);
        }
        // Nothing yet but negative infinities.
        const C base = now == lowest<C>() ? (C)0 : now;
        sum = rescaled<T>(sum, largest, now);
        largest = now;
#pragma unroll
        for (int u = 0; u < U; u++) {
#pragma unroll
            for (int j = 0; j < V; j++) sum += exponential<T>(v[u][j] - base);
        }
    }
    const C all = fold_block<Larger>(largest, shared, lowest<C>());
    sum = fold_block<Plus>(rescaled<T>(sum, largest, all), shared + 32, (C)0);
    const Result<T, C> to(all, sum, p.log);
    for (u32 n = steps; n-- > 0;) {
        load_row<T, V, U>(row, n * step + threadIdx.x * V, team, v);
#pragma unroll
        for (int u = 0; u < U; u++) {
#pragma unroll
            for (int j = 0; j < V; j++) v[u][j] = to.of(v[u][j]);
        }
        store_row<T, V, U>(row, n * step + threadIdx.x * V, team, v);
    }
}
