// What softmax is made of: exponentials, and what becomes of their sum.

// What is stored with fewer bits is computed with fewer.
template <class T> __device__ __forceinline__ f32 exponential(f32 v) {
    if constexpr (sizeof(T) == 2) {
        f32 r;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v * 1.4426950408889634f));
        return r;
    } else {
        return expf(v);
    }
}
// Those of `f64` are called, here and there: each is short to run and long to compile.
template <class T> __device__ __noinline__ f64 exponential(f64 v) { return exp(v); }
template <int V> __device__ __noinline__ Vec<f64, V> exponentials(Vec<f64, V> v) {
#pragma unroll
    for (int j = 0; j < V; j++) v.v[j] = exp(v.v[j]);
    return v;
}
template <class T, int V> __device__ __forceinline__ Vec<f32, V> exponentials(Vec<f32, V> v) {
#pragma unroll
    for (int j = 0; j < V; j++) v.v[j] = exponential<T>(v.v[j]);
    return v;
}
template <class T, int V> __device__ __forceinline__ Vec<f64, V> exponentials(Vec<f64, V> v) {
    return exponentials<V>(v);
}
__device__ __noinline__ f32 logarithm(f32 v) { return logf(v); }
__device__ __noinline__ f64 logarithm(f64 v) { return log(v); }
// Of a sum, which is no less than 1.
__device__ __forceinline__ f32 inverse(f32 v) {
    f32 r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}
__device__ __noinline__ f64 inverse(f64 v) { return 1 / v; }

// Negative infinity, as bits: a quotient would be computed.
template <class C> __device__ __forceinline__ C lowest() {
    if constexpr (same<C, f32>::value) return __int_as_float(0xff800000);
    else return __longlong_as_double(0xfff0000000000000);
}
