// Distribution of elements over threads, and the fold of partial results.

// Operands of `kept`.
enum { SOURCE, RESULT };

// Number of elements per load: 16 bytes, but at most `most` elements. Elements of one byte are
// loaded by eight.
__host__ __device__ constexpr int vector(int size, int most) {
    return size == 1 ? 8 : 16 / size < most ? 16 / size : most;
}

// Returns a vector of elements that do not change a result.
template <class F, int BYTES> __device__ __forceinline__ Raw<BYTES> neutral(const Plan& p) {
    Raw<BYTES> v;
#pragma unroll
    for (int w = 0; w < (BYTES < 4 ? 1 : BYTES / 4); w++) {
        v.word[w] = F::ZERO_IS_NEUTRAL ? 0 : (u32)(p.neutral >> (BYTES < 8 ? 0 : w % 2 * 32));
    }
    return v;
}

// Moves all vectors forward by `BY`. A loop can then use vectors in registers without being
// unrolled.
template <int BY, class W, int N> __device__ __forceinline__ void advance(W (&v)[N]) {
#pragma unroll
    for (int k = BY; k < N; k++) v[k - BY] = v[k];
}

// Returns index / sizes[d] for index < 2^31, computed by multiplication. `magic` is for numbers
// below 2^63; its upper half, rounded up, suffices here.
template <int N> __device__ __forceinline__ u32 quotient(const Walk<N>& w, u32 d, u32 index) {
    const u32 magic = (u32)((w.magic[d] - 1) >> 32) + 1;
    return (__umulhi(index, magic) + index) >> (u32)w.shift[d];
}

// Returns the offset of element `index` in an operand, over the dimensions from `d` on.
template <int N> __device__ __forceinline__ i64 offset_of(const Walk<N>& w, int operand, u32 index, u32 d = 0) {
    i64 at = 0;
#pragma unroll 1
    for (; d < (u32)w.ndim; d++) {
        const u32 next = quotient(w, d, index);
        at += (i64)(index - next * (u32)w.sizes[d]) * w.strides[operand][d];
        index = next;
    }
    return at;
}

// Returns the offset of an element in at most two dimensions, without a loop.
__device__ __forceinline__ i64 offset_in_two(const Two& two, int operand, u32 index) {
    const u32 next = (__umulhi(index, two.magic) + index) >> (u32)two.shift;
    return (i64)(index - next * two.size) * two.strides[operand][0] + next * two.strides[operand][1];
}

// Loads a vector that no thread reads again, which the cache may evict first.
template <int BYTES> __device__ __forceinline__ Raw<BYTES> stream(const Raw<BYTES>* p) {
    Raw<BYTES> v;
    if constexpr (BYTES == 16) {
        const uint4 words = __ldcs((const uint4*)p);
        v.word[0] = words.x, v.word[1] = words.y, v.word[2] = words.z, v.word[3] = words.w;
    } else {
        const uint2 words = __ldcs((const uint2*)p);
        v.word[0] = words.x, v.word[1] = words.y;
    }
    return v;
}

// ---- between threads -----------------------------------------------------------------------

template <class A> __device__ __forceinline__ A down(A a, u32 by) { return __shfl_down_sync(~0u, a, by); }
template <class A> __device__ __forceinline__ Indexed<A, u64> down(Indexed<A, u64> a, u32 by) {
    return {down(a.value, by), down(a.index, by)};
}

// Reads a partial result of another block.
template <class A> __device__ __forceinline__ A left(const A* p) { return __ldcg(p); }
template <class A> __device__ __forceinline__ Indexed<A, u64> left(const Indexed<A, u64>* p) {
    return {__ldcg(&p->value), __ldcg(&p->index)};
}

template <class F> __device__ __forceinline__ typename F::Part nothing() { return F::part(F::identity(), 0); }

// Returns `a / b`, where `b` is a power of two.
__device__ __forceinline__ u32 over(u32 a, u32 b) { return a >> (31 - __clz(b)); }

// Folds the values of the `lanes` neighbouring threads of each result. The first of these threads
// gets the result. `warps` has an element per warp.
template <class F>
__device__ __forceinline__ typename F::Part fold(typename F::Part a, u32 lanes, typename F::Part* warps) {
    u32 half = lanes < 32 ? lanes / 2 : 16;
#pragma unroll 1
    for (;;) {
#pragma unroll 1
        for (; half > 0; half /= 2) a = F::merge(a, down(a, half));
        if (lanes <= 32) return a;
        __syncthreads();
        if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = a;
        __syncthreads();
        const u32 lane = threadIdx.x & (lanes - 1);
        lanes /= 32;
        a = lane < lanes ? warps[threadIdx.x / 32 + lane] : nothing<F>();
        half = lanes / 2;
    }
}

