// Average of each window, and the gradient of the image.

// Returns the divisor of a window's sum.
__device__ __forceinline__ i64 divisor(const Pools& p, const i32 (&inside)[3], const i32 (&padded)[3]) {
    return p.divisor ? p.divisor : p.padded ? count(padded) : count(inside);
}

template <class T>
__device__ __forceinline__ void avg_pool(const T* __restrict__ image, T* out, const Pools& p) {
    typedef compute_t<T> C;
    const Taps& t = p.taps;
    const Own own(p, t.output);
    if (!own.exists) return;
    i32 padded[3];
    const Span d = elements(p, 0, own.position[0], padded[0]), h = elements(p, 1, own.position[1], padded[1]);
    const Span w = elements(p, 2, own.position[2], padded[2]);
    const i32 inside[3] = {d.end - d.begin, h.end - h.begin, w.end - w.begin};
    const bool none = inside[0] <= 0 || inside[1] <= 0 || inside[2] <= 0;
    const C by = none ? (C)1 : (C)divisor(p, inside, padded);
    for (u32 n = blockIdx.z; n < p.batch; n += gridDim.z) {
        for (u32 c = own.first_channel; c < p.channels; c += own.channel_step) {
            const T* from = image + n * p.image[0] + c * p.image[1];
            C sum = 0;
            for (i32 i = d.begin; i < d.end; i++) {
                for (i32 j = h.begin; j < h.end; j++) {
                    for (i32 k = w.begin; k < w.end; k++) {
                        sum += load(from[i * p.image[2] + j * p.image[3] + k * p.image[4]]);
                    }
                }
            }
            const i64 to = n * p.result[0] + c * p.result[1];
            store(out[to + offset(p.result, own.position[0], own.position[1], own.position[2])], sum / by);
        }
    }
}

template <class T>
__device__ __forceinline__ void avg_pool_backward(const T* __restrict__ grad, T* image, const Pools& p) {
    typedef compute_t<T> C;
    const Taps& t = p.taps;
    const Own own(p, t.input);
    if (!own.exists) return;
    const Span d = windows(p, 0, own.position[0]), h = windows(p, 1, own.position[1]), w = windows(p, 2, own.position[2]);
    for (u32 n = blockIdx.z; n < p.batch; n += gridDim.z) {
        for (u32 c = own.first_channel; c < p.channels; c += own.channel_step) {
            const i64 from = n * p.result[0] + c * p.result[1];
            C sum = 0;
            for (i32 i = d.begin; i < d.end; i++) {
                i32 inside[3], padded[3];
                const Span a = elements(p, 0, i, padded[0]);
                inside[0] = a.end - a.begin;
                for (i32 j = h.begin; j < h.end; j++) {
                    const Span b = elements(p, 1, j, padded[1]);
                    inside[1] = b.end - b.begin;
                    for (i32 k = w.begin; k < w.end; k++) {
                        const Span e = elements(p, 2, k, padded[2]);
                        inside[2] = e.end - e.begin;
                        const C by = (C)divisor(p, inside, padded);
                        sum += load(grad[from + offset(p.result, i, j, k)]) / by;
                    }
                }
            }
            const i64 to = n * p.image[0] + c * p.image[1];
            store(image[to + offset(p.image, own.position[0], own.position[1], own.position[2])], sum);
        }
    }
}

#define AVG_POOL(T)                                                                               \
    extern "C" __global__ void avg_pool_##T(                                                      \
        const T* image, T* out, const __grid_constant__ Pools p) {                                \
        avg_pool(image, out, p);                                                                  \
    }                                                                                             \
    extern "C" __global__ void avg_pool_##T##_backward(                                           \
        const T* grad, T* image, const __grid_constant__ Pools p) {                               \
        avg_pool_backward(grad, image, p);                                                        \
    }
