// Rotates pairs of elements of rows, and copies the elements after the last pair.

template <class T, int V> struct alignas(V * sizeof(T)) Vector { T v[V]; };

template <class T, int V> __device__ __forceinline__ void fetch(const T* p, compute_t<T> (&to)[V]) {
    const Vector<T, V> all = *(const Vector<T, V>*)p;
#pragma unroll
    for (int k = 0; k < V; k++) to[k] = load(all.v[k]);
}

template <class T, int V> __device__ __forceinline__ void put(T* p, const compute_t<T> (&from)[V]) {
    Vector<T, V> all;
#pragma unroll
    for (int k = 0; k < V; k++) store(all.v[k], from[k]);
    *(Vector<T, V>*)p = all;
}

// `V` pairs are rotated at a time. If `V` is not 1, the elements of a row are neighbours in each
// operand, and each group of `V` is aligned to its size.
template <class T, class A, int V>
__device__ __forceinline__ void rotary(const T* x, const A* cos, const A* sin, T* out, const Rotary& p) {
    typedef compute_t<T> C;
    const u32 lanes = 1u << (u32)p.lanes;
    const u64 row = (u64)blockIdx.x * (BLOCK / lanes) + threadIdx.x / lanes;
    if (row >= p.rows) return;
    i64 at[4];
    walk(p.walk, row, at);
    x += at[0], cos += at[1], sin += at[2], out += at[3];
    const i64 pairs = (i64)p.pairs, end = pairs + (i64)p.rest;
#pragma unroll 1
    for (i64 i = (i64)(threadIdx.x & (lanes - 1)) * V; i < end; i += (i64)lanes * V) {
        if (i >= pairs) {
            const i64 column = pairs + i;
            C same[V];
            fetch<T, V>(x + column * p.steps[0], same);
            put<T, V>(out + column * p.steps[3], same);
            continue;
        }
        C c[V], s[V];
        fetch<A, V>(cos + i * p.steps[1], c);
        fetch<A, V>(sin + i * p.steps[2], s);
        // The positions of two groups of `V` elements. If pairs are interleaved, the groups lie side by
        // side. Otherwise the first group has the first elements of the pairs, and the second group
        // has the second elements.
        const i64 low = p.is_interleaved ? 2 * i : i, high = p.is_interleaved ? low + V : i + pairs;
        C from[2 * V], to[2 * V], half[V];
        fetch<T, V>(x + low * p.steps[0], half);
#pragma unroll
        for (int k = 0; k < V; k++) from[k] = half[k];
        fetch<T, V>(x + high * p.steps[0], half);
#pragma unroll
        for (int k = 0; k < V; k++) from[V + k] = half[k];
#pragma unroll
        for (int k = 0; k < V; k++) {
            const C sine = p.is_inverse ? -s[k] : s[k];
            const C a = p.is_interleaved ? from[2 * k] : from[k];
            const C b = p.is_interleaved ? from[2 * k + 1] : from[V + k];
            const C first = a * c[k] - b * sine, second = b * c[k] + a * sine;
            if (p.is_interleaved) to[2 * k] = first, to[2 * k + 1] = second;
            else to[k] = first, to[V + k] = second;
        }
#pragma unroll
        for (int k = 0; k < V; k++) half[k] = to[k];
        put<T, V>(out + low * p.steps[3], half);
#pragma unroll
        for (int k = 0; k < V; k++) half[k] = to[V + k];
        put<T, V>(out + high * p.steps[3], half);
    }
}

#define ROTARY(T, name, V)                                                                        \
    extern "C" __global__ __launch_bounds__(BLOCK) void rotary_embedding_##T##_##name(            \
        const T* x, const void* cos, const void* sin, T* out, const __grid_constant__ Rotary p) { \
        typedef compute_t<T> C;                                                                   \
        if (sizeof(T) < sizeof(C) && p.is_wide) {                                                 \
            rotary<T, C, V>(x, (const C*)cos, (const C*)sin, out, p);                             \
        } else {                                                                                  \
            rotary<T, T, V>(x, (const T*)cos, (const T*)sin, out, p);                             \
        }                                                                                         \
    }
