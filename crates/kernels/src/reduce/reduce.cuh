// How elements are shared out to threads, and what these leave is folded.

// Operands of `kept`.
enum { SOURCE, RESULT };

// Elements that are loaded at a time: 16 bytes, but no more than so many, and of bytes no less than 8.
__host__ __device__ constexpr int vector(int size, int most) {
    return size == 1 ? 8 : 16 / size < most ? 16 / size : most;
}

// A vector as it is loaded: in whole words, or what is smaller than one.
template <int BYTES> struct alignas(BYTES) Words { u32 word[BYTES / 4]; };
template <> struct Words<1> { u8 word[1]; };
template <> struct Words<2> { u16 word[1]; };

// One of its elements.
template <class T, int BYTES> __device__ __forceinline__ T element(const Words<BYTES>& from, int j) {
    T t;
    if constexpr (BYTES < 4) memcpy(&t, from.word, sizeof(T));
    else if constexpr (sizeof(T) >= 4) memcpy(&t, &from.word[j * sizeof(T) / 4], sizeof(T));
    else {
        const u32 bits = from.word[j * sizeof(T) / 4] >> (j * sizeof(T) % 4 * 8);
        memcpy(&t, &bits, sizeof(T));
    }
    return t;
}

template <class T> __device__ __forceinline__ value_t<T> value(const T& v) { return (value_t<T>)load(v); }

// Where element `index` of all operands lies, as `walk` says of one.
template <int N> __device__ __forceinline__ void place(const Walk<N>& w, u64 index, i64 (&at)[N]) {
#pragma unroll
    for (int k = 0; k < N; k++) at[k] = 0;
    const u32 ndim = (u32)w.ndim;
#pragma unroll 1
    for (u32 d = 0; d < ndim; d++) {
        const u64 next = (__umul64hi(index, w.magic[d]) + index) >> w.shift[d];
#pragma unroll
        for (int k = 0; k < N; k++) at[k] += (i64)(index - next * w.sizes[d]) * w.strides[k][d];
        index = next;
    }
}

// The same of no more than two dimensions, without a loop: these are compiled for longer than they run.
template <int N> __device__ __forceinline__ void place_in_two(const Walk<N>& w, u64 index, i64 (&at)[N]) {
    const u64 next = (__umul64hi(index, w.magic[0]) + index) >> w.shift[0];
    const i64 rest = (i64)(index - next * w.sizes[0]);
#pragma unroll
    for (int k = 0; k < N; k++) at[k] = rest * w.strides[k][0] + (i64)next * w.strides[k][1];
}

// ---- between threads -----------------------------------------------------------------------

template <class A> __device__ __forceinline__ A down(A a, u32 by) { return __shfl_down_sync(~0u, a, by); }
template <class A> __device__ __forceinline__ Indexed<A, u64> down(Indexed<A, u64> a, u32 by) {
    return {down(a.value, by), down(a.index, by)};
}

// What another block has left.
template <class A> __device__ __forceinline__ A left(const A* p) { return __ldcg(p); }
template <class A> __device__ __forceinline__ Indexed<A, u64> left(const Indexed<A, u64>* p) {
    return {__ldcg(&p->value), __ldcg(&p->index)};
}

template <class F> __device__ __forceinline__ typename F::Part nothing() { return F::part(F::identity(), 0); }

// `a / b` of a power of two.
__device__ __forceinline__ u32 over(u32 a, u32 b) { return a >> (31 - __clz(b)); }

// Folds the `lanes` neighbouring threads of each result; the first of them has it. `warps` has room for
// each warp.
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

// Blocks that share a result: each leaves what it has, and the last of them to do so folds all, in their order.
// What counts them is anything to begin with. The first block to come makes it this launch's number, which no
// other launch has: so nothing has to be cleared before.
struct Turn {
    u64* counter;
    u64 seen;

