// Blocks that share a result: each leaves what it has, and the last of them to do so folds all, in their order.
// What counts them is anything to begin with. The first block to come makes it this launch's number, which no
// other launch has: so nothing has to be cleared before.
struct Turn {
    u64* counter;
    u64 seen;

    // Long before the others, so that nobody waits for what is read.
    __device__ __forceinline__ void begin(u64* scratch) {
        counter = scratch + blockIdx.x;
        if (threadIdx.x == 0) seen = *(volatile u64*)counter;
    }
    __device__ __forceinline__ void number(u64 ticket) {
        if (threadIdx.x == 0 && (seen ^ ticket) >> 16) atomicCAS(counter, seen, ticket);
    }
    // Whether this block is the last of `splits`.
    __device__ __forceinline__ bool is_last(u64 ticket, u32 splits) {
        bool last = false;
        __syncthreads();
        if (threadIdx.x == 0) {
            // One for two fences: what the whole block has written is seen by whoever comes later, and what others
            // have written by the block.
            u64 before;
            asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], 1;"
                         : "=l"(before) : "l"(__cvta_generic_to_global(counter)) : "memory");
            last = before == ticket + splits - 1;
            // A replay of a graph has the same number.
            if (last) *(volatile u64*)counter = 0;
        }
        return __syncthreads_or(last);
    }
};
