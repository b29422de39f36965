// Operand `K` of an elementwise op: elements of memory, or a number.
template <int K, class T, int V, int N>
__device__ __forceinline__ void
operand(const T* p, u64 left, const Numbers<N>& numbers, compute_t<T> (&to)[V]) {
    if (numbers.which >> K & 1) {
        const auto value = number<compute_t<T>>(numbers.number[K]);
#pragma unroll
        for (int k = 0; k < V; k++) to[k] = value;
    } else {
        load_vec(p, left, to);
    }
}

template <int K, class T, int V, int N>
__device__ __forceinline__ void operand(
    const T* p, i32 stride, const Run<N + 1>& run, const Numbers<N>& numbers, compute_t<T> (&to)[V]) {
    if (numbers.which >> K & 1) {
        const auto value = number<compute_t<T>>(numbers.number[K]);
#pragma unroll
        for (int k = 0; k < V; k++) to[k] = value;
    } else {
        load_run(p + run.at[K], stride, run, to);
    }
}

// The dtype of operand `K`, of which the last is the result.
template <int K, int N> __device__ __forceinline__ u32 dtype(const Numbers<N>& numbers) {
    return numbers.dtypes >> 4 * K & 15;
}

// Operand `K` of any dtype, as a `T`; a condition is of bools.
template <int K, class T, int N>
__device__ __forceinline__ compute_t<T> element(const void* p, i32 at, const Numbers<N>& numbers) {
    if (numbers.which >> K & 1) return number<compute_t<T>>(numbers.number[K]);
    return load(converted<T>(p, at, dtype<K>(numbers)));
}
template <int K, int N>
__device__ __forceinline__ bool condition(const void* p, i32 at, const Numbers<N>& numbers) {
    if (numbers.which >> K & 1) return number<bool>(numbers.number[K]);
    return load(((const boolean*)p)[at]);
}
