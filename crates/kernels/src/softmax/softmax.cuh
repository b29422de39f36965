// Softmax over one dimension: a block for each row.
#define SOFTMAX_BLOCK 256

__device__ __forceinline__ f32 exponential(f32 v) { return expf(v); }
__device__ __forceinline__ f64 exponential(f64 v) { return exp(v); }
__device__ __forceinline__ f32 logarithm(f32 v) { return logf(v); }
__device__ __forceinline__ f64 logarithm(f64 v) { return log(v); }

struct Larger {
    template <class C> static __device__ __forceinline__ C of(C a, C b) { return a > b || a != a ? a : b; }
};
struct Plus {
    template <class C> static __device__ __forceinline__ C of(C a, C b) { return a + b; }
};

// Folds the values of a block; every thread gets the answer.
template <class F, class C> __device__ __forceinline__ C fold(C v, C *shared) {
#pragma unroll
    for (int half = 16; half > 0; half /= 2) v = F::of(v, __shfl_xor_sync(~0u, v, half));
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    v = shared[0];
#pragma unroll
    for (int warp = 1; warp < SOFTMAX_BLOCK / 32; warp++) v = F::of(v, shared[warp]);
    return v;
}

template <class T> __device__ __forceinline__ void softmax(const T *source, T *result, const Rows &p) {
    typedef compute_t<T> C;
    __shared__ C shared[SOFTMAX_BLOCK / 32];
    for (u64 row = blockIdx.x; row < p.rows; row += gridDim.x) {
        const T *from = source + walk(p.walk, 0, row);
        T *to = result + walk(p.walk, 1, row);
        // A thread that has no element leaves the first one's value to the others.
        C largest = load(*from);
        for (u64 i = threadIdx.x; i < p.size; i += SOFTMAX_BLOCK) {
            largest = Larger::of(largest, load(from[(i64)i * p.source_step]));
        }
        largest = fold<Larger>(largest, shared);
        C sum = 0;
        for (u64 i = threadIdx.x; i < p.size; i += SOFTMAX_BLOCK) {
            sum += exponential(load(from[(i64)i * p.source_step]) - largest);
        }
        sum = fold<Plus>(sum, shared);
        const C scale = p.log ? logarithm(sum) : sum;
        for (u64 i = threadIdx.x; i < p.size; i += SOFTMAX_BLOCK) {
            const C v = load(from[(i64)i * p.source_step]) - largest;
            store(to[(i64)i * p.result_step], p.log ? v - scale : exponential(v) / scale);
        }
        // The next row's folds write what this one's threads may still read.
        __syncthreads();
    }
}

#define SOFTMAX(T)                                                                             \
    extern "C" __global__ __launch_bounds__(SOFTMAX_BLOCK) void softmax_##T(                   \
        const T *source, T *result, Rows p) {                                                \
        softmax<T>(source, result, p);                                                         \
    }
