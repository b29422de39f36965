// Elements that a kernel of the iteration layer visits. Their numbers fit in 32 bits, because larger
// operands are launched in parts.

struct Runs;
template <int N> struct Index;

// Returns i / d, computed by multiplication. Exact for i < 2^31.
__device__ __forceinline__ u32 quotient(u32 i, u32 magic, u32 shift) {
    return (__umulhi(i, magic) + i) >> shift;
}

// Computes the offset of element `i` in each operand.
template <int N>
__device__ __forceinline__ void offsets(const Index<N>& index, u32 i, i32 (&at)[N]) {
#pragma unroll
    for (int k = 0; k < N; k++) at[k] = 0;
    const int ndim = (int)index.ndim;
#pragma unroll 1
    for (int d = 0; d < ndim; d++) {
        const u32 next = quotient(i, index.dims[d].magic, index.dims[d].shift);
        const i32 step = (i32)(i - next * index.dims[d].size);
#pragma unroll
        for (int k = 0; k < N; k++) at[k] += step * index.dims[d].strides[k];
        i = next;
    }
}

// The elements of one thread of a strided kernel: up to `V` elements of a row of `size`, at positions
// x, x + apart, ... . Positions outside the row are skipped. `at` is the offset of position `x` in each
// operand.
template <int N> struct Run {
    i32 at[N], x;
    u32 size, apart;
};

// Returns whether element `k` of a run lies in the row.
template <int N> __device__ __forceinline__ bool has(const Run<N>& run, int k) {
    return run.x + k * run.apart < run.size;
}

// Computes the run of thread `i`. Returns false if the thread has none. If `index.runs.aligned` is set,
// runs begin at aligned vectors of the result `out`.
template <int V, int N, class T>
__device__ __forceinline__ bool run_of(const Index<N>& index, u32 i, const T* out, Run<N>& run) {
    const Runs& r = index.runs;
    if (i >= r.threads) return false;
    const u32 across = r.lanes + r.warps;
    const bool tiles = across < 8;
    const u32 first = tiles ? i / 256 : i;
    u32 rest = quotient(first, r.magic[0], r.shift[0]);
    u32 x = first - rest * r.count[0], y = 0;
    int d = 1;
    if (tiles) {
        const u32 lane = i % 32, warp = i / 32 % 8, next = quotient(rest, r.magic[1], r.shift[1]);
        x = x << across | (warp & ((1u << r.warps) - 1)) << r.lanes | (lane & ((1u << r.lanes) - 1));
        y = (rest - next * r.count[1]) << (8 - across) | (warp >> r.warps) << (5 - r.lanes)
            | lane >> r.lanes;
        if (y >= index.dims[1].size) return false;
        rest = next;
        d = 2;
    }
#pragma unroll
    for (int k = 0; k < N; k++) run.at[k] = (i32)y * index.dims[1].strides[k];
    const int ndim = (int)index.ndim;
#pragma unroll 1
    for (; d < ndim; d++) {
        const u32 next = quotient(rest, index.dims[d].magic, index.dims[d].shift);
        const i32 step = (i32)(rest - next * index.dims[d].size);
#pragma unroll
        for (int k = 0; k < N; k++) run.at[k] += step * index.dims[d].strides[k];
        rest = next;
    }
    run.size = index.ndim ? index.dims[0].size : 1;
    run.apart = r.apart;
    run.x = (i32)((x & ~(r.apart - 1)) * V + (x & (r.apart - 1)));
    if (r.aligned) run.x -= (i32)(((u64)out / sizeof(T) + (u64)(i64)run.at[N - 1]) % V);
#pragma unroll
    for (int k = 0; k < N; k++) run.at[k] += run.x * index.dims[0].strides[k];
    return run.x < (i32)run.size;
}

// Number of elements per thread: 16 bytes of the widest dtype, but at most 8.
__host__ __device__ constexpr int vector_width(int size) { return 16 / size < 8 ? 16 / size : 8; }

template <class T, int V> struct alignas(V * sizeof(T)) Vec {
    T v[V];
};

// Splits loaded words into the elements of a vector.
template <class T, int V>
__device__ __forceinline__ void unpack(const Raw<V * sizeof(T)>& from, compute_t<T> (&to)[V]) {
    constexpr int OF_WORD = sizeof(from.word[0]) / sizeof(T);
#pragma unroll
    for (int k = 0; k < V; k++) {
        T element;
        if constexpr (OF_WORD > 1) {
            const u32 bits = from.word[k / OF_WORD] >> k % OF_WORD * sizeof(T) * 8;
            memcpy(&element, &bits, sizeof(T));
        } else {
            memcpy(&element, &from.word[k * sizeof(T) / sizeof(from.word[0])], sizeof(T));
        }
        to[k] = load(element);
    }
}

// Loads a whole vector. `p` must be aligned to the vector.
template <class T, int V>
__device__ __forceinline__ void load_vec(const T* p, compute_t<T> (&to)[V]) {
    const Raw<V * sizeof(T)> raw = *(const Raw<V * sizeof(T)>*)p;
    unpack<T>(raw, to);
}

template <class T, int V>
__device__ __forceinline__ void store_vec(T* p, const compute_t<T> (&from)[V]) {
    Vec<T, V> raw;
#pragma unroll
    for (int k = 0; k < V; k++) store(raw.v[k], from[k]);
    *(Vec<T, V>*)p = raw;
}

// Returns whether a run is one whole, aligned vector at `p`. `stride` is the distance of its elements.
template <class T, int V, int N>
__device__ __forceinline__ bool is_vector(const T* p, i32 stride, const Run<N>& run) {
    return stride == 1 && run.x >= 0 && run.x + V <= (i32)run.size && (u64)p % (V * sizeof(T)) == 0;
}

template <class T, int V, int N>
__device__ __forceinline__ void
load_run(const T* p, i32 stride, const Run<N>& run, compute_t<T> (&to)[V]) {
    Vec<T, V> raw = {};
    stride *= (i32)run.apart;
    if (is_vector<T, V>(p, stride, run)) {
        raw = *(const Vec<T, V>*)p;
    } else {
#pragma unroll
        for (int k = 0; k < V; k++) {
            if (has(run, k)) raw.v[k] = p[k * stride];
        }
    }
#pragma unroll
    for (int k = 0; k < V; k++) to[k] = load(raw.v[k]);
}

template <class T, int V, int N>
__device__ __forceinline__ void
store_run(T* p, i32 stride, const Run<N>& run, const compute_t<T> (&from)[V]) {
    Vec<T, V> raw;
#pragma unroll
    for (int k = 0; k < V; k++) store(raw.v[k], from[k]);
    stride *= (i32)run.apart;
    if (is_vector<T, V>(p, stride, run)) {
        *(Vec<T, V>*)p = raw;
    } else {
#pragma unroll
        for (int k = 0; k < V; k++) {
            if (has(run, k)) p[k * stride] = raw.v[k];
        }
    }
}

// Returns the number of this thread. The iteration layer uses blocks of 256 threads; reading the block
// size would cost as much as loading a cache line of parameters.
__device__ __forceinline__ u64 thread() { return (u64)blockIdx.x * 256 + threadIdx.x; }
