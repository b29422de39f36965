// out = op(a). Ops of floats have a kernel each where memory is contiguous; elsewhere, and for
// integers, one kernel per dtype takes the op as a parameter.
#pragma once

#include "space.cuh"

// Comparing an unsigned integer with zero is what an op means, if seldom.
#pragma nv_diag_suppress 186

struct Args {
    u32 op;
    u32 unused;
};

// Names and codes of `UnaryOp`; the first eight also work on integers.
#define INT_OPS(X)                                                                                \
    X(neg, 0)                                                                                     \
    X(abs, 1)                                                                                     \
    X(sign, 2)                                                                                    \
    X(square, 3)                                                                                  \
    X(relu, 4)                                                                                    \
    X(floor, 5)                                                                                   \
    X(ceil, 6)                                                                                    \
    X(round, 7)

#define FLOAT_OPS(X)                                                                              \
    X(exp, 8)                                                                                     \
    X(expm1, 9)                                                                                   \
    X(log, 10)                                                                                    \
    X(log1p, 11)                                                                                  \
    X(sqrt, 12)                                                                                   \
    X(rsqrt, 13)                                                                                  \
    X(reciprocal, 14)                                                                             \
    X(sin, 15)                                                                                    \
    X(cos, 16)                                                                                    \
    X(tanh, 17)                                                                                   \
    X(erf, 18)                                                                                    \
    X(sigmoid, 19)                                                                                \
    X(silu, 20)                                                                                   \
    X(gelu, 21)                                                                                   \
    X(gelu_tanh, 22)

namespace op {

template <class C> __device__ __forceinline__ C neg(C x) {
    if constexpr (same<C, bool>::value) return x;
    else return (C)-x;
}
template <class C> __device__ __forceinline__ C sign(C x) { return (C)((x > (C)0) - (x < (C)0)); }
template <class C> __device__ __forceinline__ C square(C x) { return (C)(x * x); }
// A NaN stays one.
template <class C> __device__ __forceinline__ C relu(C x) { return x < (C)0 ? (C)0 : x; }

template <class C> __device__ __forceinline__ C abs(C x) {
    if constexpr (same<C, f32>::value) return fabsf(x);
    else if constexpr (same<C, f64>::value) return fabs(x);
    else return x < (C)0 ? (C)-x : x;
}

// Integers are what they round to.
#define ROUNDING(name, function)                                                                  \
    template <class C> __device__ __forceinline__ C name(C x) {                                   \
        if constexpr (same<C, f32>::value) return function##f(x);                                 \
        else if constexpr (same<C, f64>::value) return function(x);                               \
        else return x;                                                                            \
    }
ROUNDING(floor, ::floor)
ROUNDING(ceil, ::ceil)
// To even where two are as near.
ROUNDING(round, ::rint)

#define BOTH(name, function)                                                                      \
    __device__ __forceinline__ f32 name(f32 x) { return function##f(x); }                         \
    __device__ __forceinline__ f64 name(f64 x) { return function(x); }
BOTH(exp, ::exp)
BOTH(expm1, ::expm1)
BOTH(log, ::log)
BOTH(log1p, ::log1p)
BOTH(sqrt, ::sqrt)
BOTH(rsqrt, ::rsqrt)
BOTH(sin, ::sin)
BOTH(cos, ::cos)
BOTH(tanh, ::tanh)
BOTH(erf, ::erf)

template <class C> __device__ __forceinline__ C reciprocal(C x) { return (C)1 / x; }
template <class C> __device__ __forceinline__ C sigmoid(C x) { return (C)1 / ((C)1 + exp(-x)); }
template <class C> __device__ __forceinline__ C silu(C x) { return x / ((C)1 + exp(-x)); }

template <class C> __device__ __forceinline__ C gelu(C x) {
    const C sqrt_half = (C)0.70710678118654752440;
    // The last term is nothing but for infinities, of which PyTorch's CPU library makes NaN.
    return x * (C)0.5 * ((C)1 + erf(x * sqrt_half)) + (C)0 * x;
}

template <class C> __device__ __forceinline__ C gelu_tanh(C x) {
    const C sqrt_2_over_pi = (C)0.79788456080286535588;
    const C inner = sqrt_2_over_pi * (x + (C)0.044715 * x * x * x);
    return (C)0.5 * x * ((C)1 + tanh(inner));
}

} // namespace op

// Four at a time at most: the ops themselves are long.
__host__ __device__ constexpr int unary_width(int size) {
    return vector_width(size) < 4 ? vector_width(size) : 4;
}

template <class C, int V, class F> __device__ __forceinline__ void each(C (&x)[V], F f) {
#pragma unroll
    for (int k = 0; k < V; k++) x[k] = f(x[k]);
}

template <class T, class F>
__device__ __forceinline__ void flat(const T* a, T* out, const Params<Flat, Args>& p, F f) {
    constexpr int V = unary_width(sizeof(T));
    const u64 n = p.space.numel;
    for (u64 i = thread() * V; i < n; i += threads() * V) {
        compute_t<T> x[V];
        load_vec(a + i, n - i, x);
        each(x, f);
        store_vec(out + i, n - i, x);
    }
}

template <class T> __device__ __forceinline__ compute_t<T> apply(u32 code, compute_t<T> x) {
    typedef compute_t<T> C;
#define CASE(name, value)                                                                         \
    case value: return op::name(x);
    if constexpr (is_float<C>::value) {
        switch (code) { INT_OPS(CASE) FLOAT_OPS(CASE) }
    } else {
        switch (code) { INT_OPS(CASE) }
    }
#undef CASE
    return x;
}

template <class T>
__device__ __forceinline__ void strided(const T* a, T* out, const Params<Index<2>, Args>& p) {
    for (u64 i = thread(); i < p.space.numel; i += threads()) {
        i32 at[2];
        offsets(p.space, (u32)i, at);
        store(out[at[1]], apply<T>(p.args.op, load(a[at[0]])));
    }
}

#define STRIDED(name, T)                                                                          \
    extern "C" __global__ void unary_##name##_strided(                                            \
        const T* a, T* out, const __grid_constant__ Params<Index<2>, Args> p) {                   \
        strided(a, out, p);                                                                       \
    }

#define INT_KERNELS(name, T)                                                                      \
    STRIDED(name, T)                                                                              \
    extern "C" __global__ void unary_##name##_flat(                                               \
        const T* a, T* out, const __grid_constant__ Params<Flat, Args> p) {                       \
        flat(a, out, p, [=](compute_t<T> x) { return apply<T>(p.args.op, x); });                  \
    }

#define FLOAT_KERNEL(name, T, f)                                                                  \
    extern "C" __global__ void unary_##f##_##name##_flat(                                         \
        const T* a, T* out, const __grid_constant__ Params<Flat, Args> p) {                       \
        flat(a, out, p, [](compute_t<T> x) { return op::f(x); });                                 \
    }
