// Elements of the image in a window, and windows over an element, along one dimension.

struct Span { i32 begin, end; };

// Returns the elements of window `o`, which are `dilation` apart. Sets `padded` to the window's
// extent including the padding.
__device__ __forceinline__ Span elements(const Pools& p, int d, i32 o, i32& padded) {
    const Taps& t = p.taps;
    const i32 in = t.input[d], out = t.output[d];
    if (p.adaptive) {
        const i32 begin = (u32)(o * in) / (u32)out, end = ((u32)((o + 1) * in) + out - 1) / (u32)out;
        padded = end - begin;
        return Span{begin, end};
    }
    const i32 step = t.dilation[d];
    i32 begin = o * t.stride[d] - t.padding[d];
    i32 end = begin + (t.kernel[d] - 1) * step + 1;
    padded = min(end, in + t.padding[d]) - begin;
    if (begin < 0) begin += (step - 1 - begin) / step * step;
    end = min(end, in);
    return Span{begin, end};
}

// Returns the windows whose extent contains element `i`. If the window is dilated, `i` may lie
// between its elements.
__device__ __forceinline__ Span windows(const Pools& p, int d, i32 i) {
    const Taps& t = p.taps;
    const u32 in = t.input[d], out = t.output[d];
    if (p.adaptive) return Span{(i32)(i * out / in), (i32)(((i + 1) * out + in - 1) / in)};
    const i32 last = i + t.padding[d], first = last - (t.kernel[d] - 1) * t.dilation[d];
    const i32 begin = first <= 0 ? 0 : (first + t.stride[d] - 1) / t.stride[d];
    return Span{begin, min(last / t.stride[d] + 1, t.output[d])};
}

// Computes the position of this thread in three dimensions. Returns false beyond the last position.
__device__ __forceinline__ bool own_position(const i32 (&sizes)[3], u32& at, i32 (&own)[3]) {
    at = blockIdx.x * blockDim.x + threadIdx.x;
    const u32 plane = sizes[1] * sizes[2];
    if (at >= sizes[0] * plane) return false;
    own[0] = at / plane;
    const u32 rest = at - own[0] * plane;
    own[1] = rest / sizes[2];
    own[2] = rest - own[1] * sizes[2];
    return true;
}

__device__ __forceinline__ i64 count(const i32 (&sizes)[3]) { return (i64)sizes[0] * sizes[1] * sizes[2]; }
