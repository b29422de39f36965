// Gradients of attention. Both kernels recompute the weights from the scores and from the
// logarithms of the forward pass. A block of the first kernel has 64 queries and loops over the
// keys. A block of the second has 64 keys and loops over the queries. Each row of a gradient is
// computed by one block, so no atomics are needed.

// Computes the gradient of the queries. Stores in `delta` the dot product of each query's output
// with its gradient, for `backward_keys`.
template <class T, int D>
__device__ __forceinline__ void backward_queries(
    const T* q, const T* k, const T* v, const void* mask, const T* out, const T* grad, const f32* lse, f32* delta, T* dq,
    const Attention& p) {
    constexpr u32 R = STEP_ROWS(D);
    __shared__ alignas(16) T tiles[4 * TILE(D)];
    const u32 queries = (u32)p.queries, width = (u32)p.width;
    const u32 first = (gridDim.x - 1 - blockIdx.x) * ROWS;
    const u32 end = p.causal ? min((u32)p.keys, first + ROWS) : (u32)p.keys;
    for (u64 batch = blockIdx.y; batch < p.outer * p.inner; batch += gridDim.y) {
        const T *own_keys = k + start_of_keys(p, p.k, batch), *own_values = v + start_of_keys(p, p.v, batch);
        const i64 own_mask = start(p, p.mask, batch);
        u32 query[D / 16][4], slope[D / 16][4];
        f32 common[2] = {}, log[2];
        T* const others = tiles + ROWS * PITCH(D);
        __syncthreads();
        const T *own_grad = grad + start(p, p.grad, batch), *own_out = out + start(p, p.out, batch);
        fetch_tiles<T, D, ROWS>(tiles, own_grad, p.grad.row, own_out, p.out.row, first, queries, width);
        await_fetched();
        read_own<T, D>(slope, tiles);
        read_own<T, D>(query, others);
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
        fetch_tile<T, D, ROWS>(tiles, q + start(p, p.q, batch), p.q.row, first, queries, width);
        await_fetched();
        read_own<T, D>(query, tiles);
        __syncthreads();
        f32 sums[D / 8][4] = {};
        T *keys = tiles, *next = tiles + 2 * TILE(D);
        fetch_tiles<T, D, R>(keys, own_keys, p.k.row, own_values, p.v.row, 0, end, width);
        for (u32 at = 0; at < end; at += R) {
            await_fetched();
            if (at + R < end) {
                fetch_tiles<T, D, R>(next, own_keys, p.k.row, own_values, p.v.row, at + R, end, width);
            }
            f32 scores[R / 8][4] = {}, slopes[R / 8][4] = {};
            by_rows<T, D, R>(scores, query, keys);
            by_rows<T, D, R>(slopes, slope, keys + TILE(D));
#pragma unroll
            for (int j = 0; j < R / 8; j++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    f32 score = scores[j][e] * p.scale_log2;
                    const u32 key = at + j * 8 + column_of(e), row = first + row_of(e);
                    if (MASKED && key < end && row < queries) {
                        score += masked<T>(p, mask, own_mask + row * p.mask.row + key * p.mask.column);
                    }
                    const f32 weight = exp2_of(score - log[e / 2]);
                    scores[j][e] = weight * (slopes[j][e] - common[e / 2]);
                }
            }
            if (at + R > end || (p.causal && at + R > first)) {
#pragma unroll
                for (int j = 0; j < R / 8; j++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const u32 key = at + j * 8 + column_of(e);
                        if (key >= end || (p.causal && key > first + row_of(e))) scores[j][e] = 0.0f;
                    }
                }
            }
            by_columns<T, D, R>(sums, scores, keys);
            T* const last = keys;
            keys = next, next = last;
        }
        write_own<T, D>(dq + start(p, p.dq, batch), p.dq.row, first, queries, width, sums, {p.scale, p.scale});
    }
}

// Reads `lse` and `delta` of `R` queries from `first` on. An infinite `lse` beyond the last query
// makes the weights there 0.
template <int R>
__device__ __forceinline__ void read_sums(f32* to, const f32* lse, const f32* delta, u32 first, u32 count) {
    for (u32 i = threadIdx.x; i < R; i += THREADS) {
        const bool is = first + i < count;
        to[i] = is ? lse[first + i] : INFINITE;
        to[R + i] = is ? delta[first + i] : 0.0f;
    }
}

