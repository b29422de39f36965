// Element types in memory, and their types of arithmetic. `host/element.rs` mirrors this file.

// A bool in memory: false if the byte is 0, otherwise true. Stores write 0 or 1.
struct boolean { u8 byte; };
struct f16 { u16 bits; };
struct bf16 { u16 bits; };

// `T` is the type in memory, `compute` the type of arithmetic.
template <class T> struct Element {
    typedef T compute;
    static __device__ __forceinline__ T load(T v) { return v; }
    static __device__ __forceinline__ T store(T v) { return v; }
};

template <> struct Element<boolean> {
    typedef bool compute;
    static __device__ __forceinline__ bool load(boolean v) { return v.byte != 0; }
    static __device__ __forceinline__ boolean store(bool v) { return boolean{(u8)v}; }
};

template <> struct Element<f16> {
    typedef f32 compute;
    static __device__ __forceinline__ f32 load(f16 v) {
        f32 r;
        asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v.bits));
        return r;
    }
    static __device__ __forceinline__ f16 store(f32 v) {
        f16 r;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(v));
        return r;
    }
};

template <> struct Element<bf16> {
    typedef f32 compute;
    static __device__ __forceinline__ f32 load(bf16 v) {
        return __uint_as_float((u32)v.bits << 16);
    }
    // Rounds to the nearest value, ties to even. On devices with the instruction in the comment, the
    // loader substitutes it for the block (`module/newer.rs`).
    static __device__ __forceinline__ bf16 store(f32 v) {
        bf16 r;
        asm("{ /* sm_80: cvt.rn.bf16.f32 %0, %1; */\n\t"
            ".reg .b32 bits, up;\n\t"
            ".reg .pred is_nan;\n\t"
            "mov.b32 bits, %1;\n\t"
            "bfe.u32 up, bits, 16, 1;\n\t"
            "add.u32 up, up, 0x7fff;\n\t"
            "add.u32 bits, bits, up;\n\t"
            "shr.u32 bits, bits, 16;\n\t"
            "setp.nan.f32 is_nan, %1, %1;\n\t"
            "selp.b32 bits, 0x7fff, bits, is_nan;\n\t"
            "cvt.u16.u32 %0, bits;\n\t"
            "}" : "=h"(r.bits) : "f"(v));
        return r;
    }
};

// All element types, with their codes as a `DType`.
#define EACH_DTYPE(X) \
    X(boolean, DTYPE_bool) \
    X(u8, DTYPE_u8) \
    X(i8, DTYPE_i8) \
    X(i16, DTYPE_i16) \
    X(i32, DTYPE_i32) \
    X(i64, DTYPE_i64) \
    X(f16, DTYPE_f16) \
    X(bf16, DTYPE_bf16) \
    X(f32, DTYPE_f32) \
    X(f64, DTYPE_f64)

template <class T> using compute_t = typename Element<T>::compute;

template <class T> __device__ __forceinline__ compute_t<T> load(const T& v) {
    return Element<T>::load(v);
}
template <class T> __device__ __forceinline__ void store(T& to, compute_t<T> v) {
    to = Element<T>::store(v);
}

template <class C> struct is_float { static const bool value = false; };
template <> struct is_float<f32> { static const bool value = true; };
template <> struct is_float<f64> { static const bool value = true; };
template <class A, class B> struct same { static const bool value = false; };
template <class A> struct same<A, A> { static const bool value = true; };

// BYTES bytes that are loaded at once, as 32-bit words or as one smaller word.
template <int BYTES> struct alignas(BYTES) Raw { u32 word[BYTES / 4]; };
template <> struct Raw<1> { u8 word[1]; };
template <> struct Raw<2> { u16 word[1]; };

// Converts between compute types as PyTorch and `Cast` in `host/element.rs` do. Floats convert to u8
// and i64 by way of i64, and to other integers by way of i32. They round towards zero and saturate at
// the intermediate type. A NaN becomes the least i64; as an i32, it becomes the least i32 from f64
// and 0 from f32. Integers wrap. All values but 0 are true.
template <class D, class S> __device__ __forceinline__ D cast(S v) {
    if constexpr (same<D, S>::value) {
        return v;
    } else if constexpr (same<D, bool>::value) {
        return v != (S)0;
    } else if constexpr (is_float<S>::value && !is_float<D>::value) {
        if constexpr (same<D, u8>::value || same<D, i64>::value) return (D)(i64)v;
        else return (D)(i32)v;
    } else {
        return (D)v;
    }
}

// Returns element `i` of any dtype, converted to `T`.
template <class T> __device__ __noinline__ T converted(const void* p, i32 i, u32 dtype) {
    switch (dtype) {
#define CONVERTED(S, code) case code: return Element<T>::store(cast<compute_t<T>>(load(((const S*)p)[i])));
        EACH_DTYPE(CONVERTED)
    }
    return T{};
}

// Converts a `T` to any dtype and writes it to element `i`.
template <class T> __device__ __noinline__ void convert_to(void* p, i32 i, u32 dtype, T v) {
    switch (dtype) {
#define CONVERT_TO(D, code) case code: store(((D*)p)[i], cast<compute_t<D>>(load(v))); break;
        EACH_DTYPE(CONVERT_TO)
    }
}

// Decodes a scalar operand as a compute type.
template <class C, class Bits> __device__ __forceinline__ C number(const Bits& bits) {
    if constexpr (same<C, f32>::value) return __uint_as_float(bits.low);
    else if constexpr (same<C, f64>::value) return __hiloint2double(bits.high, bits.low);
    else return (C)((u64)bits.high << 32 | bits.low);
}
