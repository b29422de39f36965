// Attention of few queries. A block has sixteen rows: queries of the heads that share a head of keys.
// The block attends to the keys of one split, each warp to sixteen keys of a tile.
// Exponentials are relative to the largest score of the warp. The block combines its warps, and the
// last block of a result combines the splits.

struct Row {
    bool is;
    u32 head, query;
    __device__ __forceinline__ Row(const FewQueries& p, u32 tile, u32 row) {
        const u32 at = tile * 16 + row, queries = (u32)p.common.queries;
        is = at < p.common.group * queries;
        head = is ? at / queries : 0;
        query = is ? at % queries : 0;
    }
    // Returns the row's offset in an operand. `inner` is the head of keys.
    template <class S>
    __device__ __forceinline__ i64 offset(const Attention& p, const S& s, u64 outer, u64 inner) const {
        return (i64)outer * s.outer + (i64)(inner * p.group + head) * s.inner + (i64)query * s.row;
    }
};

template <class T, int D, int WARPS>
__device__ __forceinline__ void attend_few(
    const T* q, const T* k, const T* v, const void* mask, const i64* lengths, T* out, u64* scratch, const FewQueries& p) {
    constexpr u32 KEYS = 16 * WARPS, LANES = 32 * WARPS;
    constexpr u32 BYTES = 2 * KEYS * PITCH(D) * sizeof(T);
    __shared__ alignas(16) u8 memory[BYTES];
    __shared__ alignas(16) T own_tile[16 * PITCH(D)];
    __shared__ f32 most_of[WARPS][16], total_of[WARPS][16];
    T *key_tile = (T*)memory, *value_tile = key_tile + KEYS * PITCH(D);
    const Attention& common = p.common;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, width = (u32)common.width;
    const u64 tiles = (common.group * common.queries + 15) / 16;
    Turn turn;
    if (p.splits > 1) {
        turn.begin(scratch);
        turn.number(p.ticket);
    }
    const u64 batch = blockIdx.x / tiles;
    const u32 tile = (u32)(blockIdx.x % tiles);
    const u64 heads = common.inner / common.group, outer = batch / heads, inner = batch % heads;
    const T* own_keys = k + (i64)outer * common.k.outer + (i64)inner * common.k.inner;
    const T* own_values = v + (i64)outer * common.v.outer + (i64)inner * common.v.inner;

    // Queries, as left operands. They arrive with the first keys.
    for (u32 i = threadIdx.x; i < 16 * (D / 8); i += LANES) {
        const Row row(p, tile, i / (D / 8));
        const u32 column = i % (D / 8) * 8;
        const bool is = row.is && column < width;
        const T* from = q + row.offset(common, common.q, outer, inner);
        fetch(own_tile + i / (D / 8) * PITCH(D) + column, is ? from + column : q, is);
    }
    u32 own[D / 16][4];

    const i64 length = p.has_lengths ? lengths[(i64)outer * p.length] : (i64)common.keys;
    const u32 end = (u32)min(max(length, (i64)0), (i64)common.keys);
    const u32 begin = (u32)min((u64)blockIdx.y * p.split_keys, (u64)end);
    const u32 stop = (u32)min(begin + p.split_keys, (u64)end);
    // The two rows of this lane, and the keys up to which they attend.
    const Row rows[2] = {Row(p, tile, lane / 4), Row(p, tile, lane / 4 + 8)};
    i64 limits[2], masks[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const i64 last = p.has_lengths ? (i64)end - (i64)common.queries : 0;
        limits[half] = common.causal ? last + rows[half].query : (i64)end;
        masks[half] = rows[half].offset(common, common.mask, outer, inner);
    }
    f32 sums[D / 8][4] = {}, most[2] = {-INFINITE, -INFINITE}, total[2] = {};
    for (u32 at = begin; at < stop; at += KEYS) {
        for (u32 i = threadIdx.x; i < KEYS * (D / 8); i += LANES) {
            const u32 row = i / (D / 8), column = i % (D / 8) * 8;
            const bool is = at + row < stop && column < width;
            const i64 key = is ? at + row : begin;
            const u32 to = row * PITCH(D) + column;
            fetch(key_tile + to, is ? own_keys + key * common.k.row + column : own_keys, is);
            fetch(value_tile + to, is ? own_values + key * common.v.row + column : own_values, is);
        }
        await_fetched();
        if (at == begin) {
            const u32 from = shared_address(own_tile + lane % 16 * PITCH(D) + lane / 16 * 8);
#pragma unroll
            for (int i = 0; i < D / 16; i++) read_rows(own[i], from + i * 32);
        }
        f32 scores[2][4] = {};
        const u32 keys = shared_address(
            key_tile + (warp * 16 + lane / 16 * 8 + lane % 8) * PITCH(D) + lane / 8 % 2 * 8);
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            u32 b[4];
            read_rows(b, keys + i * 32);
            multiply<T>(scores[0], own[i], b[0], b[1]);
            multiply<T>(scores[1], own[i], b[2], b[3]);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            f32 largest = most[half];
#pragma unroll
            for (int j = 0; j < 2; j++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    f32& score = scores[j][half * 2 + e];
                    const i64 key = at + warp * 16 + j * 8 + lane % 4 * 2 + e;
                    score *= common.scale_log2;
                    if (key >= stop || (common.causal && key > limits[half]) || !rows[half].is) score = -INFINITE;
                    else if (common.masks) score += masked<T>(common, mask, masks[half] + key * common.mask.column);
                    largest = fmaxf(largest, score);
                }
            }
            largest = fold_row<Larger>(largest);
            const f32 base = largest == -INFINITE ? 0.0f : largest;
            const f32 less = exp2_of(most[half] - base);
            most[half] = largest;
            total[half] *= less;
#pragma unroll
            for (int j = 0; j < 2; j++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    f32& score = scores[j][half * 2 + e];
                    score = exp2_of(score - base);
                    total[half] += score;
                }
            }
