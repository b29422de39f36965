// Normalization of rows, and its gradients. Subtracts the mean if `is_centred` is set, and divides
// by the root of the mean square plus `eps`.

// The team of threads that share a row: `1 << p.team` lanes of a warp, or a block.
template <bool BLOCK> struct Team {
    u32 size, t;
    u64 row;
    bool has;
    __device__ __forceinline__ Team(const Norm& p)
        : size(BLOCK ? blockDim.x : 1u << (u32)p.team), t(threadIdx.x % size) {
        // A team beyond the last row takes part in the folds of its warp, but has no elements.
        const u64 own = (u64)blockIdx.x * (blockDim.x / size) + threadIdx.x / size;
        has = own < p.rows;
        row = has ? own : 0;
    }
    // `shared` needs a barrier before its next use.
    template <class C> __device__ __forceinline__ C sum(C v, C* shared) const {
        if constexpr (BLOCK) return fold_block<Plus>(v, shared, (C)0);
        else return fold_lanes<Plus>(v, size);
    }
};

__device__ __forceinline__ f32 root(f32 v) { return sqrtf(v); }
__device__ __forceinline__ f64 root(f64 v) { return sqrt(v); }

// Normalizes the rows of `in`, or with `ADDS` the rows of `in + residual`, which are written to
// `sum`.
template <class T, bool BLOCK, bool ADDS>
__device__ __forceinline__ void layer_norm(
    const T* in, const T* residual, const T* weight, const T* bias, T* out, T* sum, compute_t<T>* means,
    compute_t<T>* scales, const Norm& p) {
    typedef compute_t<T> C;
    __shared__ C shared[64];
    const Team<BLOCK> team(p);
    const u64 size = team.has ? p.size : 0;
    const T* x = in + team.row * p.size;
    if constexpr (ADDS) {
        const T* y = residual + team.row * p.size;
        T* own = sum + team.row * p.size;
#pragma unroll 4
        for (u64 i = team.t; i < size; i += team.size) store(own[i], load(x[i]) + load(y[i]));
        // Each thread reads back only the elements that it has written. They are rounded, as the
        // result of a separate addition is.
        x = own;
    }
    C mean = 0, squares = 0;
    if (p.is_centred) {
#pragma unroll 4
        for (u64 i = team.t; i < size; i += team.size) mean += load(x[i]);
        mean = team.sum(mean, shared) / (C)p.size;
    }
#pragma unroll 4
    for (u64 i = team.t; i < size; i += team.size) {
        const C d = load(x[i]) - mean;
        squares += d * d;
    }
    squares = team.sum(squares, shared + 32) / (C)p.size;
    const C scale = (C)1 / root(squares + (C)__longlong_as_double((i64)p.eps));
    if (team.has && team.t == 0) {
        means[team.row] = mean;
        scales[team.row] = scale;
    }
#pragma unroll 4
    for (u64 i = team.t; i < size; i += team.size) {
        C y = (load(x[i]) - mean) * scale;
        if (p.is_weighted) y *= load(weight[i]);
        if (p.is_biased) y += load(bias[i]);
        store(out[team.row * p.size + i], y);
    }
}

// Computes the gradient of the rows. With `ADDS`, adds `other`, another gradient of the rows.
template <class T, bool BLOCK, bool ADDS>
__device__ __forceinline__ void layer_norm_backward(
    const T* grad, const T* in, const T* weight, const compute_t<T>* means, const compute_t<T>* scales,
    const T* other, T* out, const Norm& p) {
    typedef compute_t<T> C;
    __shared__ C shared[64];
    const Team<BLOCK> team(p);
    const u64 size = team.has ? p.size : 0;
    const T* g = grad + team.row * p.size;
    const T* x = in + team.row * p.size;
    const C mean = means[team.row], scale = scales[team.row];
    C plain = 0, along = 0;
#pragma unroll 4
    for (u64 i = team.t; i < size; i += team.size) {
        const C own = p.is_weighted ? load(g[i]) * load(weight[i]) : load(g[i]);
        plain += own;
        along += own * ((load(x[i]) - mean) * scale);
    }
    plain = team.sum(plain, shared) / (C)p.size;
    along = team.sum(along, shared + 32) / (C)p.size;
    if (!p.is_centred) plain = 0;
#pragma unroll 4
    for (u64 i = team.t; i < size; i += team.size) {
        const C own = p.is_weighted ? load(g[i]) * load(weight[i]) : load(g[i]);
        const C y = (load(x[i]) - mean) * scale;
        C result = (own - plain - y * along) * scale;
        if constexpr (ADDS) result += load(other[team.row * p.size + i]);
        store(out[team.row * p.size + i], result);
    }
}

