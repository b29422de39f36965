// Sums of squares, one block per `CHUNK` elements.

template <class T>
__device__ __forceinline__ void
sum_squares(const T* x, compute_t<T>* out, const Update& u, u32 which) {
    typedef compute_t<T> C;
    const u32 numel = u.tensors[which].numel;
    const u32 first = (blockIdx.x - u.tensors[which].first) * CHUNK + threadIdx.x;
    C v[CHUNK / BLOCK];
#pragma unroll
    for (u32 j = 0; j < CHUNK / BLOCK; j++) {
        const u32 i = first + j * BLOCK;
        v[j] = i < numel ? load(x[i]) : (C)0;
    }
    C sum = 0;
#pragma unroll
    for (u32 j = 0; j < CHUNK / BLOCK; j++) sum += v[j] * v[j];
    __shared__ C sums[BLOCK / 32];
#pragma unroll
    for (u32 half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(~0u, sum, half);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
#pragma unroll
        for (u32 k = 1; k < BLOCK / 32; k++) sum += sums[k];
        out[blockIdx.x] = sum;
    }
}
