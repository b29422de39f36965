// Functions for softmax: exponentials, and logarithms and reciprocals of their sums.

// Half-width results need only an approximation.
template <class T> __device__ __forceinline__ f32 exponential(f32 v) {
    if constexpr (sizeof(T) == 2) {
        f32 r;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v * 1.4426950408889634f));
        return r;
    } else {
        return expf(v);
    }
}
// The `f64` versions are not inlined: they are short to run, but slow to compile at each use.
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
// Returns the reciprocal of a sum, which is at least 1.
__device__ __forceinline__ f32 inverse(f32 v) {
    f32 r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}
__device__ __noinline__ f64 inverse(f64 v) { return 1 / v; }

// Returns negative infinity, from its bits. A quotient would be computed at run time.
template <class C> __device__ __forceinline__ C lowest() {
    if constexpr (same<C, f32>::value) return __int_as_float(0xff800000);
    else return __longlong_as_double(0xfff0000000000000);
}
