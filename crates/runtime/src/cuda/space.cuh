// The elements that a kernel of the iteration layer goes over: 32 bits suffice for them, since what is
// larger is launched in parts.

struct Runs;
template <int N> struct Index;

// Where element `i` of each operand lies.
template <int N>
__device__ __forceinline__ void offsets(const Index<N>& index, u32 i, i32 (&at)[N]) {
#pragma unroll
    for (int k = 0; k < N; k++) at[k] = 0;
    const int last = (int)index.ndim - 1;
#pragma unroll 1
    for (int d = 0; d < last; d++) {
        // i / sizes[d] by multiplication; exact for i < 2^31.
        const u32 next = (__umulhi(i, index.magic[d]) + i) >> index.shift[d];
        const i32 r = (i32)(i - next * index.sizes[d]);
#pragma unroll
        for (int k = 0; k < N; k++) at[k] += r * index.strides[k][d];
        i = next;
    }
    if (last >= 0) {
#pragma unroll
        for (int k = 0; k < N; k++) at[k] += (i32)i * index.strides[k][last];
    }
}

// What a thread has of a strided kernel's elements: those of `V` from `x` on, in a row of `size`, that are
// in the row. `at` is where the one at `x` lies in each operand.
template <int N> struct Run {
    i32 at[N], x;
    u32 size;
};

__device__ __forceinline__ u32 quotient(u32 i, u32 magic, u32 shift) {
    return (__umulhi(i, magic) + i) >> shift;
}

// The run of thread `i`, if it has one. `out` is the result, whose vectors decide where runs begin.
template <int V, int N, class T>
__device__ __forceinline__ bool run_of(const Index<N>& index, u32 i, const T* out, Run<N>& run) {
    const Runs& r = index.runs;
    const u32 across = r.lanes + r.warps;
    u32 x, y = 0, rest;
    int d = 1;
    if (across < 8) {
        const u32 lane = i % 32, warp = i / 32 % 8, tile = i / 256;
        const u32 next = quotient(tile, r.magic[0], r.shift[0]);
        rest = quotient(next, r.magic[1], r.shift[1]);
        x = (tile - next * r.count[0]) << across | (warp & ((1u << r.warps) - 1)) << r.lanes
            | (lane & ((1u << r.lanes) - 1));
        y = (next - rest * r.count[1]) << (8 - across) | (warp >> r.warps) << (5 - r.lanes)
            | lane >> r.lanes;
        if (y >= index.sizes[1]) return false;
        d = 2;
    } else {
        rest = quotient(i, r.magic[0], r.shift[0]);
        x = i - rest * r.count[0];
    }
#pragma unroll
    for (int k = 0; k < N; k++) run.at[k] = (i32)y * index.strides[k][1];
    const int last = (int)index.ndim - 1;
#pragma unroll 1
    for (; d < last; d++) {
        const u32 next = quotient(rest, index.magic[d], index.shift[d]);
        const i32 step = (i32)(rest - next * index.sizes[d]);
#pragma unroll
        for (int k = 0; k < N; k++) run.at[k] += step * index.strides[k][d];
        rest = next;
    }
    if (d == last) {
#pragma unroll
        for (int k = 0; k < N; k++) run.at[k] += (i32)rest * index.strides[k][last];
    }
    run.size = index.ndim ? index.sizes[0] : 1;
    run.x = (i32)(x * V);
    if (r.aligned) run.x -= (i32)(((u64)out / sizeof(T) + (u64)(i64)run.at[N - 1]) % V);
#pragma unroll
    for (int k = 0; k < N; k++) run.at[k] += run.x * index.strides[k][0];
    return run.x < (i32)run.size;
}

// Elements that one thread takes at a time: 16 bytes of the widest, but no more than 8.
__host__ __device__ constexpr int vector_width(int size) { return 16 / size < 8 ? 16 / size : 8; }

template <class T, int V> struct alignas(V * sizeof(T)) Vec {
    T v[V];
};

// `left` elements are there, and `p` is aligned to a whole vector.
template <class T, int V>
__device__ __forceinline__ void load_vec(const T* p, u64 left, compute_t<T> (&to)[V]) {
    Vec<T, V> raw = {};
    if (left >= V) {
        raw = *(const Vec<T, V>*)p;
    } else {
#pragma unroll
        for (int k = 0; k < V; k++) {
            if (k < left) raw.v[k] = p[k];
        }
    }
#pragma unroll
    for (int k = 0; k < V; k++) to[k] = load(raw.v[k]);
}

template <class T, int V>
__device__ __forceinline__ void store_vec(T* p, u64 left, const compute_t<T> (&from)[V]) {
    Vec<T, V> raw;
#pragma unroll
    for (int k = 0; k < V; k++) store(raw.v[k], from[k]);
    if (left >= V) {
        *(Vec<T, V>*)p = raw;
    } else {
#pragma unroll
        for (int k = 0; k < V; k++) {
            if (k < left) p[k] = raw.v[k];
        }
    }
}

// Whether a run is one whole vector that begins at `p`.
template <class T, int V, int N>
__device__ __forceinline__ bool is_vector(const T* p, i32 stride, const Run<N>& run) {
    return stride == 1 && run.x >= 0 && run.x + V <= (i32)run.size && (u64)p % (V * sizeof(T)) == 0;
}

// Element by element. Called: it would be much of each kernel's code.
template <class T, int V>
__device__ __noinline__ Vec<T, V> gather(const T* p, i32 stride, i32 x, u32 size) {
    Vec<T, V> raw = {};
#pragma unroll
    for (int k = 0; k < V; k++) {
        if ((u32)(x + k) < size) raw.v[k] = p[k * stride];
    }
    return raw;
}

template <class T, int V>
__device__ __noinline__ void scatter(T* p, i32 stride, i32 x, u32 size, Vec<T, V> raw) {
#pragma unroll
    for (int k = 0; k < V; k++) {
        if ((u32)(x + k) < size) p[k * stride] = raw.v[k];
    }
}

template <class T, int V, int N>
__device__ __forceinline__ void
load_run(const T* p, i32 stride, const Run<N>& run, compute_t<T> (&to)[V]) {
    if (stride == 0) {
        const compute_t<T> value = load(*p);
#pragma unroll
        for (int k = 0; k < V; k++) to[k] = value;
        return;
    }
    Vec<T, V> raw;
    if (is_vector<T, V>(p, stride, run)) raw = *(const Vec<T, V>*)p;
    else raw = gather<T, V>(p, stride, run.x, run.size);
#pragma unroll
    for (int k = 0; k < V; k++) to[k] = load(raw.v[k]);
}

template <class T, int V, int N>
__device__ __forceinline__ void
store_run(T* p, i32 stride, const Run<N>& run, const compute_t<T> (&from)[V]) {
    Vec<T, V> raw;
#pragma unroll
    for (int k = 0; k < V; k++) store(raw.v[k], from[k]);
    if (is_vector<T, V>(p, stride, run)) *(Vec<T, V>*)p = raw;
    else scatter<T, V>(p, stride, run.x, run.size, raw);
}

__device__ __forceinline__ u64 thread() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ u64 threads() { return (u64)gridDim.x * blockDim.x; }
