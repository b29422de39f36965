// Copies rows of keys and values to a cache, from its length on, and advances the length. `state` has
// the length and the counter of blocks that have read it.
template <class T>
__device__ __forceinline__ void
append(const T* k, const T* v, T* keys, T* values, i64* state, const Append& p) {
    const i64 length = *(volatile const i64*)state;
    // The last new position. A negative length, which a caller may have written, is no position.
    const bool fits = check_index(length < 0 ? length : (i64)((u64)length + p.count - 1), p.report);
    const u32 lanes = 1u << (u32)p.lanes;
    const u64 row = (u64)blockIdx.x * (BLOCK / lanes) + threadIdx.x / lanes;
    if (fits && row < p.rows) {
        i64 at[4];
        walk(p.walk, row, at);
        k += at[0], v += at[1];
        keys += length * p.step + at[2];
        values += length * p.step + at[3];
        for (u64 i = threadIdx.x & (lanes - 1); i < p.units; i += lanes) {
            const T key = k[(i64)i * p.steps[0]], value = v[(i64)i * p.steps[1]];
            keys[i] = key;
            values[i] = value;
        }
    }
    // All threads of the block have read the length.
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (gridDim.x > 1) {
        // Orders the reads of the length before the arrival, and the arrivals of all blocks before
        // the write of the length. The counter wraps to 0.
        __threadfence();
        if (atomicInc((u32*)(state + 1), gridDim.x - 1) != gridDim.x - 1) return;
        __threadfence();
    }
    if (fits) *(volatile i64*)state = length + (i64)p.count;
}

#define APPEND(variant, name, T)                                                                  \
    extern "C" __global__ __launch_bounds__(BLOCK) void kv_cache_append_##variant##_##name(       \
        const T* k, const T* v, T* keys, T* values, i64* state, const __grid_constant__ Append p) { \
        append<T>(k, v, keys, values, state, p);                                                  \
    }
