// The elements that a kernel of the iteration layer goes over: 32 bits suffice for them, since what is
// larger is launched in parts.

template <int N> struct Index;

// Where element `i` of each operand lies.
template <int N>
__device__ __forceinline__ void offsets(const Index<N>& index, u32 i, i32 (&at)[N]) {
#pragma unroll
    for (int k = 0; k < N; k++) at[k] = 0;
    const int last = (int)index.ndim - 1;
#pragma unroll 1
    for (int d = 0; d < last; d++) {
        // i / sizes[d] by multiplication; exact for i < 2^31.
        const u32 next = (__umulhi(i, index.magic[d]) + i) >> index.shift[d];
        const i32 r = (i32)(i - next * index.sizes[d]);
#pragma unroll
        for (int k = 0; k < N; k++) at[k] += r * index.strides[k][d];
        i = next;
    }
    if (last >= 0) {
#pragma unroll
        for (int k = 0; k < N; k++) at[k] += (i32)i * index.strides[k][last];
    }
}

// Elements that one thread takes at a time where operands are flat: 16 bytes of the widest.
__host__ __device__ constexpr int vector_width(int size) { return 16 / size < 8 ? 16 / size : 8; }

template <class T, int V> struct alignas(V * sizeof(T)) Vec {
    T v[V];
};

// `left` elements are there, and `p` is aligned to a whole vector.
template <class T, int V>
__device__ __forceinline__ void load_vec(const T* p, u64 left, compute_t<T> (&to)[V]) {
    Vec<T, V> raw = {};
    if (left >= V) {
        raw = *(const Vec<T, V>*)p;
    } else {
#pragma unroll
        for (int k = 0; k < V; k++) {
            if (k < left) raw.v[k] = p[k];
        }
    }
#pragma unroll
    for (int k = 0; k < V; k++) to[k] = load(raw.v[k]);
}

template <class T, int V>
__device__ __forceinline__ void store_vec(T* p, u64 left, const compute_t<T> (&from)[V]) {
    Vec<T, V> raw;
#pragma unroll
    for (int k = 0; k < V; k++) store(raw.v[k], from[k]);
    if (left >= V) {
        *(Vec<T, V>*)p = raw;
    } else {
#pragma unroll
        for (int k = 0; k < V; k++) {
            if (k < left) p[k] = raw.v[k];
        }
    }
}

__device__ __forceinline__ u64 thread() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ u64 threads() { return (u64)gridDim.x * blockDim.x; }