    // Long before the others, so that nobody waits for what is read.
    __device__ __forceinline__ void begin(u64* scratch) {
        counter = scratch + blockIdx.x;
        if (threadIdx.x == 0) seen = *(volatile u64*)counter;
    }
    __device__ __forceinline__ void number(u64 ticket) {
        if (threadIdx.x == 0 && (seen ^ ticket) >> 16) atomicCAS(counter, seen, ticket);
    }
    // Whether this block is the last of `splits`.
    __device__ __forceinline__ bool is_last(u64 ticket, u32 splits) {
        __shared__ bool last;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            last = atomicAdd(counter, 1) == ticket + splits - 1;
            // A replay of a graph has the same number.
            if (last) *(volatile u64*)counter = 0;
        }
        __syncthreads();
        __threadfence();
        return last;
    }
};

// What a thread folds of what `splits` blocks have left, `stride` apart: several loads at a time.
template <class F>
__device__ __forceinline__ typename F::Part gather(const typename F::Part* parts, u64 stride, u32 lane, u32 lanes, u32 splits) {
    typename F::Part whole = nothing<F>();
#pragma unroll 1
    for (u32 s = lane; s < splits; s += 4 * lanes) {
        typename F::Part some[4];
#pragma unroll
        for (int k = 0; k < 4; k++) some[k] = s + k * lanes < splits ? left(&parts[(s + k * lanes) * stride]) : nothing<F>();
#pragma unroll
        for (int k = 0; k < 4; k++) whole = F::merge(whole, some[k]);
    }
    return whole;
}

// ---- runs of neighbouring elements ---------------------------------------------------------

// Reduces over runs of neighbouring elements: `lanes` threads have a result, of which `across` share a run.
// Blocks in y take turns within a run, and blocks in z have segments of their own.
template <class F, class T, int UNROLL>
__device__ __forceinline__ void reduce_rows(const T* source, typename F::Result* result, u64* scratch, const Plan& p) {
    typedef typename F::Part Part;
    constexpr u32 V = vector(sizeof(T), 8);
    typedef Words<V * sizeof(T)> Vector;
    const u32 lanes = p.lanes, across = p.across, splits = gridDim.y * gridDim.z;
    const u32 lane = threadIdx.x & (lanes - 1), x = blockIdx.y * across + (lane & (across - 1));
    const u64 output = (u64)blockIdx.x * over(blockDim.x, lanes) + over(threadIdx.x, lanes);
    Turn turn;
    if (splits > 1) turn.begin(scratch);
    typename F::Acc a[F::CHAINS];
#pragma unroll
    for (int c = 0; c < F::CHAINS; c++) a[c] = F::identity();
    const u32 first = blockIdx.z * p.segment_chunk;
    i64 at[2];
    place_in_two(p.kept, output, at);
    if (output < p.outputs) {
        const u32 step = across * gridDim.y;
        const u32 end = first + p.segment_chunk < p.segments ? first + p.segment_chunk : p.segments;
#pragma unroll 1
        for (u32 segment = first + over(lane, across); segment < end; segment += over(lanes, across)) {
            const T* from = source + at[SOURCE] + segment * p.segment_stride;
            const u32 count = segment + 1 < p.segments ? p.run : p.last_run;
            // Indices count from the block's first segment.
            const u32 local = (segment - first) * p.run;
            // Whole vectors lie between the ends.
            u32 head = (u32)(0 - (u64)from) % sizeof(Vector) / sizeof(T);
            head = head < count ? head : count;
            const u32 n = (count - head) / V, ends = count - n * V;
            const Vector* vectors = (const Vector*)(from + head);
            // The ends are loaded before the rest and used after it.
            T odd = {};
            if (x < ends) odd = from[x < head ? x : x + n * V];
#pragma unroll 1
            for (u32 i = x; i < n; i += UNROLL * step) {
                Vector v[UNROLL];
                if (F::SKIPS_ZERO) memset(v, 0, sizeof(v));
#pragma unroll
                for (int k = 0; k < UNROLL; k++) {
                    if (i + k * step < n) v[k] = vectors[i + k * step];
                }
#pragma unroll
                for (int k = 0; k < UNROLL; k++) {
                    if (F::SKIPS_ZERO || i + k * step < n) {
                        const u32 index = local + head + (i + k * step) * V;
#pragma unroll
                        for (u32 j = 0; j < V; j++) {
                            F::add(a[(k * V + j) % F::CHAINS], F::take(value(element<T>(v[k], j)), p.flip), index + j);
                        }
                    }
                }
            }
#pragma unroll 1
            for (u32 i = x; i < ends;) {
                typename F::Acc one = F::identity();
                F::add(one, F::take(value(odd), p.flip), local + (i < head ? i : i + n * V));
                a[0] = F::merge(a[0], one);
                i += step;
                if (i < ends) odd = from[i < head ? i : i + n * V];
            }
        }
    }
#pragma unroll
    for (int c = 1; c < F::CHAINS; c++) a[0] = F::merge(a[0], a[c]);
    __shared__ Part warps[ROWS_BLOCK / 32];
    if (splits > 1) turn.number(p.ticket);
    Part whole = F::part(a[0], (u64)first * p.run);
    Part* parts = (Part*)(scratch + gridDim.x);
    bool folded = splits == 1;
#pragma unroll 1
    for (;;) {
        whole = fold<F>(whole, lanes, warps);
        if (folded) break;
        folded = true;
        const u32 split = blockIdx.z * gridDim.y + blockIdx.y;
        if (lane == 0 && output < p.outputs) parts[split * p.outputs + output] = whole;
        if (!turn.is_last(p.ticket, splits)) return;
        whole = output < p.outputs ? gather<F>(parts + output, p.outputs, lane, lanes, splits) : nothing<F>();
    }
    if (lane == 0 && output < p.outputs) F::put(result + at[RESULT], whole, p);
}

