// Negative log-likelihood of class indices, and the gradient of cross entropy.

// One block adds up all losses, so that the sum is the same in each run.
template <class T>
__device__ __forceinline__ void
nll_loss(const T* log, const i64* classes, const T* weight, T* loss, compute_t<T>* total, const Checked& checked) {
    typedef compute_t<T> C;
    __shared__ C shared[64];
    const Losses& p = checked.losses;
    C sum = 0, weights = 0;
#pragma unroll 4
    for (u64 n = threadIdx.x; n < p.rows; n += blockDim.x) {
        const i64 k = classes[(i64)n * p.class_step];
        if (k == p.ignored || !check_index(k, checked.report)) continue;
        const C w = p.is_weighted ? load(weight[k * p.weight_step]) : (C)1;
        sum -= w * load(log[(i64)n * p.log_steps[0] + k * p.log_steps[1]]);
        weights += w;
    }
    sum = fold_block<Plus>(sum, shared, (C)0);
    weights = fold_block<Plus>(weights, shared + 32, (C)0);
    if (threadIdx.x == 0) {
        store(*loss, p.is_mean ? sum / weights : sum);
        *total = weights;
    }
}

__device__ __forceinline__ f32 exponential(f32 v) { return expf(v); }
__device__ __forceinline__ f64 exponential(f64 v) { return exp(v); }

// Computes the gradient through the loss and the log-softmax before it. `1 << p.team` threads share
// a row.
template <class T>
__device__ __forceinline__ void nll_loss_backward(
    const T* grad, const T* log, const i64* classes, const T* weight, const compute_t<T>* total, T* out,
    const Losses& p) {
    typedef compute_t<T> C;
    const u32 shift = (u32)p.team, team = 1u << shift;
    const u64 row = (u64)blockIdx.x * (blockDim.x >> shift) + (threadIdx.x >> shift);
    if (row >= p.rows) return;
    const i64 k = classes[(i64)row * p.class_step];
    // The forward pass has reported the classes out of range.
    const bool counts = k != p.ignored && (u64)k < p.size;
    C scale = 0;
    if (counts) {
        scale = load(*grad) * (p.is_weighted ? load(weight[k * p.weight_step]) : (C)1);
        if (p.is_mean) scale = scale / *total;
    }
#pragma unroll 4
    for (i64 c = threadIdx.x & (team - 1); c < (i64)p.size; c += team) {
        const C x = exponential(load(log[(i64)row * p.log_steps[0] + c * p.log_steps[1]]));
        store(out[(i64)row * p.out_steps[0] + c * p.out_steps[1]], counts ? (x - (c == k ? (C)1 : (C)0)) * scale : (C)0);
    }
}

#define NLL_LOSS(T)                                                                               \
    extern "C" __global__ __launch_bounds__(1024) void nll_loss_##T(                              \
        const T* log, const i64* classes, const T* weight, T* loss, compute_t<T>* total,          \
        const __grid_constant__ Checked p) {                                                      \
        nll_loss(log, classes, weight, loss, total, p);                                           \
    }
#define NLL_LOSS_BACKWARD(T)                                                                      \
    extern "C" __global__ __launch_bounds__(256) void nll_loss_backward_##T(                      \
        const T* grad, const T* log, const i64* classes, const T* weight,                         \
        const compute_t<T>* total, T* out, const __grid_constant__ Losses p) {                    \
        nll_loss_backward(grad, log, classes, weight, total, out, p);                             \
    }
