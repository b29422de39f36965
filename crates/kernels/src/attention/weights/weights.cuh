// Weights of attention, softmax(scale * scores), and the gradient of the scores. Rows are
// contiguous. If `causal` is set, a query attends to the keys up to its own position. Other scores
// do not contribute, and their results are 0.

template <class T> __device__ __forceinline__ compute_t<T> factor(const Attention& p) {
    return (compute_t<T>)__longlong_as_double(p.scale);
}

__device__ __forceinline__ u32 seen(const Attention& p, u64 query) {
    return p.causal && query < p.keys ? (u32)query + 1 : (u32)p.keys;
}

// Loads the elements of a row from `i` on, times `by`. Elements from `end` on become `none`.
template <class T, int V>
__device__ __forceinline__ void
elements(compute_t<T> (&v)[V], const T* row, u32 i, u32 end, compute_t<T> by, compute_t<T> none) {
#pragma unroll
    for (int j = 0; j < V; j++) v[j] = none;
    if (i >= end) return;
    const Vec<T, V> raw = *(const Vec<T, V>*)(row + i);
#pragma unroll
    for (int j = 0; j < V; j++) {
        if (i + j < end) v[j] = load(raw.v[j]) * by;
    }
}

// Writes a vector with one instruction. An assignment of the struct may compile to one store per
// element.
template <class T, int V>
__device__ __forceinline__ void put(T* row, u32 i, u32 size, const compute_t<T> (&v)[V]) {
    if (i >= size) return;
    union {
        Vec<T, V> of;
        u32 words[4];
    } raw;
#pragma unroll
    for (int j = 0; j < V; j++) store(raw.of.v[j], v[j]);
    if constexpr (V == 1) {
        row[i] = raw.of.v[0];
    } else if constexpr (sizeof(raw.of) == 8) {
        asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(row + i), "r"(raw.words[0]), "r"(raw.words[1]) : "memory");
    } else {
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
            ::"l"(row + i), "r"(raw.words[0]), "r"(raw.words[1]), "r"(raw.words[2]), "r"(raw.words[3]) : "memory");
    }
}

// The query of a team of lanes, with its number of keys and of visible keys. A team beyond the last
// query takes part in the folds of its warp, but has no keys.
struct Team {
    u32 lanes, t, size, end;
    u64 query;
    __device__ __forceinline__ Team(const Attention& p) {
        lanes = 1u << (u32)p.team;
        t = threadIdx.x % lanes;
        query = (u64)blockIdx.x * (blockDim.x / lanes) + threadIdx.x / lanes;
        const bool has = query < p.queries;
        size = has ? (u32)p.keys : 0;
        end = has ? seen(p, query) : 0;
    }
    // Returns the start of the query's row in a batch.
    __device__ __forceinline__ u64 row(const Attention& p, u64 batch) const {
        return size ? (batch * p.queries + query) * p.keys : 0;
    }
};

// Computes rows that a team keeps in registers: `K` vectors per lane.
template <class T, int V>
__device__ __forceinline__ void weights_short(const compute_t<T>* scores, T* weights, const Attention& p) {
    typedef compute_t<T> C;
    constexpr int K = HELD_BYTES / sizeof(C) / V;
    const Team team(p);
    const C scale = factor<T>(p);
    for (u64 batch = blockIdx.y; batch < p.batch; batch += gridDim.y) {
        const u64 row = team.row(p, batch);
        C v[K][V], most = lowest<C>(), sum = 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            elements(v[k], scores + row, (k * team.lanes + team.t) * V, team.end, scale, lowest<C>());
#pragma unroll
            for (int j = 0; j < V; j++) most = Larger::of(most, v[k][j]);
        }
        most = fold_lanes<Larger>(most, team.lanes);
        const C base = most == lowest<C>() ? (C)0 : most;
#pragma unroll
        for (int k = 0; k < K; k++) {
            // A vector without a visible key needs no exponentials: its weights are 0.
            const bool any = (k * team.lanes + team.t) * V < team.end;
            Vec<C, V> e;
#pragma unroll
            for (int j = 0; j < V; j++) e.v[j] = v[k][j] - base, v[k][j] = 0;
            if (!any) continue;
            e = exponentials<T>(e);
#pragma unroll
            for (int j = 0; j < V; j++) sum += v[k][j] = e.v[j];
        }
        const C by = inverse(fold_lanes<Plus>(sum, team.lanes));
#pragma unroll
        for (int k = 0; k < K; k++) {
#pragma unroll
            for (int j = 0; j < V; j++) v[k][j] *= by;
            put(weights + row, (k * team.lanes + team.t) * V, team.size, v[k]);
        }
    }
}

