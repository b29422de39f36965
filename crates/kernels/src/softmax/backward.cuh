// Gradient of softmax over rows, `out * (grad - sum(out * grad))`, or of log-softmax,
// `grad - exp(out) * sum(grad)`.

__device__ __forceinline__ f32 exponential(f32 v) { return expf(v); }
// Not inlined: short to run, but slow to compile at each use.
__device__ __noinline__ f64 exponential(f64 v) { return exp(v); }

template <class C> __device__ __forceinline__ C term(C grad, C out, bool log) {
    return log ? grad : grad * out;
}
template <class C> __device__ __forceinline__ C slope(C grad, C out, C sum, bool log) {
    return log ? grad - exponential(out) * sum : out * (grad - sum);
}

// Processes a row per `1 << p.team` lanes of a warp, or per block.
template <class T, bool BLOCK>
__device__ __forceinline__ void rows(const T* grad, const T* out, T* result, const Gradient& p) {
    typedef compute_t<T> C;
    const u32 team = BLOCK ? blockDim.x : 1u << (u32)p.team, t = threadIdx.x % team;
    // A team beyond the last row takes part in the folds of its warp, but has no elements.
    const u64 own = (u64)blockIdx.x * (blockDim.x / team) + threadIdx.x / team;
    const u64 row = own < p.rows ? own : 0, size = own < p.rows ? p.size : 0;
    const T* g = grad + walk(p.walk, 0, row);
    const T* o = out + walk(p.walk, 1, row);
    T* to = result + walk(p.walk, 2, row);
    C sum = 0;
#pragma unroll 4
    for (u64 i = t; i < size; i += team) {
        sum += term(load(g[(i64)i * p.steps[0]]), load(o[(i64)i * p.steps[1]]), p.log);
    }
    if constexpr (BLOCK) {
        __shared__ C shared[32];
        sum = fold_block<Plus>(sum, shared, (C)0);
    } else {
        sum = fold_lanes<Plus>(sum, team);
    }
#pragma unroll 4
    for (u64 i = t; i < size; i += team) {
        const C x = load(g[(i64)i * p.steps[0]]), y = load(o[(i64)i * p.steps[1]]);
        store(to[(i64)i * p.steps[2]], slope(x, y, sum, p.log));
    }
}

// Processes rows that lie side by side, 32 per block. The warps of a block share each row.
template <class T>
__device__ __forceinline__ void columns(const T* grad, const T* out, T* result, const Gradient& p) {
    typedef compute_t<T> C;
    __shared__ C sums[COLUMN_THREADS];
    const u32 lane = threadIdx.x % 32, height = blockDim.x / 32;
    const u64 own = (u64)blockIdx.x * 32 + lane;
    const u64 row = own < p.rows ? own : 0, size = own < p.rows ? p.size : 0;
    const T* g = grad + walk(p.walk, 0, row);
    const T* o = out + walk(p.walk, 1, row);
    T* to = result + walk(p.walk, 2, row);
    C sum = 0;
#pragma unroll 4
    for (u64 i = threadIdx.x / 32; i < size; i += height) {
        sum += term(load(g[(i64)i * p.steps[0]]), load(o[(i64)i * p.steps[1]]), p.log);
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    sum = 0;
    for (u32 y = 0; y < height; y++) sum += sums[y * 32 + lane];
#pragma unroll 4
    for (u64 i = threadIdx.x / 32; i < size; i += height) {
        const C x = load(g[(i64)i * p.steps[0]]), y = load(o[(i64)i * p.steps[1]]);
        store(to[(i64)i * p.steps[2]], slope(x, y, sum, p.log));
    }
}

#define KERNEL(T, name, threads, ...)                                                             \
    extern "C" __global__ __launch_bounds__(threads) void softmax_backward_##T##_##name(          \
        const T* grad, const T* out, T* result, const __grid_constant__ Gradient p) {             \
        __VA_ARGS__(grad, out, result, p);                                                        \
    }
#define SOFTMAX_BACKWARD(T)                                                                       \
    KERNEL(T, warp, 128, rows<T, false>)                                                          \
    KERNEL(T, block, 512, rows<T, true>)                                                          \
    KERNEL(T, columns, COLUMN_THREADS, columns<T>)
