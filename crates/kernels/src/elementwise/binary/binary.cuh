// out = a op b, and out = a op scalar. The op is a parameter: the branch is the same for all
// threads and hides behind memory, and the module stays small to load.
#pragma once

#include "space.cuh"

struct Args {
    u32 op;
    u32 reversed; // the scalar is the left operand
    Number number;
};

// Codes of `BinaryOp`.
enum { ADD, SUB, MUL, DIV, MAXIMUM, MINIMUM, EQ, NE, LT, LE, GT, GE };

template <class C, class R, int V, class F>
__device__ __forceinline__ void each(const C (&a)[V], const C (&b)[V], R (&r)[V], F f) {
#pragma unroll
    for (int k = 0; k < V; k++) r[k] = f(a[k], b[k]);
}

// bool adds as `or` and multiplies as `and`, which is what converting back from int does.
template <class C, int V>
__device__ __forceinline__ void arithmetic(u32 op, const C (&a)[V], const C (&b)[V], C (&r)[V]) {
    switch (op) {
    case ADD: each(a, b, r, [](C x, C y) { return (C)(x + y); }); break;
    case SUB: each(a, b, r, [](C x, C y) { return (C)(x - y); }); break;
    case MUL: each(a, b, r, [](C x, C y) { return (C)(x * y); }); break;
    case DIV:
        if constexpr (is_float<C>::value) each(a, b, r, [](C x, C y) { return (C)(x / y); });
        break;
    // A NaN on either side is the result.
    case MAXIMUM: each(a, b, r, [](C x, C y) { return x > y || x != x ? x : y; }); break;
    case MINIMUM: each(a, b, r, [](C x, C y) { return x < y || x != x ? x : y; }); break;
    }
}

template <class C, int V>
__device__ __forceinline__ void comparison(u32 op, const C (&a)[V], const C (&b)[V], bool (&r)[V]) {
    switch (op) {
    case EQ: each(a, b, r, [](C x, C y) { return x == y; }); break;
    case NE: each(a, b, r, [](C x, C y) { return x != y; }); break;
    case LT: each(a, b, r, [](C x, C y) { return x < y; }); break;
    case LE: each(a, b, r, [](C x, C y) { return x <= y; }); break;
    case GT: each(a, b, r, [](C x, C y) { return x > y; }); break;
    case GE: each(a, b, r, [](C x, C y) { return x >= y; }); break;
    }
}

template <bool COMPARE, class C, class R, int V>
__device__ __forceinline__ void
combine(u32 op, const C (&a)[V], const C (&b)[V], R (&r)[V]) {
    if constexpr (COMPARE) {
        comparison(op, a, b, r);
    } else {
        arithmetic(op, a, b, r);
    }
}

template <bool COMPARE, class T, class O>
__device__ __forceinline__ void flat(const T* a, const T* b, O* out, const Params<Flat, Args>& p) {
    constexpr int V = vector_width(sizeof(T));
    const u64 n = p.space.numel;
    for (u64 i = thread() * V; i < n; i += threads() * V) {
        compute_t<T> x[V], y[V];
        compute_t<O> r[V];
        load_vec(a + i, n - i, x);
        load_vec(b + i, n - i, y);
        combine<COMPARE>(p.args.op, x, y, r);
        store_vec(out + i, n - i, r);
    }
}

template <bool COMPARE, class T, class O>
__device__ __forceinline__ void strided(const T* a, const T* b, O* out, const Params<Index<3>, Args>& p) {
    for (u64 i = thread(); i < p.space.numel; i += threads()) {
        i32 at[3];
        offsets(p.space, (u32)i, at);
        const compute_t<T> x[1] = {load(a[at[0]])}, y[1] = {load(b[at[1]])};
        compute_t<O> r[1];
        combine<COMPARE>(p.args.op, x, y, r);
        store(out[at[2]], r[0]);
    }
}

template <bool COMPARE, class T, class O>
__device__ __forceinline__ void scalar_flat(const T* a, O* out, const Params<Flat, Args>& p) {
    constexpr int V = vector_width(sizeof(T));
    const auto s = number<compute_t<T>>(p.args.number);
    const u64 n = p.space.numel;
    for (u64 i = thread() * V; i < n; i += threads() * V) {
        compute_t<T> x[V], y[V];
        compute_t<O> r[V];
        load_vec(a + i, n - i, x);
#pragma unroll
        for (int k = 0; k < V; k++) {
            const auto v = x[k];
            x[k] = p.args.reversed ? s : v;
            y[k] = p.args.reversed ? v : s;
        }
        combine<COMPARE>(p.args.op, x, y, r);
        store_vec(out + i, n - i, r);
    }
}

template <bool COMPARE, class T, class O>
__device__ __forceinline__ void scalar_strided(const T* a, O* out, const Params<Index<2>, Args>& p) {
    const auto s = number<compute_t<T>>(p.args.number);
    for (u64 i = thread(); i < p.space.numel; i += threads()) {
        i32 at[2];
        offsets(p.space, (u32)i, at);
        const auto v = load(a[at[0]]);
        const compute_t<T> x[1] = {p.args.reversed ? s : v}, y[1] = {p.args.reversed ? v : s};
        compute_t<O> r[1];
        combine<COMPARE>(p.args.op, x, y, r);
        store(out[at[1]], r[0]);
    }
}

#define KERNELS(prefix, COMPARE, name, T, O)                                                      \
    extern "C" __global__ void prefix##_##name##_flat(                                            \
        const T* a, const T* b, O* out, const __grid_constant__ Params<Flat, Args> p) {           \
        flat<COMPARE, T, O>(a, b, out, p);                                                        \
    }                                                                                             \
    extern "C" __global__ void prefix##_##name##_strided(                                         \
        const T* a, const T* b, O* out, const __grid_constant__ Params<Index<3>, Args> p) {       \
        strided<COMPARE, T, O>(a, b, out, p);                                                     \
    }                                                                                             \
    extern "C" __global__ void prefix##_scalar_##name##_flat(                                     \
        const T* a, O* out, const __grid_constant__ Params<Flat, Args> p) {                       \
        scalar_flat<COMPARE, T, O>(a, out, p);                                                    \
    }                                                                                             \
    extern "C" __global__ void prefix##_scalar_##name##_strided(                                  \
        const T* a, O* out, const __grid_constant__ Params<Index<2>, Args> p) {                   \
        scalar_strided<COMPARE, T, O>(a, out, p);                                                 \
    }

#define DTYPE(name, T)                                                                            \
    KERNELS(arithmetic, false, name, T, T)                                                        \
    KERNELS(comparison, true, name, T, boolean)
