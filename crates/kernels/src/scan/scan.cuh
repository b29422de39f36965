// Running results: each element of a row combined with all elements before it.

// The state of a sum or product is its value. The initial state is the neutral element.
template <class C> struct Sum {
    typedef C State;
    static __device__ __forceinline__ State none() { return (C)0; }
    static __device__ __forceinline__ State of(C v, i64) { return v; }
    static __device__ __forceinline__ State both(State a, State b) {
        if constexpr (same<C, bool>::value) return a || b;
        else return (C)(a + b);
    }
    static __device__ __forceinline__ C value(State s) { return s; }
    static __device__ __forceinline__ i64 index(State) { return 0; }
};

template <class C> struct Prod : Sum<C> {
    static __device__ __forceinline__ C none() { return (C)1; }
    static __device__ __forceinline__ C both(C a, C b) {
        if constexpr (same<C, bool>::value) return a && b;
        else return (C)(a * b);
    }
};

// The largest or the smallest element, with the index of its last occurrence. A NaN beats all
// numbers, and the last NaN counts.
template <class C, bool LARGEST> struct Best {
    struct State { C v; i64 i; };
    static __device__ __forceinline__ State none() { return State{(C)0, -1}; }
    static __device__ __forceinline__ State of(C v, i64 i) { return State{v, i}; }
    static __device__ __forceinline__ State both(State a, State b) {
        if (b.i < 0) return a;
        if (a.i < 0 || b.v != b.v) return b;
        if (a.v != a.v) return a;
        return (LARGEST ? b.v >= a.v : b.v <= a.v) ? b : a;
    }
    static __device__ __forceinline__ C value(State s) { return s.v; }
    static __device__ __forceinline__ i64 index(State s) { return s.i; }
};

// Scans a row per block, tile by tile.
template <class Op, bool INDEXED, class T>
__device__ __forceinline__ void rows(const T* in, T* out, i64* index, const Scan& p) {
    typedef typename Op::State State;
    __shared__ State all[2][BLOCK];
    const T* from = in + walk(p.walk, 0, blockIdx.x);
    T* to = out + walk(p.walk, 1, blockIdx.x);
    i64* at = INDEXED ? index + walk(p.walk, 2, blockIdx.x) : index;
    State before = Op::none();
    for (i64 tile = 0; tile < (i64)p.size; tile += BLOCK * EACH) {
        const i64 first = tile + threadIdx.x * EACH;
        State own[EACH];
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            own[j] = Op::none();
            if (first + j < (i64)p.size) own[j] = Op::of(load(from[(first + j) * p.steps[0]]), first + j);
        }
#pragma unroll
        for (int j = 1; j < EACH; j++) own[j] = Op::both(own[j - 1], own[j]);
        u32 side = 0;
        all[0][threadIdx.x] = own[EACH - 1];
        __syncthreads();
        for (u32 d = 1; d < BLOCK; d *= 2, side ^= 1) {
            State s = all[side][threadIdx.x];
            if (threadIdx.x >= d) s = Op::both(all[side][threadIdx.x - d], s);
            all[side ^ 1][threadIdx.x] = s;
            __syncthreads();
        }
        const State left = threadIdx.x ? Op::both(before, all[side][threadIdx.x - 1]) : before;
        before = Op::both(before, all[side][BLOCK - 1]);
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            if (first + j >= (i64)p.size) break;
            const State s = Op::both(left, own[j]);
            store(to[(first + j) * p.steps[1]], Op::value(s));
            if constexpr (INDEXED) at[(first + j) * p.steps[2]] = Op::index(s);
        }
        __syncthreads();
    }
}

// Scans a row per thread. For many rows whose elements are not adjacent: neighbouring threads then
// read elements of neighbouring rows.
template <class Op, bool INDEXED, class T>
__device__ __forceinline__ void columns(const T* in, T* out, i64* index, const Scan& p) {
    const u64 row = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= p.rows) return;
    const T* from = in + walk(p.walk, 0, row);
    T* to = out + walk(p.walk, 1, row);
    i64* at = INDEXED ? index + walk(p.walk, 2, row) : index;
    typename Op::State s = Op::none();
    for (i64 i = 0; i < (i64)p.size; i++) {
        s = Op::both(s, Op::of(load(from[i * p.steps[0]]), i));
        store(to[i * p.steps[1]], Op::value(s));
        if constexpr (INDEXED) at[i * p.steps[2]] = Op::index(s);
    }
}

#define SCAN(NAME, T, ...)                                                                        \
    extern "C" __global__ __launch_bounds__(BLOCK) void NAME(                                     \
        const T* in, T* out, const __grid_constant__ Scan p) {                                    \
        rows<__VA_ARGS__, false>(in, out, (i64*)0, p);                                            \
    }                                                                                             \
    extern "C" __global__ __launch_bounds__(BLOCK) void NAME##_columns(                           \
        const T* in, T* out, const __grid_constant__ Scan p) {                                    \
        columns<__VA_ARGS__, false>(in, out, (i64*)0, p);                                         \
    }

#define INDEXED_SCAN(NAME, T, ...)                                                                \
    extern "C" __global__ __launch_bounds__(BLOCK) void NAME(                                     \
        const T* in, T* out, i64* index, const __grid_constant__ Scan p) {                        \
        rows<__VA_ARGS__, true>(in, out, index, p);                                               \
    }                                                                                             \
    extern "C" __global__ __launch_bounds__(BLOCK) void NAME##_columns(                           \
        const T* in, T* out, i64* index, const __grid_constant__ Scan p) {                        \
        columns<__VA_ARGS__, true>(in, out, index, p);                                            \
    }
