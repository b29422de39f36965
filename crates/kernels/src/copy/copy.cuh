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

template <class S, class D>
__device__ __forceinline__ void strided(const S* a, D* out, const Params<Index<2>, Args>& p) {
    constexpr int V = vector_width(sizeof(S) > sizeof(D) ? sizeof(S) : sizeof(D));
    const i32 step = p.space.strides[0][0], out_step = p.space.strides[1][0];
    for (u64 i = thread(); i < p.space.runs.threads; i += threads()) {
        Run<2> run;
        if (!run_of<V>(p.space, (u32)i, out, run)) continue;
        const S* from = a + run.at[0];
        Vec<S, V> x;
        if (is_vector<S, V>(from, step, run)) {
            x = *(const Vec<S, V>*)from;
        } else {
            // In line, unlike `gather`: transposes do little else.
#pragma unroll
            for (int k = 0; k < V; k++) {
                if ((u32)(run.x + k) < run.size) x.v[k] = from[k * step];
            }
        }
        compute_t<D> r[V];
#pragma unroll
        for (int k = 0; k < V; k++) r[k] = cast<compute_t<D>>(load(x.v[k]));
        store_run(out + run.at[1], out_step, run, r);
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
