// Rows less their mean, over the root of their mean square.

// What is there for a team of threads that have a row: `1 << p.team` lanes of a warp, or a block.
template <bool BLOCK> struct Team {
    u32 size, t;
    u64 row;
    bool has;
    __device__ __forceinline__ Team(const Norm& p)
        : size(BLOCK ? blockDim.x : 1u << (u32)p.team), t(threadIdx.x % size) {
        // A team beyond the last row folds with the others of its warp, but has nothing.
        const u64 own = (u64)blockIdx.x * (blockDim.x / size) + threadIdx.x / size;
        has = own < p.rows;
        row = has ? own : 0;
    }
    // `shared` is for this sum alone.
    template <class C> __device__ __forceinline__ C sum(C v, C* shared) const {
        if constexpr (BLOCK) return fold_block<Plus>(v, shared, (C)0);
        else return fold_lanes<Plus>(v, size);
    }
};

__device__ __forceinline__ f32 root(f32 v) { return sqrtf(v); }
__device__ __forceinline__ f64 root(f64 v) { return sqrt(v); }

template <class T, bool BLOCK>
__device__ __forceinline__ void layer_norm(
    const T* in, const T* weight, const T* bias, T* out, compute_t<T>* means, compute_t<T>* scales, const Norm& p) {
    typedef compute_t<T> C;
    __shared__ C shared[64];
    const Team<BLOCK> team(p);
    const u64 size = team.has ? p.size : 0;
    const T* x = in + team.row * p.size;
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

// The gradient of what was normalised.
template <class T, bool BLOCK>
__device__ __forceinline__ void layer_norm_backward(
    const T* grad, const T* in, const T* weight, const compute_t<T>* means, const compute_t<T>* scales, T* out,
    const Norm& p) {
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
        store(out[team.row * p.size + i], (own - plain - y * along) * scale);
    }
}

// The gradients of weight and bias: 32 columns for a block, whose warps share the rows.
template <class T, bool BIASED>
__device__ __forceinline__ void layer_norm_parameters(
    const T* grad, const T* in, const compute_t<T>* means, const compute_t<T>* scales, T* of_weight, T* of_bias,
    const Norm& p) {
    typedef compute_t<T> C;
    __shared__ C sums[2][COLUMN_THREADS];
    const u32 lane = threadIdx.x % 32, height = blockDim.x / 32;
    const u64 column = (u64)blockIdx.x * 32 + lane;
    C along = 0, plain = 0;
    if (column < p.size) {
#pragma unroll 4
        for (u64 row = threadIdx.x / 32; row < p.rows; row += height) {
            const C g = load(grad[row * p.size + column]);
            along += g * ((load(in[row * p.size + column]) - means[row]) * scales[row]);
            plain += g;
        }
    }
    sums[0][threadIdx.x] = along;
    sums[1][threadIdx.x] = plain;
    __syncthreads();
    if (threadIdx.x >= 32 || column >= p.size) return;
    along = plain = 0;
    for (u32 y = 0; y < height; y++) {
        along += sums[0][y * 32 + lane];
        plain += sums[1][y * 32 + lane];
    }
    store(of_weight[column], along);
    if constexpr (BIASED) store(of_bias[column], plain);
}

#define FORWARD(T, name, threads, BLOCK)                                                          \
    extern "C" __global__ __launch_bounds__(threads) void layer_norm_##T##_##name(                \
        const T* in, const T* weight, const T* bias, T* out, compute_t<T>* means,                 \
        compute_t<T>* scales, const __grid_constant__ Norm p) {                                   \
        layer_norm<T, BLOCK>(in, weight, bias, out, means, scales, p);                            \
    }
#define BACKWARD(T, name, threads, BLOCK)                                                         \
    extern "C" __global__ __launch_bounds__(threads) void layer_norm_backward_##T##_##name(       \
        const T* grad, const T* in, const T* weight, const compute_t<T>* means,                   \
        const compute_t<T>* scales, T* out, const __grid_constant__ Norm p) {                     \
        layer_norm_backward<T, BLOCK>(grad, in, weight, means, scales, out, p);                   \
    }
#define LAYER_NORM(T)                                                                             \
    FORWARD(T, warp, 128, false)                                                                  \
    FORWARD(T, block, 512, true)
#define LAYER_NORM_BACKWARD(T)                                                                    \
    BACKWARD(T, warp, 128, false)                                                                 \
    BACKWARD(T, block, 512, true)                                                                 \
    extern "C" __global__ __launch_bounds__(COLUMN_THREADS) void layer_norm_backward_##T##_parameters( \
        const T* grad, const T* in, const compute_t<T>* means, const compute_t<T>* scales,        \
        T* of_weight, T* of_bias, const __grid_constant__ Norm p) {                               \
        layer_norm_parameters<T, true>(grad, in, means, scales, of_weight, of_bias, p);           \
    }                                                                                             \
    extern "C" __global__ __launch_bounds__(COLUMN_THREADS) void layer_norm_backward_##T##_weight( \
        const T* grad, const T* in, const compute_t<T>* means, const compute_t<T>* scales,        \
        T* of_weight, const __grid_constant__ Norm p) {                                           \
        layer_norm_parameters<T, false>(grad, in, means, scales, of_weight, of_weight, p);        \
    }
