// Products of at most sixteen rows by a matrix of contiguous columns.

// Computes the address of an element before the wait. Without the statement, the compiler computes the
// address in the loop.
__device__ __forceinline__ u64 address(const void* at) {
    u64 r = __cvta_generic_to_global(at);
    asm volatile("" : "+l"(r));
    return r;
}

// Waits for earlier work of the stream, if the kernel was launched early. The loader replaces the
// comment by its instructions and the wait (`early_launch.rs`). All threads must call this function
// before they access global memory. `computed` must not be -1. The compiler cannot tell, so it computes
// the value before the wait.
__device__ __forceinline__ void wait_for_operands(u64 computed) {
    asm volatile("/* wait after: { .reg .pred p; setp.eq.s64 p, %0, -1; @p exit; } */" :: "l"(computed) : "memory");
}

// Loads sixteen bytes that no other thread reads, and leaves the level 1 cache to the rows.
__device__ __forceinline__ uint4 read_once(u64 at) {
    uint4 r;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(at));
    return r;
}

#if defined(WARPS)
// Loads sixteen bytes.
__device__ __forceinline__ uint4 read(u64 at) {
    uint4 r;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(at));
    return r;
}

// Returns the number that `T` stores for `x`.
template <class T> __device__ __forceinline__ f32 rounded(f32 x) {
    T r;
    store(r, x);
    return load(r);
}

// A block computes eight columns. Its warps divide the sums, and each sums runs of 32 * DEPTH
// products. The rows are the left operand of the tensor cores and eight columns the right one. A
// sum may take its products in any order, so a lane loads eight adjacent elements of a row and of a
// column, and they serve two operations of sixteen products.
//
// If `GATED`, the columns of a block are four from the first half of the matrix and the four at the same
// places of the second half. The result is silu(first) * second.
template <class T, bool WIDE, bool GATED>
__device__ __forceinline__ void few_rows(const T* a, const T* b, T* c, const Product& p) {
    constexpr u32 EACH = WIDE ? 128 : 64, STEP = WARPS * 32 * DEPTH;
    __shared__ f32 partial[WARPS][EACH];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, of = lane % 4 * 8;
    constexpr u32 COLUMNS = GATED ? 4 : 8;
    const u64 first = (u64)blockIdx.x * COLUMNS, columns = GATED ? p.n / 2 : p.n;
    const u32 begin = warp * 32 * DEPTH + of;
    // Rows and columns beyond the last one repeat it. Their sums are not stored.
    const u64 own = min(first + group % COLUMNS, columns - 1) + (group >= COLUMNS ? columns : 0);
    u64 column = address(b + ((i64)own * p.b.column + begin));
    u64 low = address(a + (min(group, (u32)p.m - 1) * (u32)p.a.row + begin));
    u64 high = WIDE ? address(a + (min(group + 8, (u32)p.m - 1) * (u32)p.a.row + begin)) : low;
    // Number of products from the lane's first one to the end of the sum.
    i32 remaining = (u32)p.k - begin;
    wait_for_operands(column & low & high & remaining);
    const uint4 zero = {0, 0, 0, 0};
    f32 sums[4] = {};
#pragma unroll 1
    for (; remaining + (i32)of > 0; remaining -= STEP) {
        uint4 w[DEPTH], x[DEPTH], y[DEPTH];
#pragma unroll
        for (u32 j = 0; j < DEPTH; j++) {
            const u32 offset = j * 32 * sizeof(T);
            const bool is = remaining > (i32)j * 32;
            w[j] = is ? read_once(column + offset) : zero;
            x[j] = is ? read(low + offset) : zero;
            y[j] = WIDE && is ? read(high + offset) : zero;
        }
        column += STEP * sizeof(T), low += STEP * sizeof(T), high += STEP * sizeof(T);
#pragma unroll
        for (u32 j = 0; j < DEPTH; j++) {
            multiply<T>(sums, {x[j].x, y[j].x, x[j].y, y[j].y}, w[j].x, w[j].y);
            multiply<T>(sums, {x[j].z, y[j].z, x[j].w, y[j].w}, w[j].z, w[j].w);
        }
    }
    f32* to = partial[warp] + group * 8 + lane % 4 * 2;
    to[0] = sums[0], to[1] = sums[1];
    if (WIDE) to[64] = sums[2], to[65] = sums[3];
    __syncthreads();
    // Whole warps return here, so the others can shuffle.
    if (threadIdx.x >= EACH) return;
    f32 sum = 0;
#pragma unroll
    for (u32 w = 0; w < WARPS; w++) sum += partial[w][threadIdx.x];
    if (GATED) {
        const f32 gate = rounded<T>(sum), up = __shfl_down_sync(~0u, gate, COLUMNS);
        sum = gate / (1 + expf(-gate)) * up;
    }
    const u32 row = threadIdx.x / 8, of_row = threadIdx.x % 8;
    const u64 at = first + of_row;
    if (of_row < COLUMNS && row < p.m && at < columns) store(c[row * p.c.row + (i64)at * p.c.column], sum);
}

