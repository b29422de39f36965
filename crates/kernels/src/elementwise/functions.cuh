// Functions that the expressions of ops call, by compute type. Empty lines separate the
// definitions, and an op's source contains only the definitions that it calls.

#define FUNCTION(name, function)                                                                  \
    __device__ __forceinline__ f32 name(f32 x) { return function##f(x); }                         \
    __device__ __forceinline__ f64 name(f64 x) { return function(x); }
FUNCTION(exp_of, exp)
FUNCTION(log_of, log)
FUNCTION(sqrt_of, sqrt)
FUNCTION(rsqrt_of, rsqrt)
FUNCTION(tanh_of, tanh)
FUNCTION(erf_of, erf)
FUNCTION(erfc_of, erfc)
FUNCTION(exp2_of, exp2)
FUNCTION(log2_of, log2)
FUNCTION(log10_of, log10)

#define FUNCTION_OF_TWO(name, function)                                                           \
    __device__ __forceinline__ f32 name(f32 x, f32 y) { return function##f(x, y); }               \
    __device__ __forceinline__ f64 name(f64 x, f64 y) { return function(x, y); }
FUNCTION_OF_TWO(with_sign, copysign)

// Long functions are not inlined. An unrolled loop would contain up to eight copies, which the driver
// would compile at first use.
#define LONG_FUNCTION(name, function)                                                             \
    __device__ __noinline__ f32 name(f32 x) { return function##f(x); }                            \
    __device__ __noinline__ f64 name(f64 x) { return function(x); }
LONG_FUNCTION(sin_of, sin)
LONG_FUNCTION(cos_of, cos)
LONG_FUNCTION(tan_of, tan)
LONG_FUNCTION(asin_of, asin)
LONG_FUNCTION(acos_of, acos)
LONG_FUNCTION(atan_of, atan)
LONG_FUNCTION(sinh_of, sinh)
LONG_FUNCTION(cosh_of, cosh)
LONG_FUNCTION(asinh_of, asinh)
LONG_FUNCTION(acosh_of, acosh)
LONG_FUNCTION(atanh_of, atanh)
LONG_FUNCTION(expm1_of, expm1)
LONG_FUNCTION(log1p_of, log1p)
LONG_FUNCTION(erfinv_of, erfinv)
LONG_FUNCTION(lgamma_of, lgamma)

#define LONG_FUNCTION_OF_TWO(name, function)                                                      \
    __device__ __noinline__ f32 name(f32 x, f32 y) { return function##f(x, y); }                  \
    __device__ __noinline__ f64 name(f64 x, f64 y) { return function(x, y); }
LONG_FUNCTION_OF_TWO(atan2_of, atan2)
LONG_FUNCTION_OF_TWO(hypot_of, hypot)
LONG_FUNCTION_OF_TWO(next_after, nextafter)
LONG_FUNCTION_OF_TWO(fmod_of, fmod)
LONG_FUNCTION_OF_TWO(pow_of, pow)

// Rounding does not change integers.
#define ROUNDING(name, function)                                                                  \
    template <class C> __device__ __forceinline__ C name(C x) {                                   \
        if constexpr (same<C, f32>::value) return function##f(x);                                 \
        else if constexpr (same<C, f64>::value) return function(x);                               \
        else return x;                                                                            \
    }
ROUNDING(floor_of, floor)
ROUNDING(ceil_of, ceil)
ROUNDING(trunc_of, trunc)
// Rounds to the nearest integer, ties to even.
ROUNDING(round_of, rint)

template <class C> __device__ __forceinline__ C absolute(C x) {
    if constexpr (same<C, f32>::value) return fabsf(x);
    else if constexpr (same<C, f64>::value) return fabs(x);
    else return x < (C)0 ? (C)-x : x;
}

template <class C> __device__ __forceinline__ C gelu_of(C x) {
    const C sqrt_half = (C)0.70710678118654752440;
    return x * (C)0.5 * ((C)1 + erf_of(x * sqrt_half));
}

template <class C> __device__ __forceinline__ C gelu_tanh_of(C x) {
    const C sqrt_2_over_pi = (C)0.79788456080286535588;
    const C inner = sqrt_2_over_pi * (x + (C)0.044715 * x * x * x);
    return (C)0.5 * x * ((C)1 + tanh_of(inner));
}

template <class C> __device__ __forceinline__ C silu_slope(C x) {
    const C sigmoid = (C)1 / ((C)1 + exp_of(-x));
    return sigmoid * ((C)1 + x * ((C)1 - sigmoid));
}

template <class C> __device__ __forceinline__ C gelu_slope(C x) {
    const C bell = (C)0.39894228040143267794 * exp_of((C)-0.5 * x * x);
    return (C)0.5 * ((C)1 + erf_of(x * (C)0.70710678118654752440)) + x * bell;
}

template <class C> __device__ __forceinline__ C gelu_tanh_slope(C x) {
    const C beta = (C)0.79788456080286535588, square = x * x;
    const C tanh = tanh_of(beta * x * ((C)1 + (C)0.044715 * square));
    const C inner = beta * ((C)1 + (C)0.134145 * square);
    return (C)0.5 * ((C)1 + tanh) + (C)0.5 * x * ((C)1 - tanh * tanh) * inner;
}

template <class C> __device__ __forceinline__ C largest() {
    if constexpr (same<C, f32>::value) return 3.402823466e+38f;
    else return 1.7976931348623157e+308;
}

template <class C> __device__ __forceinline__ bool truth(C x) { return x != (C)0; }

template <class C> __device__ __forceinline__ bool negative(C x) {
    if constexpr (is_float<C>::value) return with_sign((C)1, x) < (C)0;
    else return x < (C)0;
}

template <class C> __device__ __forceinline__ C inverted(C x) {
    if constexpr (same<C, bool>::value) return !x;
    else return ~x;
}

// Returns NaN if any argument is NaN.
template <class C> __device__ __forceinline__ C clamped(C x, C low, C high) {
    if (x != x || low != low) return x != x && low == low ? x : low;
    x = x < low ? low : x;
    return x > high || high != high ? high : x;
}

// Not inlined: a quotient takes a few instructions, but many more for subnormal numbers.
template <class C> __device__ __noinline__ C quotient_of(C x, C y) { return x / y; }

// Rounds to a multiple of 1 / scale, or of -scale if `scale` is negative. Both cases share one
// division, because a division takes long to compile.
template <class C> __device__ __forceinline__ C round_to(C x, C scale) {
    const bool multiples = scale < (C)0;
    const C quotient = (multiples ? x : round_of(x * scale)) / scale;
    return multiples ? round_of(quotient) * scale : quotient;
}

// Quotients and remainders, rounded towards zero or down. An integer divided by 0 gives all bits
// set, and the remainder is the dividend. An integer is negated instead of divided by -1, because
// the quotient of the least integer would overflow.
template <class C> __device__ __forceinline__ C over(C x, C y) {
    if constexpr (is_float<C>::value) return trunc_of(quotient_of(x, y));
    else if (y == (C)0) return (C)-1;
    else if ((C)-1 < (C)0 && y == (C)-1) return (C)(0 - (u64)x);
    else return x / y;
}

template <class C> __device__ __forceinline__ C rest(C x, C y) {
    if constexpr (is_float<C>::value) return fmod_of(x, y);
    else if (y == (C)0) return x;
    else if ((C)-1 < (C)0 && y == (C)-1) return (C)0;
    else return x % y;
}

template <class C> __device__ __noinline__ C floor_rest(C x, C y) {
    const C r = rest(x, y);
    return r != (C)0 && (r < (C)0) != (y < (C)0) ? (C)(r + y) : r;
}

template <class C> __device__ __noinline__ C floor_over(C x, C y) {
    if constexpr (is_float<C>::value) {
        if (y == (C)0) return x / y;
        const C r = rest(x, y);
        C quotient = (x - r) / y;
        if (r != (C)0 && (r < (C)0) != (y < (C)0)) quotient -= (C)1;
        if (quotient == (C)0) return with_sign((C)0, x / y);
        const C floor = floor_of(quotient);
        return quotient - floor > (C)0.5 ? floor + (C)1 : floor;
    } else {
        const C r = rest(x, y);
        const C quotient = over(x, y);
        return y != (C)0 && r != (C)0 && (r < (C)0) != (y < (C)0) ? (C)(quotient - 1) : quotient;
    }
}

// Integers wrap. A negative exponent gives 0 unless the base is 1 or -1.
template <class C> __device__ __noinline__ C power(C x, C y) {
    if constexpr (is_float<C>::value) {
        return pow_of(x, y);
    } else {
        if (y < (C)0) return x == (C)1 ? (C)1 : x == (C)-1 ? (y & 1 ? x : (C)1) : (C)0;
        u64 base = (u64)x, result = 1;
#pragma unroll 1
        for (u64 left = (u64)y; left; left >>= 1) {
            if (left & 1) result *= base;
            base *= base;
        }
        return (C)result;
    }
}

template <class C> __device__ __forceinline__ C shifted_left(C x, C count) {
    return count < (C)0 || (u64)count >= 8 * sizeof(C) ? (C)0 : (C)((u64)x << count);
}

template <class C> __device__ __forceinline__ C shifted_right(C x, C count) {
    // After a shift by the number of bits less one, all bits of a signed integer equal the sign
    // bit.
    const u64 most = 8 * sizeof(C) - ((C)-1 < (C)0);
    const i64 wide = (i64)x;
    return (C)(wide >> (count < (C)0 || (u64)count > most ? most : (u64)count));
}

template <class C> __device__ __noinline__ C common_divisor(C x, C y) {
    C a = absolute(x), b = absolute(y);
#pragma unroll 1
    while (a != (C)0) {
        const C r = rest(b, a);
        b = a;
        a = r;
    }
    return b;
}

template <class C> __device__ __noinline__ C common_multiple(C x, C y) {
    const C divisor = common_divisor(x, y);
    return divisor == (C)0 ? (C)0 : absolute((C)((u64)over(x, divisor) * (u64)y));
}

template <class C> __device__ __noinline__ C softplus_of(C x) { return log1p_of(exp_of(x)); }

template <class C> __device__ __noinline__ C log_add_exp(C x, C y) {
    if (x == y && absolute(x) > largest<C>()) return x;
    return (x > y ? x : y) + softplus_of(-absolute(x - y));
}

template <class C> __device__ __noinline__ C log2_add_exp2(C x, C y) {
    if (x == y && absolute(x) > largest<C>()) return x;
    return (x > y ? x : y) + log1p_of(exp2_of(-absolute(x - y))) * (C)1.4426950408889634074;
}

template <class C> __device__ __noinline__ C sinc_of(C x) {
    const C angle = (C)3.14159265358979323846 * x;
    return angle == (C)0 ? (C)1 : sin_of(angle) / angle;
}

// A negative `eps` means that there is none.
template <class C> __device__ __noinline__ C logit_of(C x, C eps) {
    if (!(eps < (C)0)) x = clamped(x, eps, (C)1 - eps);
    return log_of(x / ((C)1 - x));
}

// Uses the asymptotic series from 10 on. Recurrence raises smaller arguments, and reflection
// replaces negative ones.
template <class C> __device__ __noinline__ C digamma_of(C x) {
    if (x == (C)0) return with_sign((C)1 / (C)0, -x);
    C sum = (C)0;
    if (x < (C)0) {
        if (x == trunc_of(x)) return (C)0 / (C)0;
        const f64 part = (f64)(x - trunc_of(x));
        sum = (C)(-3.14159265358979323846 * cospi(part) / sinpi(part));
        x = (C)1 - x;
    }
#pragma unroll 1
    for (; x < (C)10; x += (C)1) sum -= (C)1 / x;
    const C z = (C)1 / (x * x);
    C series = (C)8.33333333333333333333e-2;
    series = series * z - (C)2.10927960927960927961e-2;
    series = series * z + (C)7.57575757575757575758e-3;
    series = series * z - (C)4.16666666666666666667e-3;
    series = series * z + (C)3.96825396825396825397e-3;
    series = series * z - (C)8.33333333333333333333e-3;
    series = series * z + (C)8.33333333333333333333e-2;
    return sum + log_of(x) - (C)0.5 / x - z * series;
}