// Computes the gradients of weight and bias. `1 << p.team` threads own neighbouring columns, `V`
// each. The other threads of a block, and the blocks with the same x, take other rows of the same
// columns. These blocks share results.
template <class T, int V>
__device__ __forceinline__ void layer_norm_parameters(
    const T* grad, const T* in, const compute_t<T>* means, const compute_t<T>* scales, T* of_weight, T* of_bias,
    u64* scratch, const Norm& p) {
    typedef compute_t<T> C;
    struct alignas(V * sizeof(T)) Vector { T v[V]; };
    constexpr u32 WARPS = COLUMN_THREADS / 32, EACH = sizeof(T) < 8 ? AT_A_TIME : AT_A_TIME / 2;
    const u32 team = 1u << (u32)p.team, height = COLUMN_THREADS >> (u32)p.team, columns = team * V;
    const u32 splits = gridDim.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u64 first = (u64)blockIdx.x * columns, column = first + (lane & (team - 1)) * V;
    Turn turn;
    if (splits > 1) turn.begin(scratch);
    C along[V] = {}, plain[V] = {};
    if (column < p.size) {
        const u64 step = (u64)splits * height;
#pragma unroll 1
        for (u64 row = (u64)blockIdx.y * height + (threadIdx.x >> (u32)p.team); row < p.rows; row += EACH * step) {
            // All loads are issued before the first value is used. Beyond the last row, the thread
            // loads its first row again.
            Vector g[EACH], x[EACH];
            C mean[EACH], scale[EACH];
#pragma unroll
            for (u32 k = 0; k < EACH; k++) {
                const u64 own = row + (row + k * step < p.rows ? k * step : 0);
                g[k] = *(const Vector*)(grad + own * p.size + column);
                x[k] = *(const Vector*)(in + own * p.size + column);
                mean[k] = means[own];
                scale[k] = scales[own];
            }
#pragma unroll
            for (u32 k = 0; k < EACH; k++) {
                if (row + k * step >= p.rows) break;
#pragma unroll
                for (u32 j = 0; j < V; j++) {
                    const C v = load(g[k].v[j]);
                    along[j] += v * ((load(x[k].v[j]) - mean[k]) * scale[k]);
                    plain[j] += v;
                }
            }
        }
    }
    if (splits > 1) turn.number(p.ticket);
    // Sums of each warp: those of the weight's columns, then those of the bias's.
    __shared__ C sums[WARPS][2 * MOST_COLUMNS];
#pragma unroll 1
    for (u32 half = 16; half >= team; half /= 2) {
#pragma unroll
        for (u32 j = 0; j < V; j++) {
            along[j] += __shfl_xor_sync(~0u, along[j], half);
            plain[j] += __shfl_xor_sync(~0u, plain[j], half);
        }
    }
    if (lane < team) {
#pragma unroll
        for (u32 j = 0; j < V; j++) {
            sums[warp][lane * V + j] = along[j];
            sums[warp][columns + lane * V + j] = plain[j];
        }
    }
    // Each thread owns at most one result.
    const bool is_bias = threadIdx.x >= columns;
    const u64 result = first + threadIdx.x - (is_bias ? columns : 0);
    const bool has = threadIdx.x < 2 * columns && result < p.size;
    C* parts = (C*)(scratch + gridDim.x);
    C whole = 0;
#pragma unroll 1
    for (bool is_whole = splits == 1;; is_whole = true) {
        __syncthreads();
        if (has) {
            whole = 0;
#pragma unroll
            for (u32 w = 0; w < WARPS; w++) whole += sums[w][threadIdx.x];
        }
        if (is_whole) break;
        if (has) parts[((u64)blockIdx.y * 2 + is_bias) * p.size + result] = whole;
        if (!turn.is_last(p.ticket, splits)) return;
        // The last block replaces the sums of warps by sums over blocks.
#pragma unroll 1
        for (u32 r = lane; r < 2 * columns; r += 32) {
            const u64 of = first + r % columns;
            C sum = 0;
            if (of < p.size) {
#pragma unroll 4
                for (u32 s = warp; s < splits; s += WARPS) sum += __ldcg(&parts[((u64)s * 2 + r / columns) * p.size + of]);
            }
            sums[warp][r] = sum;
        }
    }
    if (!has) return;
    if (!is_bias) store(of_weight[result], whole);
    else if (p.is_biased) store(of_bias[result], whole);
}

