// columns = elements of the image under each position of a window. A thread owns one position and
// writes its element of every row, so neighbouring threads write neighbouring elements. Elements
// are copied as raw bits.

template <class T>
__device__ __forceinline__ void im2col(const T* __restrict__ image, T* columns, const Columns& p) {
    const Taps& t = p.taps;
    const u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    const u32 plane = t.output[1] * t.output[2];
    if (at >= t.output[0] * plane) return;
    const u32 od = at / plane, rest = at - od * plane, oh = rest / t.output[2];
    const i32 d0 = (i32)od * t.stride[0] - t.padding[0];
    const i32 h0 = (i32)oh * t.stride[1] - t.padding[1];
    const i32 w0 = (i32)(rest - oh * t.output[2]) * t.stride[2] - t.padding[2];
    const i64 taps = (i64)t.kernel[0] * t.kernel[1] * t.kernel[2];
    for (u32 n = blockIdx.z; n < p.batch; n += gridDim.z) {
        for (u32 c = blockIdx.y; c < p.channels; c += gridDim.y) {
            const T* from = image + n * p.image[0] + c * p.image[1];
            T* to = columns + n * p.columns[0] + c * taps * p.columns[1] + at;
            for (i32 i = 0, d = d0; i < t.kernel[0]; i++, d += t.dilation[0]) {
                for (i32 j = 0, h = h0; j < t.kernel[1]; j++, h += t.dilation[1]) {
                    const bool inside = (u32)d < t.input[0] && (u32)h < t.input[1];
                    const T* row = from + d * p.image[2] + h * p.image[3];
#pragma unroll 4
                    for (i32 k = 0; k < t.kernel[2]; k++) {
                        const i32 w = w0 + k * t.dilation[2];
                        *to = inside && (u32)w < t.input[2] ? row[w * p.image[4]] : T{};
                        to += p.columns[1];
                    }
                }
            }
        }
    }
}

#define IM2COL(T)                                                                                 \
    extern "C" __global__ void im2col_##T(                                                        \
        const T* image, T* columns, const __grid_constant__ Columns p) {                          \
        im2col(image, columns, p);                                                                \
    }
