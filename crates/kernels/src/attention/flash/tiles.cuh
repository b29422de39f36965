// Operations of a warp on tensor cores. Matrices of halves lie in tiles of shared memory, sums in
// registers. The launch requires compute capability 8.0, which some of the instructions need.

#define INFINITE __int_as_float(0x7f800000)
#define LOG2_E 1.4426950408889634f
// Distance between the rows of a tile, in halves. Because of the eight halves of padding, eight rows
// that are read together lie in different banks.
#define PITCH(D) ((D) + 8)
// Rows of keys or queries per step, and the size of their tile in halves. A block computes with two
// tiles while it fetches the next two.
#define STEP_ROWS(D) ((D) == 64 ? 64 : 32)
#define TILE(D) (STEP_ROWS(D) * PITCH(D))

// Packs two halves into a word, the first in the low bits.
template <class T> __device__ __forceinline__ u32 pack(f32 low, f32 high);
#define PACK(T, name)                                                                                 \
    template <> __device__ __forceinline__ u32 pack<T>(f32 low, f32 high) {                           \
        u32 r;                                                                                        \
        asm("{ /* sm_80: cvt.rn." name "x2.f32 %0, %2, %1; */\n\t"                                    \
            "trap;\n\t"                                                                               \
            "}" : "=r"(r) : "f"(low), "f"(high));                                                     \
        return r;                                                                                     \
    }
PACK(f16, "f16")
PACK(bf16, "bf16")

template <class T> __device__ __forceinline__ f32 unpack(u32 word, int half) {
    return load(T{(u16)(half ? word >> 16 : word)});
}

