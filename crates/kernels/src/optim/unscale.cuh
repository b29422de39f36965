// Checks gradients for infinite and NaN elements. If `writes` is set, also multiplies them by the
// reciprocal of the scale. One block per `CHUNK` elements.

template <class T> union Words {
    Raw<16> raw;
    T each[16 / sizeof(T)];
};

template <class T>
__device__ __forceinline__ void
unscale(T* x, const f32* scale, f32* found_inf, const Unscale& u, u32 which) {
    typedef compute_t<T> C;
    constexpr u32 EACH = 16 / sizeof(T);
    const u32 numel = u.tensors[which].numel;
    const u32 first = (blockIdx.x - u.tensors[which].first) * CHUNK + threadIdx.x * EACH;
    const f32 inverse = u.writes ? (f32)(1 / (f64)*scale) : 1;
    const bool writes = inverse != 1;
    const bool aligned = (u64)x % 16 == 0;
    bool found = false;
#pragma unroll 1
    for (u32 begin = first; begin < first + CHUNK && begin < numel; begin += BLOCK * EACH) {
        const bool whole = aligned && begin + EACH <= numel;
        Words<T> words;
        words.raw = Raw<16>{};
        if (whole) {
            words.raw = *(const Raw<16>*)(x + begin);
        } else {
#pragma unroll
            for (u32 j = 0; j < EACH; j++) {
                if (begin + j < numel) words.each[j] = x[begin + j];
            }
        }
#pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            const C v = load(words.each[j]);
            found |= v - v != 0;
            store(words.each[j], v * (C)inverse);
        }
        if (!writes) continue;
        if (whole) {
            *(Raw<16>*)(x + begin) = words.raw;
        } else {
#pragma unroll
            for (u32 j = 0; j < EACH; j++) {
                if (begin + j < numel) x[begin + j] = words.each[j];
            }
        }
    }
    // One atomic per block, because after an overflow most elements may be infinite.
    if (__syncthreads_or(found) && threadIdx.x == 0) atomicExch(found_inf, 1.0f);
}
