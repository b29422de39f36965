// Softmax over one dimension, relative to the maximum. The maximum may ignore a NaN, because a NaN
// makes the sum NaN.

// Rescales a sum of exponentials from one maximum to another.
template <class T, class C> __device__ __forceinline__ C rescaled(C sum, C from, C to) {
    return from == to ? sum : sum * exponential<T>(from - to);
}

// Maps a value to its quotient of exponential and sum, or to the logarithm of that quotient.
template <class T, class C> struct Result {
    C largest, scale;
    bool log;
    __device__ __forceinline__ Result(C largest, C sum, bool log)
        : largest(largest), scale(log ? logarithm(sum) : inverse(sum)), log(log) {}
    __device__ __forceinline__ C of(C x) const {
        return log ? x - largest - scale : exponential<T>(x - largest) * scale;
    }
};

template <class T, int V>
__device__ __forceinline__ void loaded(const Vec<T, V>& raw, compute_t<T> (&v)[V]) {
#pragma unroll
    for (int j = 0; j < V; j++) v[j] = load(raw.v[j]);
}

// The 16 bytes of a vector, as elements and as words.
template <class T, int V> union Words {
    Vec<T, V> raw;
    u32 words[4];
};

// Writes vector `i` if it is less than `vectors`. Uses a predicate, because a dozen branches are
// slow to compile.
template <class T, int V>
__device__ __forceinline__ void write(T* to, u32 i, u32 vectors, const compute_t<T> (&v)[V]) {
    Words<T, V> of;
#pragma unroll
    for (int j = 0; j < V; j++) store(of.raw.v[j], v[j]);
    asm volatile(
        "{ .reg .pred p; setp.lt.u32 p, %5, %6; @p st.global.v4.u32 [%0], {%1, %2, %3, %4}; }"
        ::"l"(to + i * V), "r"(of.words[0]), "r"(of.words[1]), "r"(of.words[2]), "r"(of.words[3]), "r"(i),
        "r"(vectors)
        : "memory");
}

// Returns the offset of row `row` in an operand. Most operands need only one stride.
__device__ __forceinline__ i64 row_offset(const Rows& p, int operand, u64 row) {
    return p.walk.ndim == 1 ? (i64)row * p.walk.strides[operand][0] : walk(p.walk, operand, row);
}

// Sets `first` to the 16 bytes from byte `by` on of two consecutive vectors.
__device__ __forceinline__ void shift(u32 (&first)[4], const u32 (&second)[4], u32 by) {
    u32 w[8];
#pragma unroll
    for (int k = 0; k < 4; k++) w[k] = first[k], w[k + 4] = second[k];
#pragma unroll
    for (int k = 0; k < 6; k++) w[k] = by & 8 ? w[k + 2] : w[k];
#pragma unroll
    for (int k = 0; k < 5; k++) w[k] = by & 4 ? w[k + 1] : w[k];
#pragma unroll
    for (int k = 0; k < 4; k++) first[k] = __funnelshift_r(w[k], w[k + 1], by * 8);
}

// A dense row: whole vectors, and odd elements before and after the vectors. Each of the first
// threads processes one odd element. `SHIFTED` means that source and result begin at different
// positions within a vector. Then vectors are aligned with the result, and each is cut out of two
// vectors of the source. Reads outside the row stay within 16 bytes that also hold elements of the
// row.
template <class T, int V, bool SHIFTED> struct Row {
    typedef Vec<T, V> Vector;
    typedef compute_t<T> C;
    const T* from;
    T* to;
    // Offset of a vector of the result from the aligned vectors of the source that it is cut out of, in
    // bytes. 0 unless `SHIFTED`.
    u32 by;
    u32 vectors;
    i32 odd;
    bool has_odd;

    // `t` is the number of the thread in the row's team.
    __device__ __forceinline__ Row(const T* source, T* result, u32 size, u32 t) {
        u32 head = (0u - (u32)(u64)result) % sizeof(Vector) / sizeof(T);
        head = head < size ? head : size;
        vectors = (size - head) / V;
        from = source + head;
        to = result + head;
        by = SHIFTED ? (u32)(u64)from % sizeof(Vector) : 0;
        odd = (i32)(t - head) + (t < head ? 0 : (i32)(vectors * V));
        has_odd = t < size - vectors * V;
    }
    // Returns vector `i` of the source, or negative infinities beyond the last one.
    __device__ __forceinline__ Vector vector(u32 i) const {
        Words<T, V> of;
#pragma unroll
        for (int j = 0; j < V; j++) store(of.raw.v[j], lowest<C>());
        if constexpr (SHIFTED) {
            Words<T, V> next = of;
            asm volatile(
                "{ .reg .pred p, q; setp.lt.u32 p, %9, %10; setp.ne.and.u32 q, %11, 0, p; "
                "@p ld.global.v4.u32 {%0, %1, %2, %3}, [%8]; "
                "@q ld.global.v4.u32 {%4, %5, %6, %7}, [%8+16]; }"
                : "+r"(of.words[0]), "+r"(of.words[1]), "+r"(of.words[2]), "+r"(of.words[3]),
                  "+r"(next.words[0]), "+r"(next.words[1]), "+r"(next.words[2]), "+r"(next.words[3])
                : "l"((u64)(from + i * V) - by), "r"(i), "r"(vectors), "r"(by)
                : "memory");
            shift(of.words, next.words, by);
        } else {
            asm volatile(
                "{ .reg .pred p; setp.lt.u32 p, %5, %6; @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                : "+r"(of.words[0]), "+r"(of.words[1]), "+r"(of.words[2]), "+r"(of.words[3])
                : "l"(from + i * V), "r"(i), "r"(vectors)
                : "memory");
        }
        return of.raw;
    }
    __device__ __forceinline__ C odd_one() const { return has_odd ? load(from[odd]) : lowest<C>(); }
};

