//! The reductions.

use warpline_runtime::module::Program;

use super::declaration::reductions;

reductions! {
    SUM = "sum", "Sum", r#"
// Sums and products of integers are i64.
template <class T, class A = typename Wide<value_t<T>>::type> struct Sum : Plain<T, A> {
    typedef typename Pick<is_float<A>::value, T, i64>::type Result;
    enum { ZERO_IS_NEUTRAL = 1 };
    static __device__ __forceinline__ A identity() { return 0; }
    static __device__ __forceinline__ void add(A& a, value_t<T> v, u32) { a += v; }
    static __device__ __forceinline__ A merge(A a, A b) { return a + b; }
    static __device__ __forceinline__ void put(Result* to, A a, const Plan& p) { store(*to, scaled(a, p.scale)); }
};"#, all {
        /// `torch.sum`. Integers and bool are summed in `int64`.
        Sum = "sum" => Wide, (fold::Sum);
        /// `torch.mean`. Supports only floats.
        Mean = "mean" => Float, (fold::Sum), averages;
    }
    PROD = "prod", "Prod", r#"
template <class T, class A = typename Wide<value_t<T>>::type> struct Prod : Plain<T, A> {
    typedef typename Pick<is_float<A>::value, T, i64>::type Result;
    static __device__ __forceinline__ A identity() { return 1; }
    static __device__ __forceinline__ void add(A& a, value_t<T> v, u32) { a *= v; }
    static __device__ __forceinline__ A merge(A a, A b) { return a * b; }
    static __device__ __forceinline__ void put(Result* to, A a, const Plan&) { store(*to, a); }
};"#, all {
        /// `torch.prod`. Integers and bool are multiplied in `int64`.
        Prod = "prod" => Wide, { T::Wide: Number::from_number(1i64), |x| x.wide(), |a, b| a.mul(b) };
    }
    EXTREME = "extreme", "Extreme", r#"
// The largest value. A NaN is larger than all numbers.
template <class T> struct Extreme : Plain<T, value_t<T>> {
    typedef value_t<T> V;
    typedef T Result;
    enum { CHAINS = 1, AT_A_TIME = 1 };
    static __device__ __forceinline__ V take(V v, u32 flip) { return flipped(v, flip); }
    static __device__ __forceinline__ V identity() { return lowest(V()); }
    static __device__ __forceinline__ V merge(V a, V b) { return a >= b || a != a ? a : b; }
    static __device__ __forceinline__ void add(V& a, V v, u32) { a = merge(a, v); }
    static __device__ __forceinline__ void put(T* to, V v, const Plan& p) {
        store(*to, (compute_t<T>)flipped(v, p.flip));
    }
};"#, all {
        /// `torch.amax`. NaN if an element is NaN.
        Max = "amax" => Same, { T::Own: Number::LOWEST, |x| x.own(), |a, b| a.maximum(b) },
            needs_elements;
        /// `torch.amin`. NaN if an element is NaN.
        Min = "amin" => Same, { T::Own: Number::HIGHEST, |x| x.own(), |a, b| a.minimum(b) },
            flips, needs_elements;
    }
    ARG_EXTREME = "arg_extreme", "ArgExtreme", r#"
// Index of the first largest value, or of the first NaN if there is one.
template <class T> struct ArgExtreme {
    typedef value_t<T> Value;
    // A thread counts indices from the first element of its block, in 32 bits.
    typedef Indexed<Value, u32> Acc;
    typedef Indexed<Key<Value>, u64> Part;
    typedef i64 Result;
    enum { CHAINS = 1, ZERO_IS_NEUTRAL = 0, ORDERED = 1, AT_A_TIME = 1 };
    static __device__ __forceinline__ Acc identity() { return {lowest(Value()), ~0u}; }
    static __device__ __forceinline__ Value take(Value v, u32 flip) { return flipped(v, flip); }
    static __device__ __forceinline__ bool beyond(Value v, Value than) {
        return !(v <= than) && than == than;
    }
    // Elements must come in ascending order of their indices.
    static __device__ __forceinline__ void add(Acc& a, Value v, u32 index) {
        if (beyond(v, a.value)) a = {v, index};
    }
    static __device__ __forceinline__ Part merge(Part a, Part b) {
        return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
    }
    static __device__ __forceinline__ Part part(Acc a, u64 begin) {
        return {key(a.value), a.index == ~0u ? ~0ull : begin + a.index};
    }
    static __device__ __forceinline__ void put(i64* to, Part a, const Plan&) { *to = a.index == ~0ull ? 0 : (i64)a.index; }
};"#, number {
        /// `torch.argmax`: the index of the first largest value, as `int64`. A NaN is larger than
        /// any number. Does not support bool.
        ArgMax = "argmax" => Index, (Arg<true>), needs_elements;
        /// `torch.argmin`: the index of the first smallest value, as `int64`. A NaN is smaller than
        /// any number. Does not support bool.
        ArgMin = "argmin" => Index, (Arg<false>), flips, needs_elements;
    }
    TRUTH = "truth", "Truth", r#"
// Whether any element is true. Without elements the result is false.
template <class T> struct Truth : Plain<T, u32> {
    typedef u8 Result;
    static __device__ __forceinline__ u32 identity() { return 0; }
    static __device__ __forceinline__ i32 take(value_t<T> v, u32 flip) { return (v != 0) ^ (flip & 1); }
    static __device__ __forceinline__ u32 merge(u32 a, u32 b) { return a | b; }
    static __device__ __forceinline__ void add(u32& a, i32 v, u32) { a |= v; }
    static __device__ __forceinline__ void put(u8* to, u32 a, const Plan& p) { *to = (u8)(a ^ (p.flip & 1)); }
};"#, truth {
        /// `torch.any`: whether any element is not zero. The result is bool, or `uint8` for
        /// `uint8`.
        Any = "any" => Truth, { u8: 0, |x| x.truth(), |a, b| a | b };
        /// `torch.all`: whether no element is zero. The result is bool, or `uint8` for `uint8`.
        All = "all" => Truth, { u8: 1, |x| x.truth(), |a, b| a & b }, flips;
    }
}
