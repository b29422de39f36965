// out = source at the indices along one dimension, or 0 if an index is out of range. Elements are
// copied as raw bits, so only their size matters.

template <class T, class I>
__device__ __forceinline__ void
gather(const T* __restrict__ source, const I* __restrict__ index, T* out, const Pick& p) {
    const u32 n = p.space.numel, first = blockIdx.x * (blockDim.x * EACH) + threadIdx.x;
    T value[EACH];
    i32 from[EACH], to[EACH];
    i64 k[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const u32 i = first + j * blockDim.x;
        if (i < n) {
            i32 at[3];
            offsets(p.space, i, at);
            from[j] = at[0], to[j] = at[2];
            k[j] = index[at[1]];
        }
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        value[j] = T{};
        if (first + j * blockDim.x < n && check_index(k[j], p.report)) {
            value[j] = source[from[j] + k[j] * p.step];
        }
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        if (first + j * blockDim.x < n) out[to[j]] = value[j];
    }
}

#define GATHER(T, I)                                                                        \
    extern "C" __global__ __launch_bounds__(256, 4) void gather_##T##_##I(                     \
        const T* source, const I* index, T* out, const __grid_constant__ Pick p) {                \
        gather(source, index, out, p);                                                            \
    }
