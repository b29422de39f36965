// Converts elements of a fixed dtype to a dtype that is a parameter of the launch.

// Converts a vector of elements to `D` and writes it.
template <class D, class S, int V>
__device__ __forceinline__ void put(void* out, u32 i, const S (&from)[V]) {
    compute_t<D> to[V];
#pragma unroll
    for (int k = 0; k < V; k++) to[k] = cast<compute_t<D>>(from[k]);
    store_vec((D*)out + i, to);
}

template <class S> __device__ __forceinline__ void any_flat(const S* a, void* out, const Params<Flat, Args>& p) {
    constexpr int V = ANY_VECTOR;
    const u32 n = p.space.numel;
    u32 i = (u32)thread() * V;
    if (i + V <= n) {
        compute_t<S> x[V];
        load_vec(a + i, x);
        switch (p.args.to) {
#define PUT(D, code) case code: put<D>(out, i, x); break;
            EACH_DTYPE(PUT)
        }
        return;
    }
#pragma unroll 1
    for (; i < n; i++) convert_to(out, i, p.args.to, a[i]);
}

template <class S>
__device__ __forceinline__ void any_strided(const S* a, void* out, const Params<Index<2>, Args>& p) {
    const u32 i = (u32)thread();
    if (i >= p.space.numel) return;
    i32 at[2];
    offsets(p.space, i, at);
    convert_to(out, at[1], p.args.to, a[at[0]]);
}

#define ANY(name, S)                                                                              \
    extern "C" __global__ void name##_flat(                                                       \
        const S* a, void* out, const __grid_constant__ Params<Flat, Args> p) {                    \
        any_flat(a, out, p);                                                                      \
    }                                                                                             \
    extern "C" __global__ void name##_strided(                                                    \
        const S* a, void* out, const __grid_constant__ Params<Index<2>, Args> p) {                \
        any_strided(a, out, p);                                                                   \
    }
