// Attention in one pass over the keys (FlashAttention-2). Exponentials are relative to the largest
// score so far. A larger score rescales the earlier sums. A block has 64 queries, 16 per warp.

template <class T, int D>
__device__ __forceinline__ void attend(
    const T* q, const T* k, const T* v, const void* mask, T* out, f32* lse, const Attention& p) {
    constexpr u32 R = STEP_ROWS(D);
    __shared__ alignas(16) T tiles[4 * TILE(D)];
    const u32 queries = (u32)p.queries, width = (u32)p.width;
    // Under the causal mask the last queries attend to the most keys, so their blocks start first.
    const u32 first = (gridDim.x - 1 - blockIdx.x) * ROWS;
    const u32 end = p.causal ? min((u32)p.keys, first + ROWS) : (u32)p.keys;
    for (u64 batch = blockIdx.y; batch < p.outer * p.inner; batch += gridDim.y) {
        const T *own_keys = k + start_of_keys(p, p.k, batch), *own_values = v + start_of_keys(p, p.v, batch);
        const i64 own_mask = start(p, p.mask, batch);
        __syncthreads();
        fetch_tile<T, D, ROWS>(tiles, q + start(p, p.q, batch), p.q.row, first, queries, width);
        await_fetched();
        u32 own[D / 16][4];
        read_own<T, D>(own, tiles);
        __syncthreads();
        f32 sums[D / 8][4] = {}, most[2] = {-INFINITE, -INFINITE}, total[2] = {};
        T *keys = tiles, *next = tiles + 2 * TILE(D);
        fetch_tiles<T, D, R>(keys, own_keys, p.k.row, own_values, p.v.row, 0, end, width);
        for (u32 at = 0; at < end; at += R) {
            await_fetched();
            if (at + R < end) {
                fetch_tiles<T, D, R>(next, own_keys, p.k.row, own_values, p.v.row, at + R, end, width);
            }
            f32 scores[R / 8][4] = {};
            by_rows<T, D, R>(scores, own, keys);
#pragma unroll
            for (int j = 0; j < R / 8; j++) {
#pragma unroll
                for (int e = 0; e < 4; e++) scores[j][e] *= p.scale_log2;
            }
            if (MASKED || at + R > end || (p.causal && at + R > first)) {
#pragma unroll
                for (int j = 0; j < R / 8; j++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const u32 key = at + j * 8 + column_of(e), query = first + row_of(e);
                        if (key >= end || (p.causal && key > query)) scores[j][e] = -INFINITE;
                        else if (MASKED && query < queries) {
                            scores[j][e] += masked<T>(p, mask, own_mask + query * p.mask.row + key * p.mask.column);
                        }
                    }
                }
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                f32 largest = most[half];
#pragma unroll
                for (int j = 0; j < R / 8; j++) {
                    largest = fmaxf(largest, fmaxf(scores[j][half * 2], scores[j][half * 2 + 1]));
                }
                largest = fold_row<Larger>(largest);
                const f32 base = largest == -INFINITE ? 0.0f : largest;
                const f32 less = exp2_of(most[half] - base);
                most[half] = largest;
                total[half] *= less;
#pragma unroll
                for (int j = 0; j < R / 8; j++) {
#pragma unroll
                    for (int e = half * 2; e < half * 2 + 2; e++) {
                        scores[j][e] = exp2_of(scores[j][e] - base);
                        total[half] += scores[j][e];
                    }
                }
#pragma unroll
                for (int j = 0; j < D / 8; j++) {
                    sums[j][half * 2] *= less;
                    sums[j][half * 2 + 1] *= less;
                }
            }
            by_columns<T, D, R>(sums, scores, keys + TILE(D));
            T* const last = keys;
            keys = next, next = last;
        }
        f32 by[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const f32 sum = fold_row<Plus>(total[half]);
            // A query that attends to no key gets zeros, and an infinite logarithm makes its weights 0.
            const bool blind = MASKED && sum == 0;
            by[half] = blind ? 0.0f : 1.0f / sum;
            const u32 query = first + row_of(half * 2);
            if (query < queries && threadIdx.x % 4 == 0) {
                lse[batch * p.queries + query] = blind ? INFINITE : most[half] + log2f(sum);
            }
        }
        write_own<T, D>(out + start(p, p.out, batch), p.out.row, first, queries, width, sums, by);
    }
}

#define FORWARD(T, D)                                                                                 \
    extern "C" __global__ __launch_bounds__(THREADS, 4) void FORWARD_NAME(T, D)(                      \
        const T* q, const T* k, const T* v, const void* mask, T* out, f32* lse,                       \
        const __grid_constant__ Attention p) {                                                        \
        attend<T, D>(q, k, v, mask, out, lse, p);                                                     \
    }