// ---- any strides ---------------------------------------------------------------------------

// `lanes` threads have `V` neighbouring results. Neighbouring threads read neighbouring elements: of
// several results, or of one. Blocks as above.
template <class F, class T, int V, int UNROLL>
__device__ __forceinline__ void reduce_columns(const T* source, typename F::Result* result, u64* scratch, const Plan& p) {
    typedef typename F::Part Part;
    typedef Words<V * sizeof(T)> Vector;
    const u32 lanes = p.lanes, outs = over(blockDim.x, lanes), splits = gridDim.y * gridDim.z;
    const u32 across = p.across;
    const bool outs_first = V > 1 || p.outs_first;
    const u32 minor = outs_first ? outs : lanes;
    const u32 low = threadIdx.x & (minor - 1), high = over(threadIdx.x, minor);
    const u32 lane = outs_first ? high : low, slot = outs_first ? low : high;
    const u32 x = blockIdx.y * across + (lane & (across - 1));
    const u64 output = ((u64)blockIdx.x * outs + slot) * V;
    const u32 first = blockIdx.z * p.segment_chunk;
    i64 at[2];
    if (V > 1) place_in_two(p.kept, output, at);
    else place(p.kept, output, at);
    Turn turn;
    if (splits > 1) turn.begin(scratch);
    const int CHAINS = F::CHAINS < 2 || V == 1 ? F::CHAINS : 2;
    typename F::Acc a[CHAINS][V];
#pragma unroll
    for (int c = 0; c < CHAINS; c++) {
#pragma unroll
        for (int j = 0; j < V; j++) a[c][j] = F::identity();
    }
    if (output < p.outputs) {
        const i64 stride = p.reduced.strides[SOURCE][0];
        const u32 step = across * gridDim.y;
        const u32 end = first + p.segment_chunk < p.segments ? first + p.segment_chunk : p.segments;
#pragma unroll 1
        for (u32 segment = first + over(lane, across); segment < end; segment += over(lanes, across)) {
            const T* from = source + at[SOURCE] + x * stride;
            if (V > 1 || p.reduced.ndim < 3) {
                from += segment * p.segment_stride;
            } else {
                i64 begins[1];
                place(p.reduced, (u64)segment * p.run, begins);
                from += begins[0];
            }
            const u32 count = segment + 1 < p.segments ? p.run : p.last_run;
            const u32 local = (segment - first) * p.run;
#pragma unroll 1
            for (u32 i = x; i < count; i += UNROLL * step) {
                Vector v[UNROLL];
                if (F::SKIPS_ZERO) memset(v, 0, sizeof(v));
#pragma unroll
                for (int k = 0; k < UNROLL; k++) {
                    if (i + k * step < count) v[k] = *(const Vector*)(from + k * step * stride);
                }
                from += UNROLL * step * stride;
#pragma unroll
                for (int k = 0; k < UNROLL; k++) {
                    if (F::SKIPS_ZERO || i + k * step < count) {
#pragma unroll
                        for (int j = 0; j < V; j++) {
                            F::add(a[k % CHAINS][j], F::take(value(element<T>(v[k], j)), p.flip), local + i + k * step);
                        }
                    }
                }
            }
        }
    }
    if (splits > 1) turn.number(p.ticket);
    Part whole[V];
#pragma unroll
    for (int j = 0; j < V; j++) {
#pragma unroll
        for (int c = 1; c < CHAINS; c++) a[0][j] = F::merge(a[0][j], a[c][j]);
        whole[j] = F::part(a[0][j], (u64)first * p.run);
    }
    __shared__ Part shared[V][COLUMNS_BLOCK];
    Part* parts = (Part*)(scratch + gridDim.x);
    bool folded = splits == 1;
#pragma unroll 1
    for (;;) {
        const u32 own = lane * outs + slot;
#pragma unroll 1
        for (u32 half = lanes / 2; half > 0; half /= 2) {
#pragma unroll
            for (int j = 0; j < V; j++) shared[j][own] = whole[j];
            __syncthreads();
            if (lane < half) {
#pragma unroll
                for (int j = 0; j < V; j++) whole[j] = F::merge(whole[j], shared[j][own + half * outs]);
            }
            __syncthreads();
        }
        if (folded) break;
        folded = true;
        const u32 split = blockIdx.z * gridDim.y + blockIdx.y;
        if (lane == 0 && output < p.outputs) {
#pragma unroll
            for (int j = 0; j < V; j++) parts[split * p.outputs + output + j] = whole[j];
        }
        if (!turn.is_last(p.ticket, splits)) return;
#pragma unroll
        for (int j = 0; j < V; j++) whole[j] = nothing<F>();
        if (output < p.outputs) {
#pragma unroll 1
            for (u32 s = lane; s < splits; s += lanes) {
#pragma unroll
                for (int j = 0; j < V; j++) whole[j] = F::merge(whole[j], left(&parts[s * p.outputs + output + j]));
            }
        }
    }
    if (lane != 0 || output >= p.outputs) return;
#pragma unroll
    for (int j = 0; j < V; j++) F::put(result + at[RESULT] + j * p.kept.strides[RESULT][0], whole[j], p);
}

#define ROWS(NAME, FOLD, T)                                                                             \
    extern "C" __global__ __launch_bounds__(ROWS_BLOCK, 4) void NAME(                                      \
        const T* source, FOLD<T>::Result* result, u64* scratch, const __grid_constant__ Plan p) {       \
        reduce_rows<FOLD<T>, T, 4>(source, result, scratch, p);                             \
    }
#define COLUMNS(NAME, FOLD, T)                                                                          \
    extern "C" __global__ __launch_bounds__(COLUMNS_BLOCK, 4) void NAME(                                   \
        const T* source, FOLD<T>::Result* result, u64* scratch, const __grid_constant__ Plan p) {       \
        reduce_columns<FOLD<T>, T, vector(sizeof(T), 4), 4>(source, result, scratch, p); \
    }
#define STRIDED(NAME, FOLD, T)                                                                          \
    extern "C" __global__ __launch_bounds__(COLUMNS_BLOCK, 4) void NAME(                                   \
        const T* source, FOLD<T>::Result* result, u64* scratch, const __grid_constant__ Plan p) {       \
        reduce_columns<FOLD<T>, T, 1, 8>(source, result, scratch, p);                    \
    }