// Processes a row in registers: `K` vectors per thread. `t` is the number of the thread in the
// `team`, which is a part of a warp or a whole block.
template <class T, int K, bool BLOCK, bool SHIFTED>
__device__ __forceinline__ void
held(const T* source, T* result, u32 size, u32 t, u32 team, bool log) {
    constexpr int V = vector_width(sizeof(T));
    typedef compute_t<T> C;
    const Row<T, V, SHIFTED> row(source, result, size, t);
    Vec<T, V> raw[K];
#pragma unroll
    for (int k = 0; k < K; k++) raw[k] = row.vector(t + k * team);
    C v[K][V], odd = row.odd_one(), most = Larger::of(lowest<C>(), odd), sum = 0;
#pragma unroll
    for (int k = 0; k < K; k++) {
        loaded(raw[k], v[k]);
#pragma unroll
        for (int j = 0; j < V; j++) most = Larger::of(most, v[k][j]);
    }
    // Each warp of a block uses its own maximum, so that the block waits at one barrier only.
    if (BLOCK) most = fold_warp<Larger>(most);
    else most = fold_lanes<Larger>(most, team);
    const C base = most == lowest<C>() ? (C)0 : most;
#pragma unroll
    for (int k = 0; k < K; k++) {
        // The team may have fewer vectors than `K` per thread. The branch also separates calls for
        // `f64`, which saves registers.
        if (K > 4 && k * team >= row.vectors) continue;
        Vec<C, V> e;
#pragma unroll
        for (int j = 0; j < V; j++) e.v[j] = v[k][j] -= base;
        e = exponentials<T>(e);
#pragma unroll
        for (int j = 0; j < V; j++) {
            sum += e.v[j];
            if (!log) v[k][j] = e.v[j];
        }
    }
    if (row.has_odd) {
        odd -= base;
        const C e = exponential<T>(odd);
        sum += e;
        if (!log) odd = e;
    }
    C all = most, factor = 1;
    if constexpr (BLOCK) {
        __shared__ C largest[32], sums[32];
        const u32 lane = threadIdx.x % 32;
        sum = fold_warp<Plus>(sum);
        if (lane == 0) {
            largest[threadIdx.x / 32] = most;
            sums[threadIdx.x / 32] = sum;
        }
        __syncthreads();
        const bool has = lane < team / 32;
        const C other = has ? largest[lane] : lowest<C>();
        all = fold_warp<Larger>(other);
        sum = fold_warp<Plus>(has ? sums[lane] * exponential<T>(other - all) : (C)0);
        factor = exponential<T>(most - all);
    } else {
        sum = fold_lanes<Plus>(sum, team);
    }
    const C scale = log ? (C)1 : factor * inverse(sum);
    const C shift = log ? all - base + logarithm(sum) : (C)0;
#pragma unroll
    for (int k = 0; k < K; k++) {
#pragma unroll
        for (int j = 0; j < V; j++) v[k][j] = v[k][j] * scale - shift;
        write(row.to, t + k * team, row.vectors, v[k]);
    }
    if (row.has_odd) store(row.to[row.odd], odd * scale - shift);
}

