// Kernels of the `gpu_driver` tests. NVRTC 12.0 compiles this file for compute_75 to
// gpu_kernels.ptx.

struct Params {
    int n;
    float by;
};

// Adds `by` to each element.
extern "C" __global__ void add(float* x, Params p) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.n) x[i] += p.by;
}

// Computes out[i] = in[i] + 1. Takes no parameter block.
extern "C" __global__ void next(float* out, const float* in) {
    out[threadIdx.x] = in[threadIdx.x] + 1.0f;
}

// Keeps a stream busy for `nanoseconds`.
extern "C" __global__ void spin(unsigned long long* out, unsigned long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
    *out = now - start;
}
