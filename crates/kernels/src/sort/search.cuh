// Binary search for the positions of values in sorted rows.

template <class T>
__device__ __forceinline__ void search(const T* sorted, const T* values, i64* out, const Search& p) {
    const u64 e = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= p.elements) return;
    const T* row = sorted + walk(p.walk, 0, e);
    const auto value = load(values[walk(p.walk, 1, e)]);
    i64 first = 0, last = (i64)p.size;
    while (first < last) {
        const i64 middle = first + (last - first) / 2;
        const auto other = load(row[middle * p.step]);
        // A NaN belongs at the end of the row. A NaN in the row counts as less than every value.
        if (p.right ? !(other > value) : !(other >= value)) first = middle + 1;
        else last = middle;
    }
    out[walk(p.walk, 2, e)] = first;
}

#define SEARCH(NAME, T)                                                                           \
    extern "C" __global__ __launch_bounds__(256) void NAME(                                       \
        const T* sorted, const T* values, i64* out, const __grid_constant__ Search p) {           \
        search(sorted, values, out, p);                                                           \
    }
