// Writes elements of a source at indices along a dimension, or combines them with the elements
// there.

template <int KIND, class C> __device__ __forceinline__ C combine(C a, C b) {
    if constexpr (KIND == ASSIGN) return b;
    else if constexpr (same<C, bool>::value) return KIND == SUM || KIND == MAX ? a || b : a && b;
    else if constexpr (KIND == SUM) return (C)(a + b);
    else if constexpr (KIND == PROD) return (C)(a * b);
    else if constexpr (KIND == MAX) return a > b || a != a ? a : b;
    else return a < b || a != a ? a : b;
}

// Combines an element with `value`, while other threads may update the same element.
template <int KIND, class T> __device__ __forceinline__ void update(T* at, T value) {
    typedef compute_t<T> C;
    if constexpr (KIND == ASSIGN) {
        // A volatile store is not torn. If several threads write the element, any of them may be
        // the last.
        *(volatile T*)at = value;
    } else if constexpr (KIND == SUM && (same<T, f32>::value || same<T, f64>::value)) {
        atomicAdd(at, value);
    } else if constexpr (KIND == SUM && same<T, i32>::value) {
        atomicAdd((unsigned int*)at, (unsigned int)value);
    } else if constexpr (KIND == SUM && same<T, i64>::value) {
        atomicAdd((u64*)at, (u64)value);
    } else if constexpr (sizeof(T) == 8) {
        union { u64 bits; T element; } old, seen;
        old.bits = *(volatile u64*)at;
        do {
            seen = old;
            T next;
            store(next, combine<KIND>(load(seen.element), load(value)));
            old.bits = atomicCAS((u64*)at, seen.bits, *(u64*)&next);
        } while (old.bits != seen.bits);
    } else {
        // Compares and swaps the aligned word of the element, and keeps the word's other bytes.
        const u32 shift = (u32)((u64)at & 3) * 8;
        u32* word = (u32*)((u64)at & ~3ull);
        const u32 mask = (sizeof(T) == 4 ? ~0u : (1u << (sizeof(T) % 4 * 8)) - 1) << shift;
        u32 old = *(volatile u32*)word, seen;
        do {
            seen = old;
            const u32 low = (seen & mask) >> shift;
            T element, next;
            memcpy(&element, &low, sizeof(T));
            store(next, combine<KIND>(load(element), load(value)));
            u32 bits = 0;
            memcpy(&bits, &next, sizeof(T));
            old = atomicCAS(word, seen, (seen & ~mask) | (bits << shift));
        } while (old != seen);
    }
}

// Processes one element of the index per thread.
template <int KIND, class T>
__device__ __forceinline__ void
elements(const T* source, const i64* index, T* out, const Scatter& p) {
    const u64 e = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= p.elements) return;
    const i64 k = index[walk(p.walk, 1, e)];
    if (!check_index(k, p.report)) return;
    update<KIND>(out + walk(p.walk, 2, e) + k * p.steps[2], source[walk(p.walk, 0, e)]);
}

// Processes one element of the result per thread. The thread combines all elements whose index
// names it, in order, so that the result is the same in each run.
template <int KIND, class T>
__device__ __forceinline__ void
ordered(const T* source, const i64* index, T* out, const Scatter& p) {
    const u64 e = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= p.elements) return;
    const i64 from = walk(p.walk, 0, e), at = walk(p.walk, 1, e), row = walk(p.walk, 3, e);
    T* to = out + walk(p.walk, 2, e);
    compute_t<T> value = load(*to);
    bool found = false;
    for (u64 n = 0; n < p.count; n++) {
        const i64 k = index[at + (i64)n * p.steps[1]];
        if (!check_index(k, p.report) || k != row) continue;
        value = combine<KIND>(value, load(source[from + (i64)n * p.steps[0]]));
        found = true;
    }
    if (found) store(*to, value);
}

// Processes one line of the result along the dimension per thread, with the indices in order.
template <int KIND, class T>
__device__ __forceinline__ void
lines(const T* source, const i64* index, T* out, const Scatter& p) {
    const u64 line = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (line >= p.elements) return;
    const i64 from = walk(p.lines, 0, line), at = walk(p.lines, 1, line);
    T* to = out + walk(p.lines, 2, line);
    for (u64 n = 0; n < p.count; n++) {
        const i64 k = index[at + (i64)n * p.steps[1]];
        if (!check_index(k, p.report)) continue;
        T& held = to[k * p.steps[2]];
        const compute_t<T> value = load(source[from + (i64)n * p.steps[0]]);
        store(held, combine<KIND>(load(held), value));
    }
}

#define SCATTER(NAME, T, KIND)                                                                    \
    extern "C" __global__ __launch_bounds__(256) void NAME(                                       \
        const T* source, const i64* index, T* out, const __grid_constant__ Scatter p) {           \
        elements<KIND>(source, index, out, p);                                                    \
    }

#define SCATTER_REDUCE(NAME, T, KIND)                                                             \
    SCATTER(NAME, T, KIND)                                                                        \
    extern "C" __global__ __launch_bounds__(256) void NAME##_ordered(                             \
        const T* source, const i64* index, T* out, const __grid_constant__ Scatter p) {           \
        ordered<KIND>(source, index, out, p);                                                     \
    }                                                                                             \
    extern "C" __global__ __launch_bounds__(256) void NAME##_lines(                               \
        const T* source, const i64* index, T* out, const __grid_constant__ Scatter p) {           \
        lines<KIND>(source, index, out, p);                                                       \
    }