// Folds this thread's share of the `splits` partial results: part `first`, and every `step`th part
// after it.
template <class F>
__device__ __forceinline__ typename F::Part gather(const typename F::Part* parts, u32 output, const Plan& p, u32 first, u32 step, u32 splits) {
    // Short folds load several parts at a time, because the last block waits for nothing but these
    // loads.
    constexpr int EACH = F::AT_A_TIME > 1 ? 4 : 1;
    typename F::Part whole = nothing<F>();
#pragma unroll 1
    for (u32 s = first; s < splits; s += EACH * step) {
        typename F::Part part[EACH];
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            const u32 split = s + k * step;
            part[k] = split < splits ? left(&parts[split * (u32)p.outputs + output]) : nothing<F>();
        }
#pragma unroll
        for (int k = 0; k < EACH; k++) whole = F::merge(whole, part[k]);
    }
    return whole;
}

// ---- runs of neighbouring elements ---------------------------------------------------------

// Reduces runs of neighbouring elements. `lanes` threads share a result, and `across` of them share
// a run. Blocks in y share each run, and blocks in z have different segments.
template <class F, class T, bool SPLIT>
__device__ __forceinline__ void reduce_rows(const T* source, typename F::Result* result, u64* scratch, const Plan& p) {
    typedef typename F::Part Part;
    constexpr u32 V = vector(sizeof(T), 8), AHEAD = F::ORDERED ? UNROLL / 2 : UNROLL;
    typedef Raw<V * sizeof(T)> Vector;
    const u32 lanes = SPLIT ? BLOCK : p.lanes, across = p.across;
    const u32 lane = threadIdx.x & (lanes - 1);
    const u32 x = (SPLIT ? blockIdx.y * across : 0) + (lane & (across - 1));
    const u32 output = blockIdx.x * over(BLOCK, lanes) + over(threadIdx.x, lanes);
    const bool is_any = SPLIT || output < (u32)p.outputs;
    Turn turn;
    if (SPLIT) turn.begin(scratch);
    typename F::Acc a[F::CHAINS];
#pragma unroll
    for (int c = 0; c < F::CHAINS; c++) a[c] = F::identity();
    const u32 first = SPLIT ? blockIdx.z * p.segment_chunk : 0;
    if (is_any) {
        const T* row = source + offset_in_two(p.two, SOURCE, output);
        const u32 step = SPLIT ? across * gridDim.y : across;
        const u32 end = SPLIT && first + p.segment_chunk < p.segments ? first + p.segment_chunk : p.segments;
#pragma unroll 1
        for (u32 segment = first + over(lane, across); segment < end; segment += over(lanes, across)) {
            const T* from = row + segment * p.segment_stride;
            const u32 count = segment + 1 < p.segments ? p.run : p.last_run;
            // Indices count from the first segment of the block.
            const u32 local = (segment - first) * p.run;
            // Whole vectors lie between the elements at both ends.
            u32 head = (u32)(0 - (u64)from) % sizeof(Vector) / sizeof(T);
            head = head < count ? head : count;
            const u32 n = (count - head) / V, ends = count - n * V;
            const Vector* vectors = (const Vector*)(from + head);
            const auto add_vectors = [&] {
#pragma unroll 1
                for (u32 i = x; i < n; i += AHEAD * step) {
                    Vector v[AHEAD];
#pragma unroll
                    for (int k = 0; k < AHEAD; k++) {
                        v[k] = neutral<F, sizeof(Vector)>(p);
                        if (i + k * step < n) v[k] = SPLIT ? stream(&vectors[i + k * step]) : vectors[i + k * step];
                    }
                    const u32 index = local + head + i * V;
#pragma unroll 1
                    for (int k = 0; k < AHEAD; k += F::AT_A_TIME) {
#pragma unroll
                        for (int t = 0; t < F::AT_A_TIME; t++) {
                            add_all<F, T, V>(a, v[t], p.flip, index + (k + t) * step * V);
                        }
                        advance<F::AT_A_TIME>(v);
                    }
                }
            };
            if constexpr (F::ORDERED) {
                u32 i = x, end = head;
#pragma unroll 1
                for (;;) {
#pragma unroll 1
                    for (; i < end; i += step) F::add(a[0], F::take((value_t<T>)load(from[i]), p.flip), local + i);
                    if (end == count) break;
                    add_vectors();
                    i = head + n * V + x;
                    end = count;
                }
            } else {
                // A thread loads its first element of the ends before the vectors and uses it after
                // them, so that the loads overlap.
                T odd = {};
                if (x < ends) odd = from[x < head ? x : x + n * V];
                add_vectors();
#pragma unroll 1
                for (u32 i = x; i < ends;) {
                    F::add(a[0], F::take((value_t<T>)load(odd), p.flip), 0);
                    i += step;
                    if (i < ends) odd = from[i < head ? i : i + n * V];
                }
            }
        }
    }
#pragma unroll
    for (int c = 1; c < F::CHAINS; c++) {
        if constexpr (F::CHAINS > 1) a[0] = F::merge(a[0], a[c]);
    }
    __shared__ Part warps[BLOCK / 32];
    Part whole = F::part(a[0], (u64)first * p.run);
    if (SPLIT) {
        turn.number(p.ticket);
        const u32 splits = gridDim.y * gridDim.z;
        Part* parts = (Part*)(scratch + gridDim.x);
        bool folded = false;
#pragma unroll 1
        for (;;) {
            whole = fold<F>(whole, lanes, warps);
            if (folded) break;
            folded = true;
            if (lane == 0 && is_any) parts[(blockIdx.z * gridDim.y + blockIdx.y) * (u32)p.outputs + output] = whole;
            if (!turn.is_last(p.ticket, splits)) return;
            whole = gather<F>(parts, output, p, lane, lanes, splits);
        }
    } else {
        whole = fold<F>(whole, lanes, warps);
    }
    if (lane == 0 && is_any) F::put(result + offset_in_two(p.two, RESULT, output), whole, p);
}

