// Matrix products with any strides, for products that cuBLAS does not compute.
// Rows and columns of a block's tile of the result, and the elements of `k` per step.
#define TILE 64
#define DEPTH 16
// Rows and columns per thread.
#define PART 4

template <class T, class R> __device__ __forceinline__ void matmul(const T *a, const T *b, R *c, const Product &p) {
    typedef compute_t<T> C;
    // The extra column keeps the elements of a column in different banks.
    __shared__ C left[DEPTH][TILE + 1], right[DEPTH][TILE + 1];
    const u32 columns = (u32)((p.n + TILE - 1) / TILE), row = blockIdx.x / columns;
    const u64 row0 = (u64)row * TILE, column0 = (u64)(blockIdx.x - row * columns) * TILE;
    const u32 tx = threadIdx.x % (TILE / PART), ty = threadIdx.x / (TILE / PART);
    // Neighbouring threads read neighbouring elements, in either layout of an operand.
    const bool a_rows = p.a.column == 1, b_rows = p.b.column == 1;
    for (u64 batch = blockIdx.z; batch < p.batch; batch += gridDim.z) {
        const T *x = a + (i64)batch * p.a.batch, *y = b + (i64)batch * p.b.batch;
        C sum[PART][PART] = {};
        for (u64 k0 = 0; k0 < p.k; k0 += DEPTH) {
            for (u32 i = threadIdx.x; i < TILE * DEPTH; i += blockDim.x) {
                const u32 r = a_rows ? i / DEPTH : i % TILE, d = a_rows ? i % DEPTH : i / TILE;
                const bool in = row0 + r < p.m && k0 + d < p.k;
                left[d][r] = in ? load(x[(i64)(row0 + r) * p.a.row + (i64)(k0 + d) * p.a.column]) : (C)0;
            }
            for (u32 i = threadIdx.x; i < TILE * DEPTH; i += blockDim.x) {
                const u32 q = b_rows ? i % TILE : i / DEPTH, d = b_rows ? i / TILE : i % DEPTH;
                const bool in = column0 + q < p.n && k0 + d < p.k;
                right[d][q] = in ? load(y[(i64)(k0 + d) * p.b.row + (i64)(column0 + q) * p.b.column]) : (C)0;
            }
            __syncthreads();
#pragma unroll 4
            for (u32 d = 0; d < DEPTH; d++) {
#pragma unroll
                for (int i = 0; i < PART; i++) {
#pragma unroll
                    for (int j = 0; j < PART; j++) {
                        sum[i][j] += left[d][ty + i * (TILE / PART)] * right[d][tx + j * (TILE / PART)];
                    }
                }
            }
            __syncthreads();
        }
        R *z = c + (i64)batch * p.c.batch;
#pragma unroll
        for (int i = 0; i < PART; i++) {
#pragma unroll
            for (int j = 0; j < PART; j++) {
                const u64 row = row0 + ty + i * (TILE / PART), column = column0 + tx + j * (TILE / PART);
                if (row < p.m && column < p.n) {
                    store(z[(i64)row * p.c.row + (i64)column * p.c.column], sum[i][j]);
                }
            }
        }
    }
}

#define MATMUL(name, T, R)                                                                     \
    extern "C" __global__ __launch_bounds__(256) void name(                                    \
        const T *a, const T *b, R *c, Product p) {                                              \
        matmul<T>(a, b, c, p);                                                                 \
    }
