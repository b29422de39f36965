// Folds over the threads of a warp or a block, in the same order in each run.

struct Larger {
    static __device__ __forceinline__ f32 of(f32 a, f32 b) { return fmaxf(a, b); }
    static __device__ __forceinline__ f64 of(f64 a, f64 b) { return fmax(a, b); }
};
struct Plus {
    template <class C> static __device__ __forceinline__ C of(C a, C b) { return a + b; }
};

// Folds the values of `lanes` neighbouring lanes, a power of two. Every lane gets the result.
template <class F, class C> __device__ __forceinline__ C fold_lanes(C v, u32 lanes) {
#pragma unroll
    for (int half = 16; half > 0; half /= 2) {
        if (half < lanes) v = F::of(v, __shfl_xor_sync(~0u, v, half));
    }
    return v;
}

template <class F, class C> __device__ __forceinline__ C fold_warp(C v) {
#pragma unroll
    for (int half = 16; half > 0; half /= 2) v = F::of(v, __shfl_xor_sync(~0u, v, half));
    return v;
}

// Folds the values of a block. Every thread gets the result. `shared` has an element per warp, and
// needs a barrier before its next use.
template <class F, class C> __device__ __forceinline__ C fold_block(C v, C* shared, C none) {
    v = fold_warp<F>(v);
    const u32 lane = threadIdx.x % 32;
    if (lane == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    return fold_warp<F>(lane < blockDim.x / 32 ? shared[lane] : none);
}
