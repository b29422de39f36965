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
