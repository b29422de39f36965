// Passes of a bitonic sort over rows of `padded` pairs, which are at least as long as a tile.

__device__ __forceinline__ bool ascends(u64 at, u64 size, const Pass& p) {
    return (at & (p.padded - 1) & size) == 0;
}

// Runs all stages up to size `TILE`, which sort each tile.
extern "C" __global__ __launch_bounds__(1024) void sort_passes_tiles(SortPair* pairs, const __grid_constant__ Pass p) {
    __shared__ SortPair tile[TILE];
    const u64 base = (u64)blockIdx.x * TILE;
    for (u32 i = threadIdx.x; i < TILE; i += blockDim.x) tile[i] = pairs[base + i];
    for (u32 size = 2; size <= TILE; size *= 2) {
        for (u32 distance = size / 2; distance > 0; distance /= 2) {
            __syncthreads();
            const u32 low = 2 * threadIdx.x - (threadIdx.x & (distance - 1));
            exchange(tile[low], tile[low + distance], ascends(base + low, size, p));
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < TILE; i += blockDim.x) pairs[base + i] = tile[i];
}

// Runs one step of a stage, over a distance of at least a tile.
extern "C" __global__ __launch_bounds__(256) void sort_passes_step(SortPair* pairs, const __grid_constant__ Pass p) {
    const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 low = 2 * thread - (thread & (p.distance - 1));
    exchange(pairs[low], pairs[low + p.distance], ascends(low, p.size, p));
}

// Runs the remaining steps of a stage, over distances below a tile.
extern "C" __global__ __launch_bounds__(1024) void sort_passes_merge(SortPair* pairs, const __grid_constant__ Pass p) {
    __shared__ SortPair tile[TILE];
    const u64 base = (u64)blockIdx.x * TILE;
    for (u32 i = threadIdx.x; i < TILE; i += blockDim.x) tile[i] = pairs[base + i];
    for (u32 distance = TILE / 2; distance > 0; distance /= 2) {
        __syncthreads();
        const u32 low = 2 * threadIdx.x - (threadIdx.x & (distance - 1));
        exchange(tile[low], tile[low + distance], ascends(base + low, p.size, p));
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < TILE; i += blockDim.x) pairs[base + i] = tile[i];
}
