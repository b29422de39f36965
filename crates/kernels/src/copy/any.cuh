// Conversion between any two dtypes, which are parameters.

// Integers and bools pass as i64, floats as f64, both exactly. Narrower floats are f32 again before
// they are converted: to which integer a NaN goes depends on that.
__device__ __forceinline__ bool is_float_code(u32 code) { return code >= DTYPE_f16; }
__device__ __forceinline__ bool is_double_code(u32 code) { return code == DTYPE_f64; }

__device__ __forceinline__ void convert(const void* a, i64 from, void* out, i64 to, const Args& args) {
    i64 i = 0;
    f64 f = 0;
    switch (args.from) {
#define LOAD(T, code) \
    case code: \
        if constexpr (is_float<compute_t<T>>::value) f = load(((const T*)a)[from]); \
        else i = load(((const T*)a)[from]); \
        break;
        EACH_DTYPE(LOAD)
    }
    const bool is_float = is_float_code(args.from);
    const bool is_double = is_double_code(args.from);
    switch (args.to) {
#define STORE(T, code) \
    case code: { \
        typedef compute_t<T> C; \
        store(((T*)out)[to], is_double ? cast<C>(f) : is_float ? cast<C>((f32)f) : cast<C>(i)); \
        break; \
    }
        EACH_DTYPE(STORE)
    }
}

extern "C" __global__ void cast_any_flat(
    const void* a, void* out, const __grid_constant__ Params<Flat, Args> p) {
    const u32 i = (u32)thread();
    if (i < p.space.numel) convert(a, i, out, i, p.args);
}

extern "C" __global__ void cast_any_strided(
    const void* a, void* out, const __grid_constant__ Params<Index<2>, Args> p) {
    const u32 i = (u32)thread();
    if (i >= p.space.numel) return;
    i32 at[2];
    offsets(p.space, i, at);
    convert(a, at[0], out, at[1], p.args);
}
