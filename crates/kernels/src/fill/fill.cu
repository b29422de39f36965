// One value, or evenly spaced ones.
#include "space.cuh"

struct Fill {
    u64 bits; // the element, in the low bytes
};

template <class T>
__device__ __forceinline__ void flat(T* out, const Params<Flat, Fill>& p) {
    constexpr int V = vector_width(sizeof(T));
    T v[V];
#pragma unroll
    for (int k = 0; k < V; k++) v[k] = (T)p.args.bits;
    const u64 n = p.space.numel;
    for (u64 i = thread() * V; i < n; i += threads() * V) store_vec(out + i, n - i, v);
}

#define FILL(name, T)                                                                             \
    extern "C" __global__ void fill_##name##_flat(                                                \
        T* out, const __grid_constant__ Params<Flat, Fill> p) {                                   \
        flat(out, p);                                                                             \
    }                                                                                             \
    extern "C" __global__ void fill_##name##_strided(                                             \
        T* out, const __grid_constant__ Params<Index<1>, Fill> p) {                               \
        for (u64 i = thread(); i < p.space.numel; i += threads()) {                               \
            i32 at[1];                                                                            \
            offsets(p.space, (u32)i, at);                                                         \
            out[at[0]] = (T)p.args.bits;                                                          \
        }                                                                                         \
    }

FILL(1_byte, u8)
FILL(2_bytes, u16)
FILL(4_bytes, u32)
FILL(8_bytes, u64)

struct Sequence {
    u64 numel;
    i64 stride;
    u64 middle; // from here on values are counted back from `last`
    u64 exact;  // in integers, as first_int + i * step_int
    f64 first;
    f64 last;
    f64 step;
    i64 first_int;
    i64 step_int;
};

#define SEQUENCE(name, T)                                                                         \
    extern "C" __global__ void sequence_##name(T* out, const __grid_constant__ Sequence p) {      \
        typedef compute_t<T> C;                                                                   \
        for (u64 i = thread(); i < p.numel; i += threads()) {                                     \
            C value;                                                                              \
            if (p.exact) {                                                                        \
                value = cast<C>(p.first_int + (i64)i * p.step_int);                               \
            } else if (i < p.middle) {                                                            \
                value = cast<C>(__dadd_rn(p.first, __dmul_rn(p.step, (f64)i)));                   \
            } else {                                                                              \
                const f64 left = (f64)(p.numel - 1 - i);                                          \
                value = cast<C>(__dsub_rn(p.last, __dmul_rn(p.step, left)));                      \
            }                                                                                     \
            store(out[(i64)i * p.stride], value);                                                 \
        }                                                                                         \
    }

SEQUENCE(u8, u8)
SEQUENCE(i8, i8)
SEQUENCE(i16, i16)
SEQUENCE(i32, i32)
SEQUENCE(i64, i64)
SEQUENCE(f16, f16)
SEQUENCE(bf16, bf16)
SEQUENCE(f32, f32)
SEQUENCE(f64, f64)
