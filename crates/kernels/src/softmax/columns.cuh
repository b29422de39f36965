// Softmax over a dimension that is not the innermost, and over rows with any strides.

// Each thread has `V` neighbouring columns, and shares them with other threads of a block that is
// `p.height` threads high. The elements are read once for the sums, and a second time from the end,
// where the cache may still hold them.
template <class T, int V, int U>
__device__ __forceinline__ void columns(const T* source, T* result, const Rows& p) {
    typedef compute_t<T> C;
    __shared__ C largest[COLUMN_THREADS * V], sums[COLUMN_THREADS * V];
    const u32 height = (u32)p.height, lanes = blockDim.x / height, width = lanes * V;
    const u32 lane = threadIdx.x % lanes, y = threadIdx.x / lanes;
    const u32 tiles = (u32)p.tiles, others = blockIdx.x / tiles;
    const u64 x = (u64)(blockIdx.x - others * tiles) * width + lane * V;
    const T* from = source + walk(p.walk, 0, others) + x;
    T* to = result + walk(p.walk, 1, others) + x;
    const u32 size = x < p.columns ? (u32)p.size : 0;
    C m[V], s[V], v[U][V];
#pragma unroll
    for (int j = 0; j < V; j++) {
        m[j] = lowest<C>();
        s[j] = 0;
    }
    for (u32 r = y; r < size; r += height * U) {
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (r + u * height < size) {
                loaded(*(const Vec<T, V>*)(from + (i64)(r + u * height) * p.source_step), v[u]);
            } else {
#pragma unroll
                for (int j = 0; j < V; j++) v[u][j] = lowest<C>();
            }
        }
#pragma unroll
        for (int j = 0; j < V; j++) {
            C now = m[j];
#pragma unroll
            for (int u = 0; u < U; u++) now = Larger::of(now, v[u][j]);
            const C base = now == lowest<C>() ? (C)0 : now;
            s[j] = rescaled<T>(s[j], m[j], now);
            m[j] = now;
#pragma unroll
            for (int u = 0; u < U; u++) s[j] += exponential<T>(v[u][j] - base);
        }
    }
#pragma unroll
    for (int j = 0; j < V; j++) {
        largest[threadIdx.x * V + j] = m[j];
        sums[threadIdx.x * V + j] = s[j];
    }
    // `height` is a power of two.
    for (u32 half = height / 2; half > 0; half /= 2) {
        __syncthreads();
        for (u32 e = threadIdx.x; e < half * width; e += blockDim.x) {
            const C a = largest[e], b = largest[e + half * width], l = Larger::of(a, b);
            sums[e] = rescaled<T>(sums[e], a, l) + rescaled<T>(sums[e + half * width], b, l);
            largest[e] = l;
        }
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < V; j++) {
        m[j] = largest[lane * V + j];
        s[j] = p.log ? logarithm(sums[lane * V + j]) : inverse(sums[lane * V + j]);
    }
    if (y >= size) return;
    const u32 rounds = (size - y + height * U - 1) / (height * U);
    for (u32 n = rounds; n-- > 0;) {
        const u32 r = y + n * height * U;
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (r + u * height < size) {
                loaded(*(const Vec<T, V>*)(from + (i64)(r + u * height) * p.source_step), v[u]);
            }
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (r + u * height >= size) continue;
            Vec<T, V> raw;
#pragma unroll
            for (int j = 0; j < V; j++) {
                const C x = v[u][j] - m[j];
                store(raw.v[j], p.log ? x - s[j] : exponential<T>(x) * s[j]);
            }
            *(Vec<T, V>*)(to + (i64)(r + u * height) * p.result_step) = raw;
        }
    }
}

// Processes rows with any strides, one block per row.
template <class T> __device__ __forceinline__ void any_rows(const T* source, T* result, const Rows& p) {
    typedef compute_t<T> C;
    __shared__ C shared[64];
    for (u64 row = blockIdx.x; row < p.rows; row += gridDim.x) {
        const T* from = source + walk(p.walk, 0, row);
        T* to = result + walk(p.walk, 1, row);
        C largest = lowest<C>(), sum = 0;
#pragma unroll 1
        for (u64 i = threadIdx.x; i < p.size; i += blockDim.x) {
            const C x = load(from[(i64)i * p.source_step]), now = Larger::of(largest, x);
            const C base = now == lowest<C>() ? (C)0 : now;
            sum = rescaled<T>(sum, largest, now) + exponential<T>(x - base);
            largest = now;
        }
        const C all = fold_block<Larger>(largest, shared, lowest<C>());
        sum = fold_block<Plus>(rescaled<T>(sum, largest, all), shared + 32, (C)0);
        const Result<T, C> becomes(all, sum, p.log);
#pragma unroll 1
        for (u64 i = threadIdx.x; i < p.size; i += blockDim.x) {
            store(to[(i64)i * p.result_step], becomes.of(load(from[(i64)i * p.source_step])));
        }
        // The folds of the next row write `shared`, which threads may still be reading.
        __syncthreads();
    }
}

#define KERNEL(T, name, bounds, ...)                                                              \
    extern "C" __global__ __launch_bounds__ bounds void softmax_##T##_##name(                     \
        const T* source, T* result, const __grid_constant__ Rows p) {                             \
        __VA_ARGS__(source, result, p);                                                           \
    }
// A thread keeps `E` values in registers, or twice as many if a full warp has a row.
#define SOFTMAX(T, E)                                                                             \
    KERNEL(T, short, (128), short_rows<T, E / vector_width(sizeof(T))>)                           \
    KERNEL(T, warp, (128), short_rows<T, 2 * E / vector_width(sizeof(T))>)                        \
    KERNEL(T, rows, (1024, sizeof(T) == 8 ? 1 : 2), rows<T, E / vector_width(sizeof(T))>)         \
    KERNEL(T, long, (1024, sizeof(T) == 2 ? 2 : 1), long_rows<T, E / vector_width(sizeof(T))>)    \
    KERNEL(T, short_shifted, (128), short_rows<T, E / vector_width(sizeof(T)), true>)             \
    KERNEL(T, rows_shifted, (1024, sizeof(T) == 2 ? 2 : 1), rows<T, E / vector_width(sizeof(T)), true>) \
    KERNEL(T, long_shifted, (1024, 2), long_rows<T, E / vector_width(sizeof(T)) / 2, true>)       \
    KERNEL(T, columns, (COLUMN_THREADS, 2), columns<T, vector_width(sizeof(T)), sizeof(T) == 4 ? 4 : 2>) \
    KERNEL(T, odd, (COLUMN_THREADS, 2), columns<T, 1, 4>)                                         \
    KERNEL(T, any, (256), any_rows<T>)
