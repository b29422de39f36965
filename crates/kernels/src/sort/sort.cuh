// Returns an unsigned integer that orders as the value does. Both zeros have one key, and a NaN has
// the largest.
template <class C> __device__ __forceinline__ u64 key_of(C v) {
    if constexpr (same<C, f32>::value) {
        if (v != v) return ~0u;
        const u32 bits = v == 0 ? 0 : __float_as_uint(v);
        return bits >> 31 ? ~bits : bits | 0x80000000u;
    } else if constexpr (same<C, f64>::value) {
        if (v != v) return ~0ull;
        const u64 bits = v == 0 ? 0 : (u64)__double_as_longlong(v);
        return bits >> 63 ? ~bits : bits | 1ull << 63;
    } else {
        return (u64)(i64)v ^ 1ull << 63;
    }
}

// Returns the pair of element `i`. Pairs beyond the end of the row sort last.
template <class T>
__device__ __forceinline__ SortPair pair(const T* from, u64 i, const Sort& p) {
    if (i >= p.size) return SortPair{~0ull, ~0ull};
    const u64 key = key_of(load(from[(i64)i * p.steps[0]]));
    return SortPair{p.descending ? ~key : key, i};
}

// Sorts a row per block, in shared memory. `padded` is the size of the row, rounded up to a power
// of two, and at most twice the number of threads.
template <class T>
__device__ __forceinline__ void
sort_row(const T* in, T* values, i64* index, const Sort& p) {
    __shared__ SortPair tile[TILE];
    const u64 row = blockIdx.x;
    const T* from = in + walk(p.walk, 0, row);
    const u32 n = (u32)p.padded;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) tile[i] = pair(from, i, p);
    for (u32 size = 2; size <= n; size *= 2) {
        for (u32 distance = size / 2; distance > 0; distance /= 2) {
            __syncthreads();
            const u32 low = 2 * threadIdx.x - (threadIdx.x & (distance - 1));
            if (low < n) exchange(tile[low], tile[low + distance], (low & size) == 0 || size == n);
        }
    }
    __syncthreads();
    T* to = values + walk(p.walk, 1, row);
    i64* at = index + walk(p.walk, 2, row);
    for (u32 i = threadIdx.x; i < p.size; i += blockDim.x) {
        const i64 origin = (i64)tile[i].index;
        to[(i64)i * p.steps[1]] = from[origin * p.steps[0]];
        at[(i64)i * p.steps[2]] = origin;
    }
}

// Longer rows are sorted as pairs in scratch memory. `keys` writes the pairs, and `write` writes
// the results of the sorted pairs.
template <class T> __device__ __forceinline__ void keys(const T* in, SortPair* pairs, const Sort& p) {
    const u64 t = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= p.rows << p.log) return;
    pairs[t] = pair(in + walk(p.walk, 0, p.first + (t >> p.log)), t & (p.padded - 1), p);
}

template <class T>
__device__ __forceinline__ void
write(const T* in, const SortPair* pairs, T* values, i64* index, const Sort& p) {
    const u64 t = (u64)blockIdx.x * blockDim.x + threadIdx.x, i = t & (p.padded - 1);
    if (t >= p.rows << p.log || i >= p.size) return;
    const u64 row = p.first + (t >> p.log);
    const i64 origin = (i64)pairs[t].index;
    values[walk(p.walk, 1, row) + (i64)i * p.steps[1]] = in[walk(p.walk, 0, row) + origin * p.steps[0]];
    index[walk(p.walk, 2, row) + (i64)i * p.steps[2]] = origin;
}

#define SORT(NAME, T)                                                                             \
    extern "C" __global__ __launch_bounds__(1024) void NAME##_row(                                \
        const T* in, T* values, i64* index, const __grid_constant__ Sort p) {                     \
        sort_row(in, values, index, p);                                                           \
    }                                                                                             \
    extern "C" __global__ __launch_bounds__(256) void NAME##_keys(                                \
        const T* in, SortPair* pairs, const __grid_constant__ Sort p) {                               \
        keys(in, pairs, p);                                                                       \
    }                                                                                             \
    extern "C" __global__ __launch_bounds__(256) void NAME##_write(                               \
        const T* in, const SortPair* pairs, T* values, i64* index, const __grid_constant__ Sort p) {  \
        write(in, pairs, values, index, p);                                                       \
    }
