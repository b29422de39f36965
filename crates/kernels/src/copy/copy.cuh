// out = a, converted if the dtypes differ. Copies within a dtype depend only on the size of the
// elements.
template <class S, class D>
__device__ __forceinline__ void flat(const S* a, D* out, const Params<Flat, Args>& p) {
    constexpr int V = vector_width(sizeof(S) > sizeof(D) ? sizeof(S) : sizeof(D));
    // Each thread takes two vectors if elements become half as wide. With one vector, threads would
    // finish faster than new blocks can start.
    constexpr int EACH = sizeof(S) == 2 * sizeof(D) ? 2 : 1, STEP = BLOCK * V;
    const u32 n = p.space.numel, first = blockIdx.x * (EACH * STEP) + threadIdx.x * V;
    Raw<V * sizeof(S)> v[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const u32 i = first + e * STEP;
        if (i + V <= n) v[e] = *(const Raw<V * sizeof(S)>*)(a + i);
    }
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const u32 i = first + e * STEP;
        if (i + V > n) break;
        compute_t<S> x[V];
        compute_t<D> r[V];
        unpack<S>(v[e], x);
#pragma unroll
        for (int k = 0; k < V; k++) r[k] = cast<compute_t<D>>(x[k]);
        store_vec(out + i, r);
    }
    // The remainder of less than a vector belongs to the thread that would have the next vector.
    u32 i = n & ~(V - 1);
    if (i - first >= EACH * STEP || (i - first) % STEP != 0) return;
#pragma unroll 1
    for (; i < n; i++) store(out[i], cast<compute_t<D>>(load(a[i])));
}

template <class S, class D>
__device__ __forceinline__ void strided(const S* a, D* out, const Params<Index<2>, Args>& p) {
    constexpr int V = vector_width(sizeof(S) > sizeof(D) ? sizeof(S) : sizeof(D));
    Run<2> run;
    if (!run_of<V>(p.space, (u32)thread(), out, run)) return;
    compute_t<S> x[V];
    compute_t<D> r[V];
    load_run(a + run.at[0], p.space.dims[0].strides[0], run, x);
#pragma unroll
    for (int k = 0; k < V; k++) r[k] = cast<compute_t<D>>(x[k]);
    store_run(out + run.at[1], p.space.dims[0].strides[1], run, r);
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