__device__ __forceinline__ f32 exp2_of(f32 x) {
    f32 r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

template <class T> __device__ __forceinline__ u32 shared_address(const T* at) {
    u64 address;
    asm("cvta.to.shared.u64 %0, %1;" : "=l"(address) : "l"(at));
    return (u32)address;
}

// Load four matrices of 8 x 8. Each group of eight lanes has the addresses of the rows of one
// matrix. `read_rows` gives every lane two neighbours of a row of each matrix, `read_columns` two
// neighbours of a column.
__device__ __forceinline__ void read_rows(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void read_columns(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// Starts an asynchronous copy of sixteen bytes to shared memory. Writes zeros if `is` is false.
template <class T> __device__ __forceinline__ void fetch(T* to, const T* from, bool is) {
    asm volatile("{ /* sm_80: cp.async.cg.shared.global [%0], [%1], 16, %2; */\n\t"
        "trap;\n\t"
        "}" ::"r"(shared_address(to)), "l"(from), "r"(is ? 16 : 0) : "memory");
}

// Waits for the fetches of the whole block. All threads are then also done with the previous tiles,
// which may be overwritten.
__device__ __forceinline__ void await_fetched() {
    asm volatile("{ /* sm_80: cp.async.wait_all; */\n\t"
        "trap;\n\t"
        "}" ::: "memory");
    __syncthreads();
}

// Fetches `R` rows of a matrix, from row `first` on, into a tile. The matrix has `count` rows,
// `step` elements apart. Elements beyond the last row or beyond `width` become 0.
template <class T, int D, int R>
__device__ __forceinline__ void fetch_tile(T* tile, const T* from, i64 step, u32 first, u32 count, u32 width) {
    constexpr u32 ACROSS = D / 8;
    const u32 column = threadIdx.x % ACROSS * 8;
#pragma unroll
    for (u32 row = threadIdx.x / ACROSS; row < R; row += THREADS / ACROSS) {
        const bool is = first + row < count && column < width;
        fetch(tile + row * PITCH(D) + column, is ? from + (i64)(first + row) * step + column : from, is);
    }
}

// Fetches `R` rows of two matrices into two tiles.
template <class T, int D, int R>
__device__ __forceinline__ void
fetch_tiles(T* tiles, const T* a, i64 step_a, const T* b, i64 step_b, u32 first, u32 count, u32 width) {
    fetch_tile<T, D, R>(tiles, a, step_a, first, count, width);
    fetch_tile<T, D, R>(tiles + R * PITCH(D), b, step_b, first, count, width);
}

// Loads the sixteen rows of a tile that belong to this warp, as left operands of products.
template <class T, int D> __device__ __forceinline__ void read_own(u32 (&own)[D / 16][4], const T* tile) {
    const u32 lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane % 16;
    const u32 at = shared_address(tile + row * PITCH(D) + lane / 16 * 8);
#pragma unroll
    for (int i = 0; i < D / 16; i++) read_rows(own[i], at + i * 32);
}

// c += own * tile^T. Each of the tile's `R` rows gives a column of `c`.
template <class T, int D, int R>
__device__ __forceinline__ void by_rows(f32 (&c)[R / 8][4], const u32 (&own)[D / 16][4], const T* tile) {
    const u32 lane = threadIdx.x % 32;
    const u32 at = shared_address(tile + (lane / 16 * 8 + lane % 8) * PITCH(D) + lane / 8 % 2 * 8);
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
#pragma unroll
        for (int j = 0; j < R / 16; j++) {
            u32 b[4];
            read_rows(b, at + (j * 16 * PITCH(D) + i * 16) * 2);
            multiply<T>(c[2 * j], own[i], b[0], b[1]);
            multiply<T>(c[2 * j + 1], own[i], b[2], b[3]);
        }
    }
}

// c += own * tile. Each of the tile's `R` rows belongs to a column of `own`.
template <class T, int D, int R>
__device__ __forceinline__ void by_columns(f32 (&c)[D / 8][4], const f32 (&own)[R / 8][4], const T* tile) {
    const u32 lane = threadIdx.x % 32;
    const u32 at = shared_address(tile + lane % 16 * PITCH(D) + lane / 16 * 8);
#pragma unroll
    for (int i = 0; i < R / 16; i++) {
        u32 a[4];
#pragma unroll
        for (int h = 0; h < 4; h++) {
            const f32(&pair)[4] = own[2 * i + h / 2];
            a[h] = pack<T>(pair[h % 2 * 2], pair[h % 2 * 2 + 1]);
        }
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            u32 b[4];
            read_columns(b, at + (i * 16 * PITCH(D) + j * 16) * 2);
            multiply<T>(c[2 * j], a, b[0], b[1]);
            multiply<T>(c[2 * j + 1], a, b[2], b[3]);
        }
    }
}

// Folds the values of the four lanes that share a row.
template <class F> __device__ __forceinline__ f32 fold_row(f32 v) {
    v = F::of(v, __shfl_xor_sync(~0u, v, 1));
    return F::of(v, __shfl_xor_sync(~0u, v, 2));
}

// Position of a lane's element in a sum of products: the row within the block, and the column
// within eight.
__device__ __forceinline__ u32 row_of(int element) {
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + element / 2 * 8;
}
__device__ __forceinline__ u32 column_of(int element) { return threadIdx.x % 4 * 2 + element % 2; }

// Writes a block's rows of a result, from row `first` on. `by` holds the factors of this lane's two
// rows, in the upper and the lower half of the warp's rows.
template <class T, int D>
__device__ __forceinline__ void write_own(T* to, i64 step, u32 first, u32 count, u32 width, const f32 (&c)[D / 8][4], const f32 (&by)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 row = first + row_of(half * 2);
        if (row >= count) continue;
        T* out = to + (i64)row * step;
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            const u32 column = j * 8 + column_of(0);
            if (column < width) *(u32*)(out + column) = pack<T>(c[j][half * 2] * by[half], c[j][half * 2 + 1] * by[half]);
        }
    }
}

// Returns the offset of a batch of queries in an operand or in the mask.
template <class S> __device__ __forceinline__ i64 start(const Attention& p, const S& s, u64 batch) {
    const u64 outer = batch / p.inner;
    return (i64)outer * s.outer + (i64)(batch - outer * p.inner) * s.inner;
}

// Returns the offset of the keys that a batch of queries attends to.
__device__ __forceinline__ i64 start_of_keys(const Attention& p, const Steps& s, u64 batch) {
    const u64 outer = batch / p.inner;
    return (i64)outer * s.outer + (i64)((batch - outer * p.inner) / p.group) * s.inner;
}

// Returns the value that a mask adds to a score, in base 2.
template <class T> __device__ __forceinline__ f32 masked(const Attention& p, const void* mask, i64 at) {
    if (p.masks == BOOLEAN) return ((const u8*)mask)[at] ? 0.0f : -INFINITE;
    return load(((const T*)mask)[at]) * LOG2_E;
}
