// Sets the condition of a graph's conditional node: whether any byte of a value is not zero.

// A function of the driver, which NVRTC 12.0 does not declare.
extern "C" __device__ void cudaGraphSetConditional(u64 condition, unsigned value);

extern "C" __global__ void condition_set(const u8* value, const __grid_constant__ SetCondition p) {
    unsigned bits = 0;
    for (u64 i = 0; i < p.bytes; ++i) bits |= value[i];
    cudaGraphSetConditional(p.condition, bits != 0);
}