// Computes the gradients of keys and values: sums over all heads of queries that attend to them.
// Reads the `delta` that `backward_queries` stored.
template <class T, int D>
__device__ __forceinline__ void backward_keys(
    const T* q, const T* k, const T* v, const void* mask, const T* grad, const f32* lse, const f32* delta, T* dk, T* dv,
    const Attention& p) {
    constexpr u32 R = STEP_ROWS(D);
    __shared__ alignas(16) T tiles[4 * TILE(D)];
    __shared__ f32 sums[2][2 * R];
    const u32 keys = (u32)p.keys, count = (u32)p.queries, width = (u32)p.width;
    const u32 first = blockIdx.x * ROWS;
    // Under the causal mask, queries before `first` attend to none of these keys.
    const u32 begin = p.causal ? first : 0;
    for (u64 group = blockIdx.y; group < p.outer * p.inner / p.group; group += gridDim.y) {
        const u64 from = group * p.group;
        u32 key[D / 16][4], value[D / 16][4];
        T* const others = tiles + ROWS * PITCH(D);
        __syncthreads();
        const T *own_keys = k + start_of_keys(p, p.k, from), *own_values = v + start_of_keys(p, p.v, from);
        fetch_tiles<T, D, ROWS>(tiles, own_keys, p.k.row, own_values, p.v.row, first, keys, width);
        await_fetched();
        read_own<T, D>(key, tiles);
        read_own<T, D>(value, others);
        __syncthreads();
        f32 by_query[D / 8][4] = {}, by_grad[D / 8][4] = {};
        for (u64 batch = from; batch < from + p.group; batch++) {
            const T *own_queries = q + start(p, p.q, batch), *own_grads = grad + start(p, p.grad, batch);
            const f32 *logs = lse + batch * p.queries, *commons = delta + batch * p.queries;
            const i64 own_mask = start(p, p.mask, batch);
            // Wait until all threads have read the last tiles of the former head.
            if (batch > from) __syncthreads();
            u32 stage = 0;
            if (begin < count) {
                fetch_tiles<T, D, R>(tiles, own_queries, p.q.row, own_grads, p.grad.row, begin, count, width);
                read_sums<R>(sums[0], logs, commons, begin, count);
            }
            for (u32 at = begin; at < count; at += R, stage ^= 1) {
                await_fetched();
                const T* const queries = tiles + stage * 2 * TILE(D);
                const f32* const own = sums[stage];
                if (at + R < count) {
                    T* const next = tiles + (stage ^ 1) * 2 * TILE(D);
                    fetch_tiles<T, D, R>(next, own_queries, p.q.row, own_grads, p.grad.row, at + R, count, width);
                    read_sums<R>(sums[stage ^ 1], logs, commons, at + R, count);
                }
                f32 weights[R / 8][4] = {}, slopes[R / 8][4] = {};
                by_rows<T, D, R>(weights, key, queries);
                by_rows<T, D, R>(slopes, value, queries + TILE(D));
#pragma unroll
                for (int j = 0; j < R / 8; j++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const u32 query = j * 8 + column_of(e);
                        f32 score = weights[j][e] * p.scale_log2;
                        const u32 row = first + row_of(e);
                        if (MASKED && row < keys && at + query < count) {
                            score += masked<T>(p, mask, own_mask + (at + query) * p.mask.row + row * p.mask.column);
                        }
                        weights[j][e] = exp2_of(score - own[query]);
                        slopes[j][e] = weights[j][e] * (slopes[j][e] - own[R + query]);
                    }
                }
                if (p.causal && at < first + ROWS) {
#pragma unroll
                    for (int j = 0; j < R / 8; j++) {
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            if (first + row_of(e) > at + j * 8 + column_of(e)) weights[j][e] = slopes[j][e] = 0.0f;
                        }
                    }
                }
                by_columns<T, D, R>(by_grad, weights, queries + TILE(D));
                by_columns<T, D, R>(by_query, slopes, queries);
            }
        }
        write_own<T, D>(dk + start_of_keys(p, p.dk, from), p.dk.row, first, keys, width, by_query, {p.scale, p.scale});
        write_own<T, D>(dv + start_of_keys(p, p.dv, from), p.dv.row, first, keys, width, by_grad, {1.0f, 1.0f});
    }
}

#define BACKWARD_QUERIES(T, D)                                                                        \
    extern "C" __global__ __launch_bounds__(THREADS) void BACKWARD_NAME(T, queries, D)(               \
        const T* q, const T* k, const T* v, const void* mask, const T* out, const T* grad,            \
        const f32* lse, f32* delta, T* dq, const __grid_constant__ Attention p) {                     \
        backward_queries<T, D>(q, k, v, mask, out, grad, lse, delta, dq, p);                          \
    }
#define BACKWARD_KEYS(T, D)                                                                           \
    extern "C" __global__ __launch_bounds__(THREADS) void BACKWARD_NAME(T, keys, D)(                  \
        const T* q, const T* k, const T* v, const void* mask, const T* grad, const f32* lse,          \
        const f32* delta, T* dk, T* dv, const __grid_constant__ Attention p) {                        \
        backward_keys<T, D>(q, k, v, mask, grad, lse, delta, dk, dv, p);                              \
    }