#define FORWARD(T, name, threads, BLOCK)                                                          \
    extern "C" __global__ __launch_bounds__(threads) void layer_norm_##T##_##name(                \
        const T* in, const T* weight, const T* bias, T* out, compute_t<T>* means,                 \
        compute_t<T>* scales, const __grid_constant__ Norm p) {                                   \
        layer_norm<T, BLOCK, false>(in, in, weight, bias, out, out, means, scales, p);            \
    }                                                                                             \
    extern "C" __global__ __launch_bounds__(threads) void layer_norm_##T##_add_##name(            \
        const T* in, const T* residual, const T* weight, const T* bias, T* out, T* sum,           \
        compute_t<T>* means, compute_t<T>* scales, const __grid_constant__ Norm p) {              \
        layer_norm<T, BLOCK, true>(in, residual, weight, bias, out, sum, means, scales, p);       \
    }
#define BACKWARD(T, name, threads, BLOCK)                                                         \
    extern "C" __global__ __launch_bounds__(threads) void layer_norm_backward_##T##_##name(       \
        const T* grad, const T* in, const T* weight, const compute_t<T>* means,                   \
        const compute_t<T>* scales, T* out, const __grid_constant__ Norm p) {                     \
        layer_norm_backward<T, BLOCK, false>(grad, in, weight, means, scales, in, out, p);        \
    }                                                                                             \
    extern "C" __global__ __launch_bounds__(threads) void layer_norm_backward_##T##_add_##name(   \
        const T* grad, const T* in, const T* weight, const compute_t<T>* means,                   \
        const compute_t<T>* scales, const T* other, T* out, const __grid_constant__ Norm p) {     \
        layer_norm_backward<T, BLOCK, true>(grad, in, weight, means, scales, other, out, p);      \
    }
#define LAYER_NORM(T)                                                                             \
    FORWARD(T, warp, 128, false)                                                                  \
    FORWARD(T, block, 512, true)
// A vector has 16 bytes, but at most four elements.
#define PARAMETERS(T, name, V)                                                                    \
    extern "C" __global__ __launch_bounds__(COLUMN_THREADS, 2) void layer_norm_backward_##T##_##name( \
        const T* grad, const T* in, const compute_t<T>* means, const compute_t<T>* scales,        \
        T* of_weight, T* of_bias, u64* scratch, const __grid_constant__ Norm p) {                 \
        layer_norm_parameters<T, V>(grad, in, means, scales, of_weight, of_bias, scratch, p);     \
    }
#define LAYER_NORM_BACKWARD(T)                                                                    \
    BACKWARD(T, warp, 128, false)                                                                 \
    BACKWARD(T, block, 512, true)                                                                 \
    PARAMETERS(T, vectors, (sizeof(T) < 8 ? 4 : 2))                                               \
    PARAMETERS(T, columns, 1)
