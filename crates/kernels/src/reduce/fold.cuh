// Folds: the arithmetic of reductions.
//
// A fold `F` defines the accumulator of a thread (`Acc`), to which values are added with their
// index. A thread has `CHAINS` accumulators, because several make sums more exact. Threads and
// blocks merge `Part`s, and `put` stores the result. The driver compiles a kernel at first use, in
// a time that grows with its length. The code therefore unrolls little, and loops instead of repeating
// a call.

// Type of a value within a fold: i32 for bools and short integers, otherwise the compute type.
template <class T> struct ValueOf { typedef compute_t<T> type; };
template <> struct ValueOf<boolean> { typedef i32 type; };
template <> struct ValueOf<u8> { typedef i32 type; };
template <> struct ValueOf<i8> { typedef i32 type; };
template <> struct ValueOf<i16> { typedef i32 type; };
template <class T> using value_t = typename ValueOf<T>::type;

// Returns element `j` of a vector as a value.
template <class T, int BYTES> __device__ __forceinline__ value_t<T> value(const Raw<BYTES>& from, int j) {
    if constexpr (sizeof(T) >= 4 || BYTES < 4) {
        T t;
        memcpy(&t, &from.word[j * sizeof(T) / sizeof(from.word[0])], sizeof(T));
        return (value_t<T>)load(t);
    } else {
        const u32 word = from.word[j * sizeof(T) / 4];
        const int b = j * sizeof(T) % 4;
        if constexpr (same<T, u8>::value) return __byte_perm(word, 0, 0x4440 | b);
        else if constexpr (same<T, i8>::value) return (i32)(word << (24 - b * 8)) >> 24;
        else if constexpr (same<T, boolean>::value) return (word & 0xffu << b * 8) != 0;
        else if constexpr (same<T, i16>::value) return (i32)(word << (16 - b * 8)) >> 16;
        else if constexpr (same<T, bf16>::value) return __uint_as_float(b ? word & 0xffff0000 : word << 16);
        else return load(T{(u16)(word >> (b * 8))});
    }
}

template <bool C, class A, class B> struct Pick { typedef A type; };
template <class A, class B> struct Pick<false, A, B> { typedef B type; };

// Type of sums and products: i64 for all integers.
template <class V> struct Wide { typedef V type; };
template <> struct Wide<i32> { typedef i64 type; };

__device__ __forceinline__ f32 lowest(f32) { return -__int_as_float(0x7f800000); }
__device__ __forceinline__ f64 lowest(f64) { return -__longlong_as_double(0x7ff0000000000000ll); }
__device__ __forceinline__ i32 lowest(i32) { return (i32)(1u << 31); }
__device__ __forceinline__ i64 lowest(i64) { return (i64)(1ull << 63); }

__device__ __forceinline__ f32 scaled(f32 v, f64 scale) { return v * (f32)scale; }
__device__ __forceinline__ f64 scaled(f64 v, f64 scale) { return v * scale; }
__device__ __forceinline__ i64 scaled(i64 v, f64) { return v; }

__device__ __forceinline__ f32 flipped(f32 v, u32 flip) { return __uint_as_float(__float_as_uint(v) ^ (flip & 0x80000000)); }
__device__ __forceinline__ f64 flipped(f64 v, u32 flip) {
    return __hiloint2double(__double2hiint(v) ^ (flip & 0x80000000), __double2loint(v));
}
__device__ __forceinline__ i32 flipped(i32 v, u32 flip) { return v ^ (i32)flip; }
__device__ __forceinline__ i64 flipped(i64 v, u32 flip) { return v ^ (i32)flip; }

// Base of folds whose parts are accumulators.
template <class T, class A> struct Plain {
    typedef value_t<T> Value;
    typedef A Acc;
    typedef A Part;
    // `ZERO_IS_NEUTRAL`: an element whose bits are 0 changes nothing. `ORDERED`: elements must come
    // in order. `AT_A_TIME`: number of vectors per iteration of the loop over loaded vectors.
    enum { CHAINS = is_float<A>::value ? 4 : 1, ZERO_IS_NEUTRAL = 0, ORDERED = 0, AT_A_TIME = CHAINS > 1 ? 2 : 1 };
    static __device__ __forceinline__ Value take(Value v, u32) { return v; }
    static __device__ __forceinline__ A part(A a, u64) { return a; }
};

// Adds all elements of a vector.
template <class F, class T, int V, int C>
__device__ __forceinline__ void add_all(typename F::Acc (&a)[C], const Raw<V * sizeof(T)>& v, u32 flip, u32 index) {
#pragma unroll
    for (int j = 0; j < V; j++) F::add(a[j % C], F::take(value<T>(v, j), flip), index + j);
}

// A value and its index. An index of ~0 means that no element is beyond the identity. For a whole
// result, it means that all elements equal the identity, so that the first of them has index 0.
template <class A, class I> struct Indexed {
    A value;
    I index;
};

// Returns an integer that orders as the value does. Both zeros have one key, and a NaN has the
// largest.
__device__ __forceinline__ i32 key(i32 v) { return v; }
__device__ __forceinline__ i64 key(i64 v) { return v; }
__device__ __forceinline__ i32 key(f32 v) {
    const i32 bits = __float_as_int(v + 0);
    return v != v ? 0x7fffffff : bits ^ (bits >> 31 & 0x7fffffff);
}
__device__ __forceinline__ i64 key(f64 v) {
    const i64 bits = __double_as_longlong(v + 0);
    return v != v ? 0x7fffffffffffffffll : bits ^ (bits >> 63 & 0x7fffffffffffffffll);
}
template <class V> using Key = decltype(key(V()));
