// Reductions over any dimensions.
//
// A block of 256 threads has `lanes` threads for each of `outs` results. Where few results are
// reduced from much, `splits` blocks share each, and a second kernel folds what they leave.

#define REDUCE_BLOCK 256

// Operands of `kept`.
enum { SOURCE, RESULT };

// ---- elements ----------------------------------------------------------------------------

template <class T> struct Load {
    typedef compute_t<T> value;
    static __device__ __forceinline__ value at(const void *p, u64, i64 i) {
        return load(((const T *)p)[i]);
    }
};

// Every integer and bool, as i64.
struct LoadInt {
    typedef i64 value;
    static __device__ __forceinline__ i64 at(const void *p, u64 dtype, i64 i) {
        switch (dtype) {
        case DTYPE_bool: return ((const u8 *)p)[i] != 0;
        case DTYPE_u8: return ((const u8 *)p)[i];
        case DTYPE_i8: return ((const i8 *)p)[i];
        case DTYPE_i16: return ((const i16 *)p)[i];
        case DTYPE_i32: return ((const i32 *)p)[i];
        default: return ((const i64 *)p)[i];
        }
    }
};

// Floats up to f32, as f32.
struct LoadFloat {
    typedef f32 value;
    static __device__ __forceinline__ f32 at(const void *p, u64 dtype, i64 i) {
        switch (dtype) {
        case DTYPE_f16: return load(((const f16 *)p)[i]);
        case DTYPE_bf16: return load(((const bf16 *)p)[i]);
        default: return ((const f32 *)p)[i];
        }
    }
};

// Whether an element of any dtype is not zero.
struct LoadTruth {
    typedef i64 value;
    static __device__ __forceinline__ i64 at(const void *p, u64 dtype, i64 i) {
        if (dtype < DTYPE_f16) return LoadInt::at(p, dtype, i) != 0;
        if (dtype < DTYPE_f64) return LoadFloat::at(p, dtype, i) != 0;
        return ((const f64 *)p)[i] != 0;
    }
};

__device__ __forceinline__ void put(void *p, u64 dtype, i64 i, f32 v) {
    switch (dtype) {
    case DTYPE_f16: store(((f16 *)p)[i], v); break;
    case DTYPE_bf16: store(((bf16 *)p)[i], v); break;
    default: ((f32 *)p)[i] = v;
    }
}
__device__ __forceinline__ void put(void *p, u64, i64 i, f64 v) { ((f64 *)p)[i] = v; }
__device__ __forceinline__ void put(void *p, u64 dtype, i64 i, i64 v) {
    switch (dtype) {
    case DTYPE_bool: ((u8 *)p)[i] = v != 0; break;
    case DTYPE_u8:
    case DTYPE_i8: ((u8 *)p)[i] = (u8)v; break;
    case DTYPE_i16: ((i16 *)p)[i] = (i16)v; break;
    case DTYPE_i32: ((i32 *)p)[i] = (i32)v; break;
    default: ((i64 *)p)[i] = v;
    }
}

// ---- what is done ------------------------------------------------------------------------

template <class A> struct Lowest;
template <> struct Lowest<f32> { static __device__ f32 get() { return -__int_as_float(0x7f800000); } };
template <> struct Lowest<f64> { static __device__ f64 get() { return -__longlong_as_double(0x7ff0000000000000ll); } };
template <> struct Lowest<i64> { static __device__ i64 get() { return (i64)(1ull << 63); } };
template <class A> struct Highest { static __device__ A get() { return -Lowest<A>::get(); } };
template <> struct Highest<i64> { static __device__ i64 get() { return (i64)~(1ull << 63); } };

__device__ __forceinline__ f32 scaled(f32 v, f64 scale) { return v * (f32)scale; }
__device__ __forceinline__ f64 scaled(f64 v, f64 scale) { return v * scale; }
__device__ __forceinline__ i64 scaled(i64 v, f64) { return v; }

template <class A> struct Sum {
    typedef A acc;
    static __device__ __forceinline__ A identity() { return 0; }
    static __device__ __forceinline__ A make(A v, u64) { return v; }
    static __device__ __forceinline__ A merge(A a, A b) { return a + b; }
    static __device__ __forceinline__ A result(A a, const Plan &p) { return scaled(a, p.scale); }
};

template <class A> struct Prod {
    typedef A acc;
    static __device__ __forceinline__ A identity() { return 1; }
    static __device__ __forceinline__ A make(A v, u64) { return v; }
    static __device__ __forceinline__ A merge(A a, A b) { return a * b; }
    static __device__ __forceinline__ A result(A a, const Plan &) { return a; }
};

// NaN wins.
template <class A> struct Max {
    typedef A acc;
    static __device__ __forceinline__ A identity() { return Lowest<A>::get(); }
    static __device__ __forceinline__ A make(A v, u64) { return v; }
    static __device__ __forceinline__ A merge(A a, A b) { return a > b || a != a ? a : b; }
    static __device__ __forceinline__ A result(A a, const Plan &) { return a; }
};

template <class A> struct Min {
    typedef A acc;
    static __device__ __forceinline__ A identity() { return Highest<A>::get(); }
    static __device__ __forceinline__ A make(A v, u64) { return v; }
    static __device__ __forceinline__ A merge(A a, A b) { return a < b || a != a ? a : b; }
    static __device__ __forceinline__ A result(A a, const Plan &) { return a; }
};

template <class A> struct Indexed {
    A value;
    i64 index;
};