#define FEW_ROWS(name, T, WIDE, GATED)                                                                \
    extern "C" __global__ __launch_bounds__(WARPS * 32, 2) void few_rows_##T##_##name(                \
        const T* a, const T* b, T* c, const __grid_constant__ Product p) {                            \
        few_rows<T, WIDE, GATED>(a, b, c, p);                                                         \
    }
#else
// A block computes four columns for up to M rows. Its threads divide the sums, and each loads four
// adjacent elements.
template <u32 M, u32 THREADS, u32 DEPTH>
__device__ __forceinline__ void few_rows(const f32* a, const f32* b, f32* c, const Product& p) {
    constexpr u32 N = M * COLUMNS, STEP = THREADS * 4 * DEPTH;
    __shared__ f32 partial[THREADS / 32][N];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, length = (u32)p.k;
    const u64 first = (u64)blockIdx.x * COLUMNS;
    // Rows and columns beyond the last one repeat it. Their sums are not stored.
    u64 columns[COLUMNS], all = ~0ull;
#pragma unroll
    for (u32 i = 0; i < COLUMNS; i++) {
        columns[i] = address(b + ((i64)min(first + i, p.n - 1) * p.b.column + threadIdx.x * 4));
        all &= columns[i];
    }
    u32 rows[M];
#pragma unroll
    for (u32 m = 0; m < M; m++) rows[m] = min(m, (u32)p.m - 1) * (u32)p.a.row;
    wait_for_operands(all);
    f32 sums[N] = {};
    const uint4 zero = {0, 0, 0, 0};
    for (u32 at = threadIdx.x * 4; at < length; at += STEP) {
        uint4 w[DEPTH][COLUMNS];
#pragma unroll
        for (u32 j = 0; j < DEPTH; j++) {
            const u32 k = at + j * THREADS * 4;
#pragma unroll
            for (u32 i = 0; i < COLUMNS; i++) {
                w[j][i] = k < length ? read_once(columns[i] + j * THREADS * sizeof(uint4)) : zero;
            }
        }
#pragma unroll
        for (u32 i = 0; i < COLUMNS; i++) columns[i] += STEP * sizeof(f32);
#pragma unroll
        for (u32 j = 0; j < DEPTH; j++) {
            const u32 k = at + j * THREADS * 4;
            if (k >= length) break;
#pragma unroll
            for (u32 m = 0; m < M; m++) {
                const float4 x = *(const float4*)(a + (rows[m] + k));
#pragma unroll
                for (u32 i = 0; i < COLUMNS; i++) {
                    f32& sum = sums[m * COLUMNS + i];
                    sum += x.x * __uint_as_float(w[j][i].x);
                    sum += x.y * __uint_as_float(w[j][i].y);
                    sum += x.z * __uint_as_float(w[j][i].z);
                    sum += x.w * __uint_as_float(w[j][i].w);
                }
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < N; i++) {
        const f32 sum = fold_warp<Plus>(sums[i]);
        if (lane == i % 32) partial[warp][i] = sum;
    }
    __syncthreads();
    const u32 row = threadIdx.x / COLUMNS;
    const u64 at = first + threadIdx.x % COLUMNS;
    if (threadIdx.x >= N || row >= p.m || at >= p.n) return;
    f32 sum = 0;
#pragma unroll
    for (u32 w = 0; w < THREADS / 32; w++) sum += partial[w][threadIdx.x];
    c[row * p.c.row + (i64)at * p.c.column] = sum;
}

#define FEW_ROWS(M, THREADS, DEPTH, BLOCKS)                                                           \
    extern "C" __global__ __launch_bounds__(THREADS, BLOCKS) void few_rows_floats_f32_##M(               \
        const f32* a, const f32* b, f32* c, const __grid_constant__ Product p) {                      \
        few_rows<M, THREADS, DEPTH>(a, b, c, p);                                                      \
    }
#endif
