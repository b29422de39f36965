template <int N> struct Walk;

// Where element `index` of an operand lies. Out of line: its divisions would dominate a kernel's code.
template <int N> __device__ __noinline__ i64 walk(const Walk<N>& w, int operand, u64 index) {
    i64 offset = 0;
    for (u64 d = 0; d < w.ndim; d++) {
        const u64 next = index / w.sizes[d];
        offset += (i64)(index - next * w.sizes[d]) * w.strides[operand][d];
        index = next;
    }
    return offset;
}
