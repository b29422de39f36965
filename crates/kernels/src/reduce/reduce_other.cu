// Products, and whether any or all elements are not zero.
#include "reduce.cuh"

typedef Prod<f32> prod_f32;
typedef Prod<f64> prod_f64;
typedef Prod<i64> prod_int;
REDUCE(prod_f32, prod_f32, LoadFloat)
REDUCE(prod_f64, prod_f64, Load<f64>)
REDUCE(prod_int, prod_int, LoadInt)
FINISH(prod_f32, prod_f32)
FINISH(prod_f64, prod_f64)
FINISH(prod_int, prod_int)

// Over no elements any is false and all is true.
template <bool ALL> struct Truths {
    typedef i64 acc;
    static __device__ __forceinline__ i64 identity() { return ALL; }
    static __device__ __forceinline__ i64 make(i64 v, u64) { return v; }
    static __device__ __forceinline__ i64 merge(i64 a, i64 b) { return ALL ? a & b : a | b; }
    static __device__ __forceinline__ i64 result(i64 a, const Plan &) { return a; }
};
typedef Truths<false> any_truth;
typedef Truths<true> all_truth;
REDUCE(any, any_truth, LoadTruth)
REDUCE(all, all_truth, LoadTruth)
FINISH(any, any_truth)
FINISH(all, all_truth)
