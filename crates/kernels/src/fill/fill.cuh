// Sets all elements to one value.
template <class T>
__device__ __forceinline__ void flat(T* out, const Params<Flat, Fill>& p) {
    constexpr int V = vector_width(sizeof(T));
    T v[V];
#pragma unroll
    for (int k = 0; k < V; k++) v[k] = number<T>(p.args.bits);
    const u32 n = p.space.numel;
    u32 i = (u32)thread() * V;
    if (i + V <= n) {
        store_vec(out + i, v);
        return;
    }
#pragma unroll 1
    for (; i < n; i++) out[i] = v[0];
}

#define FILL(name, T)                                                                             \
    extern "C" __global__ void fill_##name##_flat(                                                \
        T* out, const __grid_constant__ Params<Flat, Fill> p) {                                   \
        flat(out, p);                                                                             \
    }                                                                                             \
    extern "C" __global__ void fill_##name##_strided(                                             \
        T* out, const __grid_constant__ Params<Index<1>, Fill> p) {                               \
        constexpr int V = vector_width(sizeof(T));                                                \
        T v[V];                                                                                   \
        _Pragma("unroll") for (int k = 0; k < V; k++) v[k] = number<T>(p.args.bits);              \
        Run<1> run;                                                                               \
        if (run_of<V>(p.space, (u32)thread(), out, run))                                          \
            store_run(out + run.at[0], p.space.dims[0].strides[0], run, v);                            \
    }
