// Gradients of attention, whose weights are computed again from the scores and the logarithms of their sums. A block
// has 64 queries, or 64 keys, and goes over the others: nothing is summed up by atomics.

// The gradient of queries; and `delta`, what a query's output and its gradient have in common, for the other kernel.
template <class T, int D, int R>
__device__ __forceinline__ void backward_queries(
    const T* q, const T* k, const T* v, const T* out, const T* grad, const f32* lse, f32* delta, T* dq, const Attention& p) {
    __shared__ alignas(16) T tiles[(2 * R > ROWS ? 2 * R : ROWS) * PITCH(D)];
    T *keys = tiles, *values = tiles + R * PITCH(D);
    const u32 queries = (u32)p.queries, width = (u32)p.width;
    const u32 first = (gridDim.x - 1 - blockIdx.x) * ROWS;
    const u32 end = p.causal ? min((u32)p.keys, first + ROWS) : (u32)p.keys;
    const f32 scale = p.scale_log2;
    for (u64 batch = blockIdx.y; batch < p.outer * p.inner; batch += gridDim.y) {
        const T *own_keys = k + start(p, p.k, batch), *own_values = v + start(p, p.v, batch);
        u32 query[D / 16][4], slope[D / 16][4];
        f32 common[2] = {}, log[2];
        __syncthreads();
        fill_tile<T, D, ROWS>(tiles, grad + start(p, p.grad, batch), p.grad.row, first, queries, width);
        __syncthreads();
        read_own<T, D>(slope, tiles);
        __syncthreads();
        fill_tile<T, D, ROWS>(tiles, out + start(p, p.out, batch), p.out.row, first, queries, width);
        __syncthreads();
        read_own<T, D>(query, tiles);
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
#pragma unroll
            for (int h = 0; h < 4; h++) {
                common[h % 2] += unpack<T>(query[i][h], 0) * unpack<T>(slope[i][h], 0);
                common[h % 2] += unpack<T>(query[i][h], 1) * unpack<T>(slope[i][h], 1);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 row = first + row_of(half * 2);
            common[half] = fold_row<Plus>(common[half]);
            log[half] = row < queries ? lse[batch * p.queries + row] : INFINITE;
            if (row < queries && threadIdx.x % 4 == 0) delta[batch * p.queries + row] = common[half];
        }
        __syncthreads();
        fill_tile<T, D, ROWS>(tiles, q + start(p, p.q, batch), p.q.row, first, queries, width);
        __syncthreads();
        read_own<T, D>(query, tiles);
        f32 sums[D / 8][4] = {};
        for (u32 at = 0; at < end; at += R) {
            __syncthreads();
            fill_tile<T, D, R>(keys, own_keys, p.k.row, at, end, width);
            fill_tile<T, D, R>(values, own_values, p.v.row, at, end, width);
            __syncthreads();
            f32 scores[R / 8][4] = {}, slopes[R / 8][4] = {};
            by_rows<T, D, R>(scores, query, keys);
            by_rows<T, D, R>(slopes, slope, values);
            const bool all = at + R <= end && (!p.causal || at + R <= first);
#pragma unroll
            for (int j = 0; j < R / 8; j++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const u32 key = at + j * 8 + column_of(e);
                    const bool seen = all || (key < end && (!p.causal || key <= first + row_of(e)));
                    const f32 weight = exp2_of(scores[j][e] * scale - log[e / 2]);
                    scores[j][e] = seen ? weight * (slopes[j][e] - common[e / 2]) : 0.0f;
                }
            }
            by_columns<T, D, R>(sums, scores, keys);
        }
        const f32 by = p.scale;
        write_own<T, D>(dq + start(p, p.dq, batch), p.dq.row, first, queries, width, sums, {by, by});
    }
}

