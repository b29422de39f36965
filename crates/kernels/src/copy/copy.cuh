// out = a, converted where the dtypes differ. Copies of one dtype only know the size of an element.
template <class S, class D>
__device__ __forceinline__ void flat(const S* a, D* out, const Params<Flat, Args>& p) {
    constexpr int V = vector_width(sizeof(S) > sizeof(D) ? sizeof(S) : sizeof(D));
    const u64 n = p.space.numel;
    for (u64 i = thread() * V; i < n; i += threads() * V) {
        compute_t<S> x[V];
        compute_t<D> r[V];
        load_vec(a + i, n - i, x);
#pragma unroll
        for (int k = 0; k < V; k++) r[k] = cast<compute_t<D>>(x[k]);
        store_vec(out + i, n - i, r);
    }
}

// Two runs at a time, so that more is on its way.
template <class S, class D>
__device__ __forceinline__ void strided(const S* a, D* out, const Params<Index<2>, Args>& p) {
    constexpr int V = run_width(sizeof(S) > sizeof(D) ? sizeof(S) : sizeof(D)), U = 2;
    const u32 n = p.space.runs.threads;
    for (u64 first = (u64)blockIdx.x * blockDim.x * U + threadIdx.x; first < n; first += threads() * U) {
        Run<2> run[U];
        bool is_there[U];
        Vec<S, V> x[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            const u64 i = first + u * blockDim.x;
            is_there[u] = i < n && run_of<V>(p.space, (u32)i, out, run[u]);
            if (!is_there[u]) continue;
            const S* from = a + run[u].at[0];
            const i32 stride = p.space.strides[0][0];
            if (is_vector<S, V>(from, stride, run[u])) {
                x[u] = *(const Vec<S, V>*)from;
                continue;
            }
            // In line, unlike `gather`: transposes do little else.
#pragma unroll
            for (int k = 0; k < V; k++) {
                if ((u32)(run[u].x + k) < run[u].size) x[u].v[k] = from[k * stride];
            }
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (!is_there[u]) continue;
            compute_t<D> r[V];
#pragma unroll
            for (int k = 0; k < V; k++) r[k] = cast<compute_t<D>>(load(x[u].v[k]));
            store_run(out + run[u].at[1], p.space.strides[1][0], run[u], r);
        }
    }
}

#define COPY(name, S, D)                                                                       \
    extern "C" __global__ void name##_flat(                                                \
        const S* a, D* out, const __grid_constant__ Params<Flat, Args> p) {                       \
        flat(a, out, p);                                                                          \
    }                                                                                             \
    extern "C" __global__ void name##_strided(                                             \
        const S* a, D* out, const __grid_constant__ Params<Index<2>, Args> p) {                   \
        strided(a, out, p);                                                                       \
    }
