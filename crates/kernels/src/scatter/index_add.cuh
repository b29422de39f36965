// Adds rows of a source to the rows of the result that an index names, in the order of the index.

template <class C> __device__ __forceinline__ C plus(C a, C b) {
    if constexpr (same<C, bool>::value) return a || b;
    else return (C)(a + b);
}

// A block owns `ROWS` rows of the result, and each of its threads one column at a time. The block
// reads the index tile by tile, and first collects the positions of the tile that name its rows.
template <int ROWS, class T>
__device__ __forceinline__ void
index_add(const T* source, const i64* index, T* out, const IndexAdd& p) {
    typedef compute_t<T> C;
    __shared__ u32 found[BLOCK * EACH];
    __shared__ u32 totals[BLOCK / 32];
    __shared__ C sums[ROWS][BLOCK];
    const i64 first = (i64)blockIdx.x * ROWS;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (u64 base = (u64)blockIdx.y * BLOCK; base < p.columns; base += (u64)gridDim.y * BLOCK) {
        const u64 column = base + threadIdx.x;
        const bool active = column < p.columns;
        const T* from = source;
        T* to = out;
        if (active) from += walk(p.walk, 0, column), to += walk(p.walk, 1, column);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const bool is_read = active && !p.from_zero && first + r < (i64)p.report.size;
            sums[r][threadIdx.x] = is_read ? load(to[(first + r) * p.out_step]) : (C)0;
        }
        bool any = false;
        for (u64 tile = 0; tile < p.count; tile += BLOCK * EACH) {
            // Each thread tests neighbouring positions, so that the collected positions are in
            // order.
            u32 rows[EACH], own = 0;
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                const u64 n = tile + threadIdx.x * EACH + j;
                rows[j] = ROWS;
                if (n < p.count) {
                    const i64 k = index[(i64)n * p.index_step];
                    if (check_index(k, p.report) && k != p.skip && (u64)(k - first) < ROWS) {
                        rows[j] = (u32)(k - first);
                        own++;
                    }
                }
            }
            if (!__syncthreads_or(own)) continue;
            any = true;
            u32 upto = own;
#pragma unroll
            for (int d = 1; d < 32; d *= 2) {
                const u32 before = __shfl_up_sync(~0u, upto, d);
                if (lane >= d) upto += before;
            }
            if (lane == 31) totals[warp] = upto;
            __syncthreads();
            u32 at = upto - own, total = 0;
            for (u32 w = 0; w < BLOCK / 32; w++) {
                if (w < warp) at += totals[w];
                total += totals[w];
            }
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                if (rows[j] < ROWS) found[at++] = (threadIdx.x * EACH + j) * ROWS + rows[j];
            }
            __syncthreads();
            if (active) {
                for (u32 i = 0; i < total; i += 4) {
                    // The loads are issued together, and the additions follow in order.
                    C value[4];
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        if (i + j >= total) break;
                        const u64 n = tile + found[i + j] / ROWS;
                        value[j] = load(from[(i64)n * p.source_step]);
                    }
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        if (i + j >= total) break;
                        C& sum = sums[found[i + j] % ROWS][threadIdx.x];
                        sum = plus(sum, value[j]);
                    }
                }
            }
            __syncthreads();
        }
        if (!active || !(any || p.from_zero)) continue;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (first + r < (i64)p.report.size) {
                store(to[(first + r) * p.out_step], sums[r][threadIdx.x]);
            }
        }
    }
}

#define INDEX_ADD(NAME, T, ROWS)                                                                  \
    extern "C" __global__ __launch_bounds__(BLOCK) void NAME(                                     \
        const T* source, const i64* index, T* out, const __grid_constant__ IndexAdd p) {          \
        index_add<ROWS>(source, index, out, p);                                                   \
    }