// ---- any strides ---------------------------------------------------------------------------

// Reduces elements with any strides. `lanes` threads share `V` neighbouring results. Neighbouring
// threads read neighbouring elements, of several results or of one. Blocks share results as in
// `reduce_rows`.
template <class F, class T, int V, bool SPLIT>
__device__ __forceinline__ void reduce_any(const T* source, typename F::Result* result, u64* scratch, const Plan& p) {
    typedef typename F::Part Part;
    typedef Raw<V * sizeof(T)> Vector;
    const u32 lanes = p.lanes, outs = over(BLOCK, lanes), across = p.across;
    const bool outs_first = V > 1 || p.outs_first;
    const u32 minor = outs_first ? outs : lanes;
    const u32 low = threadIdx.x & (minor - 1), high = over(threadIdx.x, minor);
    const u32 lane = outs_first ? high : low, slot = outs_first ? low : high;
    const u32 x = (SPLIT ? blockIdx.y * across : 0) + (lane & (across - 1));
    const u32 output = (blockIdx.x * outs + slot) * V;
    const u32 first = SPLIT ? blockIdx.z * p.segment_chunk : 0;
    Turn turn;
    if (SPLIT) turn.begin(scratch);
    const int CHAINS = F::CHAINS < 2 ? 1 : F::AT_A_TIME;
    typename F::Acc a[CHAINS][V];
#pragma unroll
    for (int c = 0; c < CHAINS; c++) {
#pragma unroll
        for (int j = 0; j < V; j++) a[c][j] = F::identity();
    }
    if (output < (u32)p.outputs) {
        const T* column = source + (V > 1 ? offset_in_two(p.two, SOURCE, output) : offset_of(p.kept, SOURCE, output));
        const i64 stride = p.reduced.strides[0][0];
        const u32 step = SPLIT ? across * gridDim.y : across;
        const u32 end = SPLIT && first + p.segment_chunk < p.segments ? first + p.segment_chunk : p.segments;
        column += x * stride;
#pragma unroll 1
        for (u32 segment = first + over(lane, across); segment < end; segment += over(lanes, across)) {
            const T* from = column + segment * p.segment_stride
                + (V > 1 ? 0 : offset_of(p.reduced, SOURCE, segment, (u32)p.outer));
            const u32 count = segment + 1 < p.segments ? p.run : p.last_run;
            const u32 local = (segment - first) * p.run;
#pragma unroll 1
            for (u32 i = x; i < count; i += UNROLL * step) {
                Vector v[UNROLL];
#pragma unroll
                for (int k = 0; k < UNROLL; k++) {
                    v[k] = neutral<F, sizeof(Vector)>(p);
                    if (i + k * step < count) v[k] = *(const Vector*)from;
                    from += step * stride;
                }
#pragma unroll 1
                for (int k = 0; k < UNROLL; k += F::AT_A_TIME) {
#pragma unroll
                    for (int t = 0; t < F::AT_A_TIME; t++) {
#pragma unroll
                        for (int j = 0; j < V; j++) {
                            const u32 index = local + i + (k + t) * step;
                            F::add(a[t % CHAINS][j], F::take(value<T>(v[t], j), p.flip), index);
                        }
                    }
                    advance<F::AT_A_TIME>(v);
                }
            }
        }
    }
    if (SPLIT) turn.number(p.ticket);
    // The threads are now distributed over the `results` results of the block: several threads
    // share a result, or one thread has several results.
    __shared__ typename F::Acc all[V * BLOCK];
    __shared__ Part shared[BLOCK];
    const u32 results = outs * V;
#pragma unroll
    for (int j = 0; j < V; j++) {
        if constexpr (CHAINS > 1) a[0][j] = F::merge(a[0][j], a[1][j]);
        all[lane * results + slot * V + j] = a[0][j];
    }
    __syncthreads();
    const u32 shares = results < BLOCK ? over(BLOCK, results) : 1;
    const u32 share = over(threadIdx.x, results);
    u32 r = threadIdx.x & (results - 1);
#pragma unroll 1
    do {
        const u32 output = blockIdx.x * results + r;
        Part whole = nothing<F>();
#pragma unroll 1
        for (u32 l = share; l < lanes; l += shares) {
            whole = F::merge(whole, F::part(all[l * results + r], (u64)first * p.run));
        }
        bool folded = !SPLIT;
#pragma unroll 1
        for (;;) {
#pragma unroll 1
            for (u32 half = shares / 2; half > 0; half /= 2) {
                // Each element is written once per fold, so no thread can still be reading an older
                // value.
                if ((share ^ half) < half) shared[threadIdx.x] = whole;
                __syncthreads();
                if (share < half) whole = F::merge(whole, shared[threadIdx.x + half * results]);
            }
            if (folded) break;
            folded = true;
            const u32 splits = gridDim.y * gridDim.z;
            Part* parts = (Part*)(scratch + gridDim.x);
            if (share == 0 && output < (u32)p.outputs) parts[(blockIdx.z * gridDim.y + blockIdx.y) * (u32)p.outputs + output] = whole;
            if (!turn.is_last(p.ticket, splits)) return;
            whole = nothing<F>();
            if (output < (u32)p.outputs) whole = gather<F>(parts, output, p, share, shares, splits);
        }
        if (share == 0 && output < (u32)p.outputs) {
            F::put(result + (V > 1 ? offset_in_two(p.two, RESULT, output) : offset_of(p.kept, RESULT, output)), whole, p);
        }
        r += BLOCK;
    } while (!SPLIT && r < results);
}

