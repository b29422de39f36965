// Finds the last of the blocks that share a result. Each block stores its partial result, and the
// last block folds all of them in the order of the blocks. The counter may start with any value:
// the first block to arrive sets it to the ticket, which no other launch has. No launch therefore
// has to clear counters.
struct Turn {
    u64* counter;
    u64 seen;

    // Reads the counter long before its use, so that no thread waits for the load.
    __device__ __forceinline__ void begin(u64* scratch) {
        counter = scratch + blockIdx.x;
        if (threadIdx.x == 0) seen = *(volatile u64*)counter;
    }
    __device__ __forceinline__ void number(u64 ticket) {
        if (threadIdx.x == 0 && (seen ^ ticket) >> 16) atomicCAS(counter, seen, ticket);
    }
    // Returns whether this block is the last of `splits`.
    __device__ __forceinline__ bool is_last(u64 ticket, u32 splits) {
        bool last = false;
        __syncthreads();
        if (threadIdx.x == 0) {
            // One acquire-release operation replaces two fences. Later blocks see all writes of
            // this block, and this block sees the writes of earlier ones.
            u64 before;
            asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], 1;"
                         : "=l"(before) : "l"(__cvta_generic_to_global(counter)) : "memory");
            last = before == ticket + splits - 1;
            // A replay of a graph has the same ticket, so it must not find the count of this
            // launch.
            if (last) *(volatile u64*)counter = 0;
        }
        return __syncthreads_or(last);
    }
};