// Computes longer rows, one block per row. Each row is read twice.
template <class T, int V>
__device__ __forceinline__ void weights_long(const compute_t<T>* scores, T* weights, const Attention& p) {
    typedef compute_t<T> C;
    __shared__ C largest[32], sums[32];
    const u64 query = blockIdx.x;
    const u32 size = (u32)p.keys, end = seen(p, query), step = blockDim.x * V;
    const C scale = factor<T>(p);
    for (u64 batch = blockIdx.y; batch < p.batch; batch += gridDim.y) {
        const u64 row = (batch * p.queries + query) * p.keys;
        // Exponentials of a thread are relative to the maximum of its own elements so far.
        C most = lowest<C>(), sum = 0;
        for (u32 i = threadIdx.x * V; i < end; i += step) {
            C v[V], next = most;
            elements(v, scores + row, i, end, scale, lowest<C>());
#pragma unroll
            for (int j = 0; j < V; j++) next = Larger::of(next, v[j]);
            const C base = next == lowest<C>() ? (C)0 : next;
            Vec<C, V> e;
#pragma unroll
            for (int j = 0; j < V; j++) e.v[j] = v[j] - base;
            e = exponentials<T>(e);
            sum *= exponential<T>(most - base);
#pragma unroll
            for (int j = 0; j < V; j++) sum += e.v[j];
            most = next;
        }
        const C all = fold_block<Larger>(most, largest, lowest<C>());
        const C base = all == lowest<C>() ? (C)0 : all;
        sum *= exponential<T>(most - base);
        const C by = inverse(fold_block<Plus>(sum, sums, (C)0));
        for (u32 i = threadIdx.x * V; i < size; i += step) {
            C v[V];
            elements(v, scores + row, i, end, scale, lowest<C>());
            Vec<C, V> e;
#pragma unroll
            for (int j = 0; j < V; j++) e.v[j] = v[j] - base, v[j] = 0;
            if (i < end) {
                e = exponentials<T>(e);
#pragma unroll
                for (int j = 0; j < V; j++) v[j] = e.v[j] * by;
            }
            put(weights + row, i, size, v);
        }
        __syncthreads();
    }
}

template <class T, int V>
__device__ __forceinline__ void
backward_short(const compute_t<T>* grad, const T* weights, T* result, const Attention& p) {
    typedef compute_t<T> C;
    constexpr int K = HELD_BYTES / sizeof(C) / V;
    const Team team(p);
    const C scale = factor<T>(p);
    for (u64 batch = blockIdx.y; batch < p.batch; batch += gridDim.y) {
        const u64 row = team.row(p, batch);
        C g[K][V], w[K][V], sum = 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            const u32 i = (k * team.lanes + team.t) * V;
            elements(g[k], grad + row, i, team.end, (C)1, (C)0);
            elements(w[k], weights + row, i, team.end, (C)1, (C)0);
#pragma unroll
            for (int j = 0; j < V; j++) sum += g[k][j] * w[k][j];
        }
        sum = fold_lanes<Plus>(sum, team.lanes);
#pragma unroll
        for (int k = 0; k < K; k++) {
#pragma unroll
            for (int j = 0; j < V; j++) g[k][j] = scale * w[k][j] * (g[k][j] - sum);
            put(result + row, (k * team.lanes + team.t) * V, team.size, g[k]);
        }
    }
}

template <class T, int V>
__device__ __forceinline__ void
backward_long(const compute_t<T>* grad, const T* weights, T* result, const Attention& p) {
    typedef compute_t<T> C;
    __shared__ C sums[32];
    const u64 query = blockIdx.x;
    const u32 size = (u32)p.keys, end = seen(p, query), step = blockDim.x * V;
    const C scale = factor<T>(p);
    for (u64 batch = blockIdx.y; batch < p.batch; batch += gridDim.y) {
        const u64 row = (batch * p.queries + query) * p.keys;
        C sum = 0;
        for (u32 i = threadIdx.x * V; i < end; i += step) {
            C g[V], w[V];
            elements(g, grad + row, i, end, (C)1, (C)0);
            elements(w, weights + row, i, end, (C)1, (C)0);
#pragma unroll
            for (int j = 0; j < V; j++) sum += g[j] * w[j];
        }
        sum = fold_block<Plus>(sum, sums, (C)0);
        for (u32 i = threadIdx.x * V; i < size; i += step) {
            C g[V], w[V];
            elements(g, grad + row, i, end, (C)1, (C)0);
            elements(w, weights + row, i, end, (C)1, (C)0);
#pragma unroll
            for (int j = 0; j < V; j++) g[j] = scale * w[j] * (g[j] - sum);
            put(result + row, i, size, g);
        }
        __syncthreads();
    }
}

#define WEIGHTS(T, name, threads, ...)                                                            \
    extern "C" __global__ __launch_bounds__(threads) void attention_weights_##T##_##name(         \
        const compute_t<T>* scores, T* weights, const __grid_constant__ Attention p) {            \
        __VA_ARGS__(scores, weights, p);                                                          \
    }
#define ATTENTION_WEIGHTS(T)                                                                      \
    WEIGHTS(T, short, 128, weights_short<T, vector_width(sizeof(compute_t<T>))>)                  \
    WEIGHTS(T, long, 256, weights_long<T, vector_width(sizeof(compute_t<T>))>)                    \
    WEIGHTS(T, short_odd, 128, weights_short<T, 1>)                                               \
    WEIGHTS(T, long_odd, 256, weights_long<T, 1>)
#define BACKWARD(T, name, threads, ...)                                                           \
    extern "C" __global__ __launch_bounds__(threads) void attention_weights_backward_##T##_##name( \
        const compute_t<T>* grad, const T* weights, T* result,                                    \
        const __grid_constant__ Attention p) {                                                    \
        __VA_ARGS__(grad, weights, result, p);                                                    \
    }
#define ATTENTION_WEIGHTS_BACKWARD(T)                                                             \
    BACKWARD(T, short, 128, backward_short<T, vector_width(sizeof(compute_t<T>))>)                \
    BACKWARD(T, long, 256, backward_long<T, vector_width(sizeof(compute_t<T>))>)                  \
    BACKWARD(T, short_odd, 128, backward_short<T, 1>)                                             \
    BACKWARD(T, long_odd, 256, backward_long<T, 1>)
