// out = the sources, of which each has its columns of the rows. Elements are moved as they are, several as one.

template <class T>
__device__ __forceinline__ void
cat(const T* const (&sources)[SOURCES], T* __restrict__ out, const Cat& p) {
    // Of the narrow ones several: what a thread waits for, it waits for together.
    constexpr int EACH = 16 / sizeof(T) < 4 ? 16 / sizeof(T) : 4;
    int which = 0;
    const T* source = sources[0];
#pragma unroll
    for (int k = 1; k < SOURCES; k++) {
        if (blockIdx.x >= p.parts[k].first) {
            which = k;
            source = sources[k];
        }
    }
    const Part& part = p.parts[which];
    const u32 first = (blockIdx.x - part.first) * (blockDim.x * EACH) + threadIdx.x;
    T value[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const u32 i = first + j * blockDim.x;
        if (i < part.numel) value[j] = source[i];
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const u32 i = first + j * blockDim.x, row = quotient(i, part.magic, part.shift);
        if (i < part.numel) out[row * p.pitch + part.at + (i - row * part.columns)] = value[j];
    }
}

#define CAT(T)                                                                                    \
    extern "C" __global__ void cat_##T(                                                           \
        const T* a, const T* b, const T* c, const T* d, const T* e, const T* f, const T* g,       \
        const T* h, T* out, const __grid_constant__ Cat p) {                                      \
        const T* const sources[SOURCES] = {a, b, c, d, e, f, g, h};                               \
        cat(sources, out, p);                                                                     \
    }
