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

// The position of a thread in three dimensions, and the channels that it visits. `p.team` threads
// next to each other have one position and neighbouring channels.
struct Own {
    u32 at, first_channel, channel_step;
    i32 position[3];
    // Whether the thread has a position.
    bool exists;
    __device__ __forceinline__ Own(const Pools& p, const i32 (&sizes)[3]) {
        at = (blockIdx.x * blockDim.x + threadIdx.x) / p.team;
        first_channel = blockIdx.y * p.team + threadIdx.x % p.team;
        channel_step = gridDim.y * p.team;
        const u32 plane = sizes[1] * sizes[2];
        exists = at < sizes[0] * plane;
        position[0] = at / plane;
        const u32 rest = at - position[0] * plane;
        position[1] = rest / sizes[2];
        position[2] = rest - position[1] * sizes[2];
    }
};

// Returns the distance of an element from the first of its plane.
__device__ __forceinline__ i64 offset(const i64 (&strides)[5], i32 d, i32 h, i32 w) {
    return d * strides[2] + h * strides[3] + w * strides[4];
}

__device__ __forceinline__ i64 count(const i32 (&sizes)[3]) { return (i64)sizes[0] * sizes[1] * sizes[2]; }