#pragma unroll
            for (int j = 0; j < D / 8; j++) {
                sums[j][half * 2] *= less;
                sums[j][half * 2 + 1] *= less;
            }
        }
        const u32 weights[4] = {
            pack<T>(scores[0][0], scores[0][1]), pack<T>(scores[0][2], scores[0][3]),
            pack<T>(scores[1][0], scores[1][1]), pack<T>(scores[1][2], scores[1][3])};
        const u32 values = shared_address(value_tile + (warp * 16 + lane % 16) * PITCH(D) + lane / 16 * 8);
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            u32 b[4];
            read_columns(b, values + j * 32);
            multiply<T>(sums[2 * j], weights, b[0], b[1]);
            multiply<T>(sums[2 * j + 1], weights, b[2], b[3]);
        }
        __syncthreads();
    }

    // Combines the warps in the memory of the tiles.
    f32* all = (f32*)memory;
    static_assert(WARPS * 16 * D * sizeof(f32) <= BYTES, "sums fit the tiles");
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 row = lane / 4 + half * 8;
        total[half] = fold_row<Plus>(total[half]);
        if (lane % 4 == 0) most_of[warp][row] = most[half], total_of[warp][row] = total[half];
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            f32* to = all + (warp * 16 + row) * D + j * 8 + lane % 4 * 2;
            to[0] = sums[j][half * 2], to[1] = sums[j][half * 2 + 1];
        }
    }
    __syncthreads();
    const u32 count = (u32)min((u64)(common.group * common.queries - tile * 16), (u64)16);
    // A split's partial result: for each row its sums, its largest score and its total.
    f32* partial = (f32*)(scratch + gridDim.x) + (u64)blockIdx.x * p.splits * 16 * (D + 2);
    for (u32 i = threadIdx.x; i < count * D; i += LANES) {
        const u32 row = i / D, column = i % D;
        f32 largest = -INFINITE;
#pragma unroll
        for (int w = 0; w < WARPS; w++) largest = fmaxf(largest, most_of[w][row]);
        const f32 base = largest == -INFINITE ? 0.0f : largest;
        f32 sum = 0, weight = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const f32 by = exp2_of(most_of[w][row] - base);
            sum += by * all[(w * 16 + row) * D + column];
            weight += by * total_of[w][row];
        }
        if (p.splits > 1) {
            f32* to = partial + (blockIdx.y * 16 + row) * (D + 2);
            to[column] = sum;
            if (column == 0) to[D] = largest, to[D + 1] = weight;
        } else if (column < width) {
            const i64 at = Row(p, tile, row).offset(common, common.out, outer, inner);
            store(out[at + column], weight > 0 ? sum / weight : 0.0f);
        }
    }
    if (p.splits == 1 || !turn.is_last(p.ticket, (u32)p.splits)) return;

    // Combines the splits. A warp computes the factors of a row's splits, so that the loads of the
    // sums below do not wait for each other.
    const u32 splits = (u32)p.splits;
    static_assert(16 * MOST_SPLITS * sizeof(f32) <= BYTES, "factors fit the tiles");
    for (u32 row = warp; row < count; row += WARPS) {
        f32 largest = -INFINITE, weight = 0;
        for (u32 s = lane; s < splits; s += 32) {
            largest = fmaxf(largest, __ldcg(partial + (s * 16 + row) * (D + 2) + D));
        }
        largest = fold_warp<Larger>(largest);
        const f32 base = largest == -INFINITE ? 0.0f : largest;
        for (u32 s = lane; s < splits; s += 32) {
            const f32* of = partial + (s * 16 + row) * (D + 2) + D;
            const f32 by = exp2_of(__ldcg(of) - base);
            weight += by * __ldcg(of + 1);
            all[row * MOST_SPLITS + s] = by;
        }
        weight = fold_warp<Plus>(weight);
        if (lane == 0) total_of[0][row] = weight > 0 ? 1.0f / weight : 0.0f;
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < count * D; i += LANES) {
        const u32 row = i / D, column = i % D;
        if (column >= width) continue;
        f32 sum = 0;
#pragma unroll 8
        for (u32 s = 0; s < splits; s++) {
            sum += all[row * MOST_SPLITS + s] * __ldcg(partial + (s * 16 + row) * (D + 2) + column);
        }
        const i64 at = Row(p, tile, row).offset(common, common.out, outer, inner);
        store(out[at + column], sum * total_of[0][row]);
    }
}

#define FEW_QUERIES(T, D, WARPS)                                                                      \
    extern "C" __global__ __launch_bounds__(WARPS * 32) void few_queries_##T##_wide_##D(              \
        const T* q, const T* k, const T* v, const void* mask, const i64* lengths, T* out,             \
        u64* scratch, const __grid_constant__ FewQueries p) {                                         \
        attend_few<T, D, WARPS>(q, k, v, mask, lengths, out, scratch, p);                             \
    }
