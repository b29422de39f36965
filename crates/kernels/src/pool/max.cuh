// Largest element of each window with its index, and the gradient of the image.

template <class T>
__device__ __forceinline__ void max_pool(const T* __restrict__ image, T* values, i64* indices, const Pools& p) {
    typedef compute_t<T> C;
    const Taps& t = p.taps;
    const Own own(p, t.output);
    if (!own.exists) return;
    i32 padded;
    const Span d = elements(p, 0, own.position[0], padded), h = elements(p, 1, own.position[1], padded);
    const Span w = elements(p, 2, own.position[2], padded);
    const i32 step[3] = {
        p.adaptive ? 1 : t.dilation[0], p.adaptive ? 1 : t.dilation[1], p.adaptive ? 1 : t.dilation[2]};
    for (u32 n = blockIdx.z; n < p.batch; n += gridDim.z) {
        for (u32 c = own.first_channel; c < p.channels; c += own.channel_step) {
            const T* from = image + n * p.image[0] + c * p.image[1];
            // Among equal elements the first is taken, among NaNs the last.
            bool any = false;
            T best = T{};
            C most = 0;
            i32 index = (d.begin * t.input[1] + h.begin) * t.input[2] + w.begin;
            for (i32 i = d.begin; i < d.end; i += step[0]) {
                for (i32 j = h.begin; j < h.end; j += step[1]) {
                    for (i32 k = w.begin; k < w.end; k += step[2]) {
                        const T raw = from[i * p.image[2] + j * p.image[3] + k * p.image[4]];
                        const C v = load(raw);
                        if (!any || v > most || v != v) {
                            any = true;
                            best = raw, most = v;
                            index = (i * t.input[1] + j) * t.input[2] + k;
                        }
                    }
                }
            }
            const i64 to = n * p.result[0] + c * p.result[1] + offset(p.result, own.position[0], own.position[1], own.position[2]);
            values[to] = best;
            indices[to] = index;
        }
    }
}

template <class T>
__device__ __forceinline__ void
max_pool_backward(const T* __restrict__ grad, const i64* __restrict__ indices, T* image, const Pools& p) {
    const Taps& t = p.taps;
    const Own own(p, t.input);
    if (!own.exists) return;
    const Span d = windows(p, 0, own.position[0]), h = windows(p, 1, own.position[1]), w = windows(p, 2, own.position[2]);
    for (u32 n = blockIdx.z; n < p.batch; n += gridDim.z) {
        for (u32 c = own.first_channel; c < p.channels; c += own.channel_step) {
            const i64 from = n * p.result[0] + c * p.result[1];
            compute_t<T> sum = 0;
            for (i32 i = d.begin; i < d.end; i++) {
                for (i32 j = h.begin; j < h.end; j++) {
                    for (i32 k = w.begin; k < w.end; k++) {
                        const i64 o = from + offset(p.result, i, j, k);
                        if (indices[o] == own.at) sum += load(grad[o]);
                    }
                }
            }
            const i64 to = n * p.image[0] + c * p.image[1];
            store(image[to + offset(p.image, own.position[0], own.position[1], own.position[2])], sum);
        }
    }
}

#define MAX_POOL(T)                                                                               \
    extern "C" __global__ void max_pool_##T(                                                      \
        const T* image, T* values, i64* indices, const __grid_constant__ Pools p) {               \
        max_pool(image, values, indices, p);                                                      \
    }                                                                                             \
    extern "C" __global__ void max_pool_##T##_backward(                                           \
        const T* grad, const i64* indices, T* image, const __grid_constant__ Pools p) {           \
        max_pool_backward(grad, indices, image, p);                                               \
    }