// The gradients of keys and values.
template <class T, int D, int R>
__device__ __forceinline__ void backward_keys(
    const T* q, const T* k, const T* v, const T* grad, const f32* lse, const f32* delta, T* dk, T* dv, const Attention& p) {
    __shared__ alignas(16) T tiles[(2 * R > ROWS ? 2 * R : ROWS) * PITCH(D)];
    __shared__ f32 logs[R], common[R];
    T *queries = tiles, *grads = tiles + R * PITCH(D);
    const u32 keys = (u32)p.keys, count = (u32)p.queries, width = (u32)p.width;
    const u32 first = blockIdx.x * ROWS;
    const f32 scale = p.scale_log2;
    for (u64 batch = blockIdx.y; batch < p.outer * p.inner; batch += gridDim.y) {
        const T *own_queries = q + start(p, p.q, batch), *own_grads = grad + start(p, p.grad, batch);
        u32 key[D / 16][4], value[D / 16][4];
        __syncthreads();
        fill_tile<T, D, ROWS>(tiles, k + start(p, p.k, batch), p.k.row, first, keys, width);
        __syncthreads();
        read_own<T, D>(key, tiles);
        __syncthreads();
        fill_tile<T, D, ROWS>(tiles, v + start(p, p.v, batch), p.v.row, first, keys, width);
        __syncthreads();
        read_own<T, D>(value, tiles);
        f32 by_query[D / 8][4] = {}, by_grad[D / 8][4] = {};
        // Queries before them see none of these keys.
        for (u32 at = p.causal ? first : 0; at < count; at += R) {
            __syncthreads();
            fill_tile<T, D, R>(queries, own_queries, p.q.row, at, count, width);
            fill_tile<T, D, R>(grads, own_grads, p.grad.row, at, count, width);
            for (u32 i = threadIdx.x; i < R; i += THREADS) {
                const bool is = at + i < count;
                logs[i] = is ? lse[batch * p.queries + at + i] : INFINITE;
                common[i] = is ? delta[batch * p.queries + at + i] : 0.0f;
            }
            __syncthreads();
            f32 weights[R / 8][4] = {}, slopes[R / 8][4] = {};
            by_rows<T, D, R>(weights, key, queries);
            by_rows<T, D, R>(slopes, value, grads);
            const bool all = !p.causal || first + ROWS <= at + 1;
#pragma unroll
            for (int j = 0; j < R / 8; j++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const u32 query = j * 8 + column_of(e);
                    const bool seen = all || first + row_of(e) <= at + query;
                    const f32 weight = seen ? exp2_of(weights[j][e] * scale - logs[query]) : 0.0f;
                    weights[j][e] = weight;
                    slopes[j][e] = seen ? weight * (slopes[j][e] - common[query]) : 0.0f;
                }
            }
            by_columns<T, D, R>(by_grad, weights, grads);
            by_columns<T, D, R>(by_query, slopes, queries);
        }
        const f32 by = p.scale;
        write_own<T, D>(dk + start(p, p.dk, batch), p.dk.row, first, keys, width, by_query, {by, by});
        write_own<T, D>(dv + start(p, p.dv, batch), p.dv.row, first, keys, width, by_grad, {1.0f, 1.0f});
    }
}

// Rows of the others that are taken at a time.
#define AT_A_TIME(D) ((D) == 64 ? 64 : 32)

#define BACKWARD_QUERIES(T, D)                                                                        \
    extern "C" __global__ __launch_bounds__(THREADS) void attention_backward_##T##_queries_##D(       \
        const T* q, const T* k, const T* v, const T* out, const T* grad, const f32* lse, f32* delta,  \
        T* dq, const __grid_constant__ Attention p) {                                                 \
        backward_queries<T, D, AT_A_TIME(D)>(q, k, v, out, grad, lse, delta, dq, p);                  \
    }
#define BACKWARD_KEYS(T, D)                                                                           \
    extern "C" __global__ __launch_bounds__(THREADS) void attention_backward_##T##_keys_##D(          \
        const T* q, const T* k, const T* v, const T* grad, const f32* lse, const f32* delta, T* dk,   \
        T* dv, const __grid_constant__ Attention p) {                                                 \
        backward_keys<T, D, AT_A_TIME(D)>(q, k, v, grad, lse, delta, dk, dv, p);                      \
    }