template <class F, class T, bool SPLIT>
__device__ __forceinline__ void reduce_columns(const T* source, typename F::Result* result, u64* scratch, const Plan& p) {
    reduce_any<F, T, vector(sizeof(T), 4), SPLIT>(source, result, scratch, p);
}
template <class F, class T, bool SPLIT>
__device__ __forceinline__ void reduce_strided(const T* source, typename F::Result* result, u64* scratch, const Plan& p) {
    reduce_any<F, T, 1, SPLIT>(source, result, scratch, p);
}

// Defines each kernel, and a second one for blocks that share results.
#define KERNELS(NAME, FOLD, T, REDUCE)         \
    KERNEL(NAME, FOLD, T, REDUCE, false)       \
    KERNEL(NAME##_split, FOLD, T, REDUCE, true)
#define KERNEL(NAME, FOLD, T, REDUCE, SPLIT)                                                      \
    extern "C" __global__ __launch_bounds__(BLOCK, 4) void NAME(                                  \
        const T* source, FOLD<T>::Result* result, u64* scratch, const __grid_constant__ Plan p) { \
        REDUCE<FOLD<T>, T, SPLIT>(source, result, scratch, p);                                    \
    }
#define ROWS(NAME, FOLD, T) KERNELS(NAME, FOLD, T, reduce_rows)
#define COLUMNS(NAME, FOLD, T) KERNELS(NAME, FOLD, T, reduce_columns)
#define STRIDED(NAME, FOLD, T) KERNELS(NAME, FOLD, T, reduce_strided)
