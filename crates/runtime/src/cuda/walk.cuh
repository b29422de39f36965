template <int N> struct Walk;

// Computes the offsets of element `index` in all operands.
template <int N> __device__ __forceinline__ void walk(const Walk<N>& w, u64 index, i64 (&offsets)[N]) {
#pragma unroll
    for (int k = 0; k < N; k++) offsets[k] = 0;
#pragma unroll 1
    for (u64 d = 0; d < w.ndim; d++) {
        const u64 next = (__umul64hi(index, w.magic[d]) + index) >> w.shift[d];
        const i64 at = (i64)(index - next * w.sizes[d]);
#pragma unroll
        for (int k = 0; k < N; k++) offsets[k] += at * w.strides[k][d];
        index = next;
    }
}

// Returns the offset of element `index` in an operand. Not inlined, to keep kernels small.
template <int N> __device__ __noinline__ i64 walk(const Walk<N>& w, int operand, u64 index) {
    i64 offset = 0;
#pragma unroll 1
    for (u64 d = 0; d < w.ndim; d++) {
        // index / sizes[d], computed by multiplication. Exact for index < 2^63.
        const u64 next = (__umul64hi(index, w.magic[d]) + index) >> w.shift[d];
        offset += (i64)(index - next * w.sizes[d]) * w.strides[operand][d];
        index = next;
    }
    return offset;
}
