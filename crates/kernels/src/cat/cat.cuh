// Concatenates sources. Each source fills its own columns of the result's rows. The kernel copies
// raw units, which may hold several elements.

template <class T>
__device__ __forceinline__ void
cat(const T* const (&sources)[SOURCES], T* __restrict__ out, const Cat& p) {
    // A thread loads several narrow units before it stores any, so that their latencies overlap.
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

// Concatenates two sources that fill the rows of the result. For small tensors, each cache line of
// parameters costs a wait. Here one line holds all parameters that a thread needs to load elements.
template <class T>
__device__ __forceinline__ void
pair(const T* a, const T* b, T* __restrict__ out, const CatPair& p) {
    constexpr int EACH = 16 / sizeof(T) < 4 ? 16 / sizeof(T) : 4;
    const bool second = blockIdx.x >= p.first;
    const T* source = second ? b : a;
    const u32 first = (second ? blockIdx.x - p.first : blockIdx.x) * (BLOCK * EACH) + threadIdx.x;
    const u32 numel = second ? p.numel[1] : p.numel[0];
    T value[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const u32 i = first + j * BLOCK;
        if (i < numel) value[j] = source[i];
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const u32 i = first + j * BLOCK;
        const u32 row = quotient(i, second ? p.magic[1] : p.magic[0], second ? p.shift[1] : p.shift[0]);
        const u32 others = second ? p.columns[0] : p.columns[1], at = second ? p.columns[0] : 0;
        if (i < numel) out[i + row * others + at] = value[j];
    }
}

#define CAT(T)                                                                                    \
    extern "C" __global__ void cat_##T(                                                           \
        const T* a, const T* b, const T* c, const T* d, const T* e, const T* f, const T* g,       \
        const T* h, T* out, const __grid_constant__ Cat p) {                                      \
        const T* const sources[SOURCES] = {a, b, c, d, e, f, g, h};                               \
        cat(sources, out, p);                                                                     \
    }                                                                                             \
    extern "C" __global__ void cat_##T##_pair(                                                    \
        const T* a, const T* b, T* out, const __grid_constant__ CatPair p) {                         \
        pair(a, b, out, p);                                                                       \
    }