// The first index of the extreme value; of the first NaN where there is one.
template <class A, bool MAX> struct Arg {
    typedef Indexed<A> acc;
    static __device__ __forceinline__ acc identity() {
        return {MAX ? Lowest<A>::get() : Highest<A>::get(), Highest<i64>::get()};
    }
    static __device__ __forceinline__ acc make(A v, u64 i) { return {v, (i64)i}; }
    static __device__ __forceinline__ acc merge(acc a, acc b) {
        const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
        const bool same = a.value == b.value || (a_nan && b_nan);
        const bool better = a_nan || (!b_nan && (MAX ? a.value > b.value : a.value < b.value));
        return (same ? a.index < b.index : better) ? a : b;
    }
    static __device__ __forceinline__ i64 result(acc a, const Plan &) { return a.index; }
};

// Over no elements any is false and all is true.
template <bool ALL> struct Truths {
    typedef i64 acc;
    static __device__ __forceinline__ i64 identity() { return ALL; }
    static __device__ __forceinline__ i64 make(i64 v, u64) { return v; }
    static __device__ __forceinline__ i64 merge(i64 a, i64 b) { return ALL ? a & b : a | b; }
    static __device__ __forceinline__ i64 result(i64 a, const Plan &) { return a; }
};
// ---- how -----------------------------------------------------------------------------------

// Folds the lanes of each result in a block; lane 0 has the answer.
template <class F>
__device__ __forceinline__ typename F::acc fold(typename F::acc a, u32 lane, u32 slot, u32 lanes, u32 outs) {
    typedef typename F::acc acc;
    __shared__ acc shared[REDUCE_BLOCK];
    shared[lane * outs + slot] = a;
    for (u32 half = lanes / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half) {
            a = F::merge(a, shared[(lane + half) * outs + slot]);
            shared[lane * outs + slot] = a;
        }
    }
    return a;
}

template <class F, class L>
__device__ __forceinline__ void reduce(const void *source, void *result, const Plan &p) {
    typedef typename F::acc acc;
    const u32 lanes = (u32)p.lanes, outs = (u32)p.outs;
    // Neighbouring threads read neighbouring elements: of one result, or of several. Both numbers are
    // powers of two.
    const u32 minor = p.outs_first ? outs : lanes;
    const u32 low = threadIdx.x & (minor - 1), high = threadIdx.x >> (31 - __clz(minor));
    const u32 lane = p.outs_first ? high : low, slot = p.outs_first ? low : high;
    const u64 output = (u64)blockIdx.x * outs + slot;
    acc a[4] = {F::identity(), F::identity(), F::identity(), F::identity()};
    if (output < p.outputs) {
        const i64 base = walk(p.kept, SOURCE, output);
        const u64 begin = blockIdx.y * p.chunk;
        const u64 end = begin + p.chunk < p.extent ? begin + p.chunk : p.extent;
        u64 i = begin + lane;
        if (p.reduced.ndim == 1) {
            const i64 stride = p.reduced.strides[SOURCE][0];
            for (; i + 3 * lanes < end; i += 4 * lanes) {
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const u64 at = i + k * lanes;
                    a[k] = F::merge(a[k], F::make(L::at(source, p.source_dtype, base + (i64)at * stride), at));
                }
            }
            for (; i < end; i += lanes) {
                a[0] = F::merge(a[0], F::make(L::at(source, p.source_dtype, base + (i64)i * stride), i));
            }
        } else {
            for (; i < end; i += lanes) {
                const i64 at = base + walk(p.reduced, SOURCE, i);
                a[0] = F::merge(a[0], F::make(L::at(source, p.source_dtype, at), i));
            }
        }
    }
    acc whole = fold<F>(F::merge(F::merge(a[0], a[1]), F::merge(a[2], a[3])), lane, slot, lanes, outs);
    if (lane != 0 || output >= p.outputs) return;
    if (p.splits > 1) {
        ((acc *)result)[blockIdx.y * p.outputs + output] = whole;
    } else {
        const i64 at = walk(p.kept, RESULT, output);
        put(result, p.result_dtype, at, F::result(whole, p));
    }
}

// Folds the splits of one result in each block.
template <class F>
__device__ __forceinline__ void finish(const typename F::acc *partial, void *result, const Plan &p) {
    typename F::acc a = F::identity();
    for (u64 s = threadIdx.x; s < p.splits; s += REDUCE_BLOCK) {
        a = F::merge(a, partial[s * p.outputs + blockIdx.x]);
    }
    a = fold<F>(a, threadIdx.x, 0, REDUCE_BLOCK, 1);
    if (threadIdx.x != 0) return;
    const i64 at = walk(p.kept, RESULT, blockIdx.x);
    put(result, p.result_dtype, at, F::result(a, p));
}
template <class A> using ArgMax = Arg<A, true>;
template <class A> using ArgMin = Arg<A, false>;

// A program's kernels: `FOLD` of what `LOAD` makes of elements.
#define REDUCTION(NAME, FOLD, LOAD)                                                            \
    typedef FOLD folded;                                                                       \
    extern "C" __global__ __launch_bounds__(REDUCE_BLOCK) void NAME##_reduce(                  \
        const void *source, void *result, const __grid_constant__ Plan p) {                    \
        reduce<folded, LOAD>(source, result, p);                                               \
    }                                                                                          \
    extern "C" __global__ __launch_bounds__(REDUCE_BLOCK) void NAME##_finish(                  \
        const folded::acc *partial, void *result, const __grid_constant__ Plan p) {            \
        finish<folded>(partial, result, p);                                                    \
    }
