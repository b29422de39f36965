// What reductions do with elements.
//
// A fold `F` says what a thread keeps (`Acc`) of `Value`s with their place in what it goes over, how many
// of these it keeps side by side (`CHAINS`: sums are the more exact for it), what threads and blocks merge
// (`Part`), and what is stored.

// What elements are reduced as: floats as what they are computed in, short integers as i32.
template <class T> struct ValueOf { typedef compute_t<T> type; };
template <> struct ValueOf<boolean> { typedef i32 type; };
template <> struct ValueOf<u8> { typedef i32 type; };
template <> struct ValueOf<i8> { typedef i32 type; };
template <> struct ValueOf<i16> { typedef i32 type; };
template <class T> using value_t = typename ValueOf<T>::type;

template <bool C, class A, class B> struct Pick { typedef A type; };
template <class A, class B> struct Pick<false, A, B> { typedef B type; };

// What sums and products are computed in.
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

// A fold of values that are merged as what they are.
template <class T, class A> struct Plain {
    typedef value_t<T> Value;
    typedef A Acc;
    typedef A Part;
    // Whether an element whose bits are zero changes nothing.
    enum { CHAINS = is_float<A>::value ? 4 : 1, SKIPS_ZERO = 0 };
    static __device__ __forceinline__ Value take(Value v, u32) { return v; }
    static __device__ __forceinline__ A part(A a, u64) { return a; }
};

// Integers add up to i64, and so do their products.
template <class T, class A = typename Wide<value_t<T>>::type> struct Sum : Plain<T, A> {
    typedef typename Pick<is_float<A>::value, T, i64>::type Result;
    enum { SKIPS_ZERO = 1 };
    static __device__ __forceinline__ A identity() { return 0; }
    static __device__ __forceinline__ void add(A& a, value_t<T> v, u32) { a += v; }
    static __device__ __forceinline__ A merge(A a, A b) { return a + b; }
    static __device__ __forceinline__ void put(Result* to, A a, const Plan& p) { store(*to, scaled(a, p.scale)); }
};

template <class T, class A = typename Wide<value_t<T>>::type> struct Prod : Plain<T, A> {
    typedef typename Pick<is_float<A>::value, T, i64>::type Result;
    static __device__ __forceinline__ A identity() { return 1; }
    static __device__ __forceinline__ void add(A& a, value_t<T> v, u32) { a *= v; }
    static __device__ __forceinline__ A merge(A a, A b) { return a * b; }
    static __device__ __forceinline__ void put(Result* to, A a, const Plan&) { store(*to, a); }
};

// The largest; NaN wins.
template <class T> struct Extreme : Plain<T, value_t<T>> {
    typedef value_t<T> V;
    typedef T Result;
    static __device__ __forceinline__ V take(V v, u32 flip) { return flipped(v, flip); }
    static __device__ __forceinline__ V identity() { return lowest(V()); }
    static __device__ __forceinline__ V merge(V a, V b) { return a >= b || a != a ? a : b; }
    static __device__ __forceinline__ void add(V& a, V v, u32) { a = merge(a, v); }
    static __device__ __forceinline__ void put(T* to, V v, const Plan& p) {
        store(*to, (compute_t<T>)flipped(v, p.flip));
    }
};

// No element: where none is beyond the identity, all are equal to it, and the first is theirs.
template <class A, class I> struct Indexed {
    A value;
    I index;
};

// The first index of the largest; of the first NaN where there is one.
template <class T> struct ArgExtreme {
    typedef value_t<T> Value;
    // A thread's indices count from where its block begins, in 32 bits.
    typedef Indexed<Value, u32> Acc;
    typedef Indexed<Value, u64> Part;
    typedef i64 Result;
    enum { CHAINS = 1, SKIPS_ZERO = 0 };
    static __device__ __forceinline__ Acc identity() { return {lowest(Value()), ~0u}; }
    static __device__ __forceinline__ Value take(Value v, u32 flip) { return flipped(v, flip); }
    static __device__ __forceinline__ bool beyond(Value v, Value than) {
        return !(v <= than) && than == than;
    }
    // Of elements in their order.
    static __device__ __forceinline__ void add(Acc& a, Value v, u32 index) {
        if (beyond(v, a.value)) a = {v, index};
    }
    template <class I> static __device__ __forceinline__ Indexed<Value, I> merge(Indexed<Value, I> a, Indexed<Value, I> b) {
        const bool same = a.value == b.value || (a.value != a.value && b.value != b.value);
        return (same ? b.index < a.index : beyond(b.value, a.value)) ? b : a;
    }
    static __device__ __forceinline__ Part part(Acc a, u64 begin) {
        return {a.value, a.index == ~0u ? ~0ull : begin + a.index};
    }
    static __device__ __forceinline__ void put(i64* to, Part a, const Plan&) { *to = a.index == ~0ull ? 0 : (i64)a.index; }
};

// Whether any is true. Over no elements none is.
template <class T> struct Truth : Plain<T, u32> {
    typedef u8 Result;
    static __device__ __forceinline__ u32 identity() { return 0; }
    static __device__ __forceinline__ i32 take(value_t<T> v, u32 flip) { return (v != 0) ^ (flip & 1); }
    static __device__ __forceinline__ u32 merge(u32 a, u32 b) { return a | b; }
    static __device__ __forceinline__ void add(u32& a, i32 v, u32) { a |= v; }
    static __device__ __forceinline__ void put(u8* to, u32 a, const Plan& p) { *to = (u8)(a ^ (p.flip & 1)); }
};
