// The kernels of gpu_driver.rs. gpu_kernels.ptx is this, compiled for compute_75 by NVRTC 12.0.

struct Params {
    int n;
    float by;
};

// x[i] += by
extern "C" __global__ void add(float* x, Params p) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.n) x[i] += p.by;
}

// Takes no parameter block: out[i] = in[i] + 1
extern "C" __global__ void next(float* out, const float* in) {
    out[threadIdx.x] = in[threadIdx.x] + 1.0f;
}

// Keeps a stream busy for that many nanoseconds.
extern "C" __global__ void spin(unsigned long long* out, unsigned long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
    *out = now - start;
}
