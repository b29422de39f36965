// Resizing of an image along one dimension, and the transpose. `near` in `cpu.rs` mirrors `Near`.

// The elements of the image that contribute to element `o`: up to four from `first` on, with their
// weights. The nearest element inside stands for each position outside.
template <class C> struct Near {
    i32 first, count;
    C weight[4];

    __device__ __forceinline__ Near(const Resample& p, i32 o) {
        const C scale = (C)p.scale;
        if (p.kind < 2) {
            const C at = floor(p.kind == 0 ? o * scale : (o + (C)0.5) * scale);
            first = min((i32)at, p.input - 1), count = 1;
            weight[0] = 1, weight[1] = weight[2] = weight[3] = 0;
            return;
        }
        C at = p.align_corners ? o * scale : scale * (o + (C)0.5) - (C)0.5;
        if (p.kind == 2) {
            at = at < 0 ? (C)0 : at;
            first = min((i32)at, p.input - 1), count = 2;
            const C t = at - first < 1 ? at - first : (C)1;
            weight[0] = 1 - t, weight[1] = t, weight[2] = weight[3] = 0;
            return;
        }
        const C below = floor(at), t = at - below, A = (C)-0.75;
        first = (i32)below - 1, count = 4;
        const C x[4] = {t + 1, t, 1 - t, 2 - t};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            weight[k] = k == 1 || k == 2
                ? ((A + 2) * x[k] - (A + 3)) * x[k] * x[k] + 1
                : ((A * x[k] - 5 * A) * x[k] + 8 * A) * x[k] - 4 * A;
        }
    }
    __device__ __forceinline__ i32 at(const Resample& p, int k) const {
        return max(0, min(first + k, p.input - 1));
    }
};

template <class T> __device__ __forceinline__ void resample(const T* __restrict__ image, T* out, const Resample& p) {
    typedef compute_t<T> C;
    const u32 inner = (u32)p.inner;
    for (u64 outer = blockIdx.y; outer < p.outer; outer += gridDim.y) {
        for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < p.output * inner; i += gridDim.x * blockDim.x) {
            const u32 o = i / inner, column = i - o * inner;
            const Near<C> near(p, o);
            const T* from = image + outer * p.input * p.inner + column;
            C sum = 0;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if (k < near.count) sum += near.weight[k] * load(from[(u64)near.at(p, k) * p.inner]);
            }
            store(out[outer * p.output * p.inner + i], sum);
        }
    }
}

// Each thread owns one element of the image and adds its contributions in a fixed order.
template <class T>
__device__ __forceinline__ void resample_backward(const T* __restrict__ grad, T* image, const Resample& p) {
    typedef compute_t<T> C;
    const u32 inner = (u32)p.inner;
    for (u64 outer = blockIdx.y; outer < p.outer; outer += gridDim.y) {
        for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < p.input * inner; i += gridDim.x * blockDim.x) {
            const i32 own = i / inner, column = i - own * inner;
            // Only coordinates within two elements of `own` use it. The first and the last element
            // also stand for all positions outside.
            i32 begin = 0, end = p.output;
            if (p.scale > 0) {
                const f64 low = (own - 3) / p.scale - 2, high = (own + 3) / p.scale + 2;
                if (own > 0 && low > 0) begin = (i32)fmin(low, (f64)p.output);
                if (own < p.input - 1) end = (i32)fmin(high, (f64)p.output);
            }
            const T* from = grad + outer * p.output * p.inner + column;
            C sum = 0;
            for (i32 o = begin; o < end; o++) {
                const Near<C> near(p, o);
                C weight = 0;
                bool any = false;
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    if (k < near.count && near.at(p, k) == own) weight += near.weight[k], any = true;
                }
                if (any) sum += weight * load(from[(u64)o * p.inner]);
            }
            store(image[outer * p.input * p.inner + i], sum);
        }
    }
}

#define RESAMPLE(T)                                                                               \
    extern "C" __global__ void resample_##T(                                                      \
        const T* image, T* out, const __grid_constant__ Resample p) {                             \
        resample(image, out, p);                                                                  \
    }                                                                                             \
    extern "C" __global__ void resample_##T##_backward(                                           \
        const T* grad, T* image, const __grid_constant__ Resample p) {                            \
        resample_backward(grad, image, p);                                                        \
    }
