// out = source, at the places that indices name along one dimension; 0 where there is none.
// Elements are moved as they are, so that only their size matters.
#include "report.cuh"
#include "space.cuh"

struct Pick {
    Report report;
    i64 step;
    Index<3> space;
};

template <class T, class I>
__device__ __forceinline__ void gather(const T* source, const I* index, T* out, const Pick& p) {
    for (u64 i = thread(); i < p.space.numel; i += threads()) {
        i32 at[3];
        offsets(p.space, (u32)i, at);
        const i64 k = index[at[1]];
        out[at[2]] = check_index(k, p.report) ? source[at[0] + k * p.step] : (T)0;
    }
}

#define GATHER(name, T, I)                                                                        \
    extern "C" __global__ void gather_##name##_##I(                                               \
        const T* source, const I* index, T* out, const __grid_constant__ Pick p) {                \
        gather(source, index, out, p);                                                            \
    }

GATHER(1_byte, u8, i32)
GATHER(1_byte, u8, i64)
GATHER(2_bytes, u16, i32)
GATHER(2_bytes, u16, i64)
GATHER(4_bytes, u32, i32)
GATHER(4_bytes, u32, i64)
GATHER(8_bytes, u64, i32)
GATHER(8_bytes, u64, i64)
