// Attention in one pass over the keys: sums are of exponentials less the largest score so far, and what has been summed
// up is made smaller when a larger one comes (FlashAttention-2). A block has 64 queries, a warp 16 of them.

template <class T, int D>
__device__ __forceinline__ void attend(const T* q, const T* k, const T* v, T* out, f32* lse, const Attention& p) {
    __shared__ alignas(16) T keys[ROWS * PITCH(D)], values[ROWS * PITCH(D)];
    const u32 queries = (u32)p.queries, width = (u32)p.width;
    // The last queries see the most keys: their blocks begin first.
    const u32 first = (gridDim.x - 1 - blockIdx.x) * ROWS;
    const u32 end = p.causal ? min((u32)p.keys, first + ROWS) : (u32)p.keys;
    const f32 scale = p.scale_log2;
    for (u64 batch = blockIdx.y; batch < p.outer * p.inner; batch += gridDim.y) {
        const T *own_keys = k + start(p, p.k, batch), *own_values = v + start(p, p.v, batch);
        __syncthreads();
        fill_tile<T, D, ROWS>(keys, q + start(p, p.q, batch), p.q.row, first, queries, width);
        __syncthreads();
        u32 own[D / 16][4];
        read_own<T, D>(own, keys);
        f32 sums[D / 8][4] = {}, most[2] = {-INFINITE, -INFINITE}, total[2] = {};
        for (u32 at = 0; at < end; at += ROWS) {
            __syncthreads();
            fill_tile<T, D, ROWS>(keys, own_keys, p.k.row, at, end, width);
            fill_tile<T, D, ROWS>(values, own_values, p.v.row, at, end, width);
            __syncthreads();
            f32 scores[ROWS / 8][4] = {};
            by_rows<T, D, ROWS>(scores, own, keys);
            const bool all = at + ROWS <= end && (!p.causal || at + ROWS <= first);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const u32 query = first + row_of(half * 2);
                f32 largest = most[half];
#pragma unroll
                for (int j = 0; j < ROWS / 8; j++) {
#pragma unroll
                    for (int e = half * 2; e < half * 2 + 2; e++) {
                        const u32 key = at + j * 8 + column_of(e);
                        const bool seen = all || (key < end && (!p.causal || key <= query));
                        scores[j][e] = seen ? scores[j][e] * scale : -INFINITE;
                        largest = fmaxf(largest, scores[j][e]);
                    }
                }
                largest = fold_row<Larger>(largest);
                const f32 base = largest == -INFINITE ? 0.0f : largest;
                const f32 less = exp2_of(most[half] - base);
                most[half] = largest;
                total[half] *= less;
#pragma unroll
                for (int j = 0; j < ROWS / 8; j++) {
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
            by_columns<T, D, ROWS>(sums, scores, values);
        }
        f32 by[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const f32 sum = fold_row<Plus>(total[half]);
            by[half] = 1.0f / sum;
            const u32 query = first + row_of(half * 2);
            if (query < queries && threadIdx.x % 4 == 0) lse[batch * p.queries + query] = most[half] + log2f(sum);
        }
        write_own<T, D>(out + start(p, p.out, batch), p.out.row, first, queries, width, sums, by);
    }
}

#define FORWARD(T, D)                                                                                 \
    extern "C" __global__ __launch_bounds__(THREADS) void attention_##T##_wide_##D(                   \
        const T* q, const T* k, const T* v, T* out, f32* lse, const __grid_constant__ Attention p) {  \
        attend<T, D>(q, k, v, out, lse, p);                                                           \
    }
