// Small matrix products with any strides. cuBLAS would take longer to choose a kernel than the GPU
// takes to multiply. Each thread computes one element, which spreads little work over many blocks.
// Elements of `k` per step.
#define DEPTH 64
#define LOADS (SIDE * DEPTH / 256)

template <class T, class R> __device__ __forceinline__ void small(const T *a, const T *b, R *c, const Product &p) {
    typedef compute_t<T> C;
    // The extra column keeps the elements of a column in different banks.
    __shared__ C left[SIDE][DEPTH + 1], right[DEPTH][SIDE + 1];
    const u32 m = (u32)p.m, n = (u32)p.n, k = (u32)p.k;
    const u32 columns = (n + SIDE - 1) / SIDE, across = blockIdx.x / columns;
    const u32 row0 = across * SIDE, column0 = (blockIdx.x - across * columns) * SIDE;
    const u32 tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
    // Neighbouring threads read neighbouring elements, in either layout of an operand.
    const bool a_rows = p.a.column == 1, b_rows = p.b.column == 1;
    const u32 along = threadIdx.x % DEPTH, beside = threadIdx.x / DEPTH;
    const u32 r0 = a_rows ? beside : tx, d0 = a_rows ? along : ty;
    const u32 q0 = b_rows ? tx : beside, e0 = b_rows ? ty : along;
    for (u64 batch = blockIdx.z; batch < p.batch; batch += gridDim.z) {
        const T *x = a + (i64)batch * p.a.batch, *y = b + (i64)batch * p.b.batch;
        C sum = (C)0;
        for (u32 k0 = 0; k0 < k; k0 += DEPTH) {
            C u[LOADS], v[LOADS];
#pragma unroll
            for (u32 j = 0; j < LOADS; j++) {
                const u32 r = row0 + r0 + (a_rows ? j * (256 / DEPTH) : 0), d = k0 + d0 + (a_rows ? 0 : j * SIDE);
                const u32 q = column0 + q0 + (b_rows ? 0 : j * (256 / DEPTH)), e = k0 + e0 + (b_rows ? j * SIDE : 0);
                u[j] = v[j] = (C)0;
                if (r < m && d < k) u[j] = load(x[(i64)r * p.a.row + (i64)d * p.a.column]);
                if (q < n && e < k) v[j] = load(y[(i64)e * p.b.row + (i64)q * p.b.column]);
            }
#pragma unroll
            for (u32 j = 0; j < LOADS; j++) {
                left[r0 + (a_rows ? j * (256 / DEPTH) : 0)][d0 + (a_rows ? 0 : j * SIDE)] = u[j];
                right[e0 + (b_rows ? j * SIDE : 0)][q0 + (b_rows ? 0 : j * (256 / DEPTH))] = v[j];
            }
            __syncthreads();
            // The last eight may reach beyond `depth`, where all elements are 0.
            const u32 depth = min(k - k0, (u32)DEPTH);
#pragma unroll 1
            for (u32 d = 0; d < depth; d += 8) {
#pragma unroll
                for (u32 i = 0; i < 8; i++) sum += left[ty][d + i] * right[d + i][tx];
            }
            __syncthreads();
        }
        if (row0 + ty < m && column0 + tx < n) {
            R *z = c + (i64)batch * p.c.batch;
            store(z[(i64)(row0 + ty) * p.c.row + (i64)(column0 + tx) * p.c.column], sum);
        }
    }
}

#define SMALL(name, T, R)                                                                      \
    extern "C" __global__ __launch_bounds__(256) void name(                                    \
        const T *a, const T *b, R *c, const __grid_constant__ Product p) {                      \
        small<T>(a, b, c, p);                                                                  \
    }
