// Returns the dtype of operand `K`. The results follow the operands in `numbers.dtypes`. `NUMBER` there marks an
// unwanted result.
template <int K, int N> __device__ __forceinline__ u32 dtype(const Numbers<N>& numbers) {
    return numbers.dtypes >> 4 * K & 15;
}
// Returns whether operand `K` is a number and not a tensor.
template <int K, int N> __device__ __forceinline__ bool is_number(const Numbers<N>& numbers) {
    return dtype<K>(numbers) == NUMBER;
}

template <class T, int V>
__device__ __forceinline__ void all_of(compute_t<T> value, compute_t<T> (&to)[V]) {
#pragma unroll
    for (int k = 0; k < V; k++) to[k] = value;
}

// Sets `to` to a whole vector of operand `K`. `loaded` is ignored if the operand is a number.
template <int K, class T, int V, int N>
__device__ __forceinline__ void
operand(const Raw<V * sizeof(T)>& loaded, const Numbers<N>& numbers, compute_t<T> (&to)[V]) {
    if (is_number<K>(numbers)) all_of<T>(number<compute_t<T>>(numbers.number[K]), to);
    else unpack<T>(loaded, to);
}

// Returns one element of operand `K`.
template <int K, class T, int N>
__device__ __forceinline__ compute_t<T> operand(const T* p, const Numbers<N>& numbers) {
    return is_number<K>(numbers) ? number<compute_t<T>>(numbers.number[K]) : load(*p);
}

// Sets `to` to a run of operand `K`. A stride of 0 repeats one element.
template <int K, class T, int V, int N, int VIEWS>
__device__ __forceinline__ void operand(
    const T* p, i32 stride, const Run<VIEWS>& run, const Numbers<N>& numbers, compute_t<T> (&to)[V]) {
    if (is_number<K>(numbers)) all_of<T>(number<compute_t<T>>(numbers.number[K]), to);
    else if (stride == 0) all_of<T>(load(p[run.at[K]]), to);
    else load_run(p + run.at[K], stride, run, to);
}

// Returns an element of any dtype, converted to `T`.
template <int K, class T, int N>
__device__ __forceinline__ compute_t<T> element(const void* p, i32 at, const Numbers<N>& numbers) {
    if (is_number<K>(numbers)) return number<compute_t<T>>(numbers.number[K]);
    return load(converted<T>(p, at, dtype<K>(numbers)));
}
// Returns an element of a condition, whose dtype is bool.
template <int K, int N>
__device__ __forceinline__ bool condition(const void* p, i32 at, const Numbers<N>& numbers) {
    return operand<K>((const boolean*)p + at, numbers);
}
