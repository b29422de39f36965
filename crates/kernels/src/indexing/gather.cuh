// out = source, at the places that indices name along one dimension; 0 where there is none.
// Elements are moved as they are, so that only their size matters.
template <class T, class I>
__device__ __forceinline__ void gather(const T* source, const I* index, T* out, const Pick& p) {
    for (u64 i = thread(); i < p.space.numel; i += threads()) {
        i32 at[3];
        offsets(p.space, (u32)i, at);
        const i64 k = index[at[1]];
        out[at[2]] = check_index(k, p.report) ? source[at[0] + k * p.step] : (T)0;
    }
}

#define GATHER(T, I)                                                                        \
    extern "C" __global__ void gather_##T##_##I(                                               \
        const T* source, const I* index, T* out, const __grid_constant__ Pick p) {                \
        gather(source, index, out, p);                                                            \
    }
