// out = a, converted where the dtypes differ. Common pairs have a kernel each; of the others one
// takes both dtypes as parameters. Strided copies of one dtype only know the size of an element.
#include "space.cuh"

struct Args {
    u32 from;
    u32 to;
};

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
    for (u64 i = thread(); i < p.space.numel; i += threads()) {
        i32 at[2];
        offsets(p.space, (u32)i, at);
        store(out[at[1]], cast<compute_t<D>>(load(a[at[0]])));
    }
}

// Codes of `DType`.
#define DTYPES(X)                                                                                 \
    X(boolean, 0)                                                                                 \
    X(u8, 1)                                                                                      \
    X(i8, 2)                                                                                      \
    X(i16, 3)                                                                                     \
    X(i32, 4)                                                                                     \
    X(i64, 5)                                                                                     \
    X(f16, 6)                                                                                     \
    X(bf16, 7)                                                                                    \
    X(f32, 8)                                                                                     \
    X(f64, 9)

// Integers and bools pass as i64, floats as f64, both exactly. Narrower floats are f32 again before
// they are converted: to which integer a NaN goes depends on that.
__device__ __forceinline__ bool is_float_code(u32 code) { return code >= 6; }
__device__ __forceinline__ bool is_double_code(u32 code) { return code == 9; }

__device__ __forceinline__ void convert(const void* a, i64 from, void* out, i64 to, const Args& args) {
    i64 i = 0;
    f64 f = 0;
    switch (args.from) {
#define LOAD(T, code)                                                                             \
    case code:                                                                                    \
        if constexpr (is_float<compute_t<T>>::value) f = load(((const T*)a)[from]);               \
        else i = load(((const T*)a)[from]);                                                       \
        break;
        DTYPES(LOAD)
    }
    const bool is_float = is_float_code(args.from);
    const bool is_double = is_double_code(args.from);
    switch (args.to) {
#define STORE(T, code)                                                                            \
    case code: {                                                                                  \
        typedef compute_t<T> C;                                                                   \
        store(((T*)out)[to], is_double ? cast<C>(f) : is_float ? cast<C>((f32)f) : cast<C>(i));   \
        break;                                                                                    \
    }
        DTYPES(STORE)
    }
}

extern "C" __global__ void copy_any_flat(
    const void* a, void* out, const __grid_constant__ Params<Flat, Args> p) {
    for (u64 i = thread(); i < p.space.numel; i += threads()) convert(a, i, out, i, p.args);
}

extern "C" __global__ void copy_any_strided(
    const void* a, void* out, const __grid_constant__ Params<Index<2>, Args> p) {
    for (u64 i = thread(); i < p.space.numel; i += threads()) {
        i32 at[2];
        offsets(p.space, (u32)i, at);
        convert(a, at[0], out, at[1], p.args);
    }
}

#define KERNELS(name, S, D)                                                                       \
    extern "C" __global__ void copy_##name##_flat(                                                \
        const S* a, D* out, const __grid_constant__ Params<Flat, Args> p) {                       \
        flat(a, out, p);                                                                          \
    }                                                                                             \
    extern "C" __global__ void copy_##name##_strided(                                             \
        const S* a, D* out, const __grid_constant__ Params<Index<2>, Args> p) {                   \
        strided(a, out, p);                                                                       \
    }

KERNELS(1_byte, u8, u8)
KERNELS(2_bytes, u16, u16)
KERNELS(4_bytes, u32, u32)
KERNELS(8_bytes, u64, u64)
KERNELS(f32_f16, f32, f16)
KERNELS(f16_f32, f16, f32)
KERNELS(f32_bf16, f32, bf16)
KERNELS(bf16_f32, bf16, f32)
KERNELS(f32_f64, f32, f64)
KERNELS(f64_f32, f64, f32)
KERNELS(i64_f32, i64, f32)
KERNELS(i32_f32, i32, f32)
KERNELS(u8_f32, u8, f32)
KERNELS(bool_f32, boolean, f32)
KERNELS(f32_i64, f32, i64)
KERNELS(bool_i64, boolean, i64)
KERNELS(i32_i64, i32, i64)
KERNELS(i64_i32, i64, i32)
