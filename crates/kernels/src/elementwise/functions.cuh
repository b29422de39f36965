// What ops' expressions call: CUDA's functions, by the type that is computed in.
#define FUNCTION(name, function)                                                                  \
    __device__ __forceinline__ f32 name(f32 x) { return function##f(x); }                         \
    __device__ __forceinline__ f64 name(f64 x) { return function(x); }
FUNCTION(exp_of, exp)
FUNCTION(expm1_of, expm1)
FUNCTION(log_of, log)
FUNCTION(log1p_of, log1p)
FUNCTION(sqrt_of, sqrt)
FUNCTION(rsqrt_of, rsqrt)
FUNCTION(sin_of, sin)
FUNCTION(cos_of, cos)
FUNCTION(tanh_of, tanh)
FUNCTION(erf_of, erf)

// Integers are what they round to.
#define ROUNDING(name, function)                                                                  \
    template <class C> __device__ __forceinline__ C name(C x) {                                   \
        if constexpr (same<C, f32>::value) return function##f(x);                                 \
        else if constexpr (same<C, f64>::value) return function(x);                               \
        else return x;                                                                            \
    }
ROUNDING(floor_of, floor)
ROUNDING(ceil_of, ceil)
// To even where two are as near.
ROUNDING(round_of, rint)

template <class C> __device__ __forceinline__ C absolute(C x) {
    if constexpr (same<C, f32>::value) return fabsf(x);
    else if constexpr (same<C, f64>::value) return fabs(x);
    else return x < (C)0 ? (C)-x : x;
}

template <class C> __device__ __forceinline__ C gelu_of(C x) {
    const C sqrt_half = (C)0.70710678118654752440;
    // The last term is nothing but for infinities, of which PyTorch's CPU library makes NaN.
    return x * (C)0.5 * ((C)1 + erf_of(x * sqrt_half)) + (C)0 * x;
}

template <class C> __device__ __forceinline__ C gelu_tanh_of(C x) {
    const C sqrt_2_over_pi = (C)0.79788456080286535588;
    const C inner = sqrt_2_over_pi * (x + (C)0.044715 * x * x * x);
    return (C)0.5 * x * ((C)1 + tanh_of(inner));
}