// Processes rows that fit the registers of up to 32 lanes, `1 << p.tiles` lanes per row.
template <class T, int K, bool SHIFTED = false>
__device__ __forceinline__ void short_rows(const T* source, T* result, const Rows& p) {
    const u32 shift = (u32)p.tiles, team = 1 << shift, teams = blockDim.x >> shift;
    for (u64 first = (u64)blockIdx.x * teams; first < p.rows; first += (u64)gridDim.x * teams) {
        // A team beyond the last row takes part in the folds of its warp, but has no elements.
        const u64 own = first + (threadIdx.x >> shift);
        const bool has = own < p.rows;
        const u64 row = has ? own : first;
        held<T, K, false, SHIFTED>(
            source + row_offset(p, 0, row), result + row_offset(p, 1, row), has ? (u32)p.size : 0,
            threadIdx.x % team, team, p.log);
    }
}

// Processes rows that fit the registers of a block, one block per row.
template <class T, int K, bool SHIFTED = false>
__device__ __forceinline__ void rows(const T* source, T* result, const Rows& p) {
    const u64 row = blockIdx.x;
    held<T, K, true, SHIFTED>(
        source + row_offset(p, 0, row), result + row_offset(p, 1, row), (u32)p.size, threadIdx.x, blockDim.x,
        p.log);
}

// Adds exponentials of values, relative to the maximum so far.
template <class T, int U, int V>
__device__ __forceinline__ void
add(const compute_t<T> (&v)[U][V], compute_t<T>& largest, compute_t<T>& sum) {
    typedef compute_t<T> C;
    C now = largest;
#pragma unroll
    for (int u = 0; u < U; u++) {
#pragma unroll
        for (int j = 0; j < V; j++) now = Larger::of(now, v[u][j]);
    }
    // If all values so far are negative infinities, their differences would be NaN.
    const C base = now == lowest<C>() ? (C)0 : now;
    sum = rescaled<T>(sum, largest, now);
    largest = now;
#pragma unroll
    for (int u = 0; u < U; u++) {
        Vec<C, V> e;
#pragma unroll
        for (int j = 0; j < V; j++) e.v[j] = v[u][j] - base;
        e = exponentials<T>(e);
#pragma unroll
        for (int j = 0; j < V; j++) sum += e.v[j];
    }
}

// Processes longer rows. A row is read once for the sum, and a second time from the end, where the
// cache may still hold it.
template <class T, int U, bool SHIFTED = false>
__device__ __forceinline__ void long_rows(const T* source, T* result, const Rows& p) {
    constexpr int V = vector_width(sizeof(T));
    typedef compute_t<T> C;
    __shared__ C shared[64];
    const u64 number = blockIdx.x;
    const Row<T, V, SHIFTED> row(
        source + row_offset(p, 0, number), result + row_offset(p, 1, number), (u32)p.size, threadIdx.x);
    const u32 team = blockDim.x, step = team * U, steps = (row.vectors + step - 1) / step;
    C v[U][V], largest = lowest<C>(), sum = 0;
    for (u32 n = 0; n < steps; n++) {
        Vec<T, V> raw[U];
#pragma unroll
        for (int u = 0; u < U; u++) raw[u] = row.vector(n * step + u * team + threadIdx.x);
#pragma unroll
        for (int u = 0; u < U; u++) loaded(raw[u], v[u]);
        add<T>(v, largest, sum);
    }
    const C odd[1][1] = {{row.odd_one()}};
    if (row.has_odd) add<T>(odd, largest, sum);
    const C all = fold_block<Larger>(largest, shared, lowest<C>());
    sum = fold_block<Plus>(rescaled<T>(sum, largest, all), shared + 32, (C)0);
    const C scale = p.log ? (C)1 : inverse(sum), shift = p.log ? logarithm(sum) : (C)0;
    for (u32 n = steps; n-- > 0;) {
        const u32 first = n * step + threadIdx.x;
        Vec<T, V> raw[U];
#pragma unroll
        for (int u = 0; u < U; u++) raw[u] = row.vector(first + u * team);
#pragma unroll
        for (int u = 0; u < U; u++) {
            Vec<C, V> e, x;
#pragma unroll
            for (int j = 0; j < V; j++) x.v[j] = load(raw[u].v[j]) - all;
            e = exponentials<T>(x);
#pragma unroll
            for (int j = 0; j < V; j++) x.v[j] = (p.log ? x.v[j] : e.v[j]) * scale - shift;
            write(row.to, first + u * team, row.vectors, x.v);
        }
    }
    const C x = odd[0][0] - all;
    if (row.has_odd) store(row.to[row.odd], (p.log ? x : exponential<T>(x)) * scale - shift);
}
