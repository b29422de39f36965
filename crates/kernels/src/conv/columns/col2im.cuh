// image = sums of elements of the columns. A thread owns one element of the image and adds the
// contributions of the windows in a fixed order. Without atomics, sums are the same in each run.

template <class T>
__device__ __forceinline__ void col2im(const T* __restrict__ columns, T* image, const Columns& p) {
    const Taps& t = p.taps;
    const u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    const u32 plane = t.input[1] * t.input[2];
    if (at >= t.input[0] * plane) return;
    const i32 d = at / plane, rest = at - d * plane, h = rest / t.input[2], w = rest - h * t.input[2];
    const i64 taps = (i64)t.kernel[0] * t.kernel[1] * t.kernel[2];
    for (u32 n = blockIdx.z; n < p.batch; n += gridDim.z) {
        for (u32 c = blockIdx.y; c < p.channels; c += gridDim.y) {
            const T* row = columns + n * p.columns[0] + c * taps * p.columns[1];
            compute_t<T> sum = 0;
            for (i32 i = 0; i < t.kernel[0]; i++) {
                const i32 fd = d + t.padding[0] - i * t.dilation[0], od = fd / t.stride[0];
                const bool in_d = fd >= 0 && od * t.stride[0] == fd && od < t.output[0];
                for (i32 j = 0; j < t.kernel[1]; j++) {
                    const i32 fh = h + t.padding[1] - j * t.dilation[1], oh = fh / t.stride[1];
                    if (!in_d || fh < 0 || oh * t.stride[1] != fh || oh >= t.output[1]) {
                        row += t.kernel[2] * p.columns[1];
                        continue;
                    }
                    const i64 line = ((i64)od * t.output[1] + oh) * t.output[2];
                    for (i32 k = 0; k < t.kernel[2]; k++, row += p.columns[1]) {
                        const i32 fw = w + t.padding[2] - k * t.dilation[2], ow = fw / t.stride[2];
                        if (fw >= 0 && ow * t.stride[2] == fw && ow < t.output[2]) {
                            sum += load(row[line + ow]);
                        }
                    }
                }
            }
            store(image[n * p.image[0] + c * p.image[1] + d * p.image[2] + h * p.image[3] + w * p.image[4]], sum);
        }
    }
}

#define COL2IM(T)                                                                                 \
    extern "C" __global__ void col2im_##T(                                                        \
        const T* columns, T* image, const __grid_constant__ Columns p) {                          \
        col2im(columns, image, p);                                                                \
    }
