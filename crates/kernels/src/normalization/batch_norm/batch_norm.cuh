// Batch norm: moments of each channel, their use, and the gradients. A channel's elements lie in
// `p.batch` planes of `p.area` elements, or with the channels innermost (`LAST`), one in each of
// `p.batch * p.area` rows. A vector has `V` neighbouring elements: of one channel of a plane, or of
// `V` channels of a row.

// The vectors that a thread visits, all of the same channels.
template <int V, bool LAST> struct Walk {
    // Threads of a block that share a row, and channels of a block.
    static constexpr u32 TEAM = LAST ? (V > 1 ? 8 : 32) : 1;
    static constexpr u32 COLUMNS = LAST ? TEAM * V : 1;
    // Channels of a vector, and its elements per channel.
    static constexpr int CHANNELS = LAST ? V : 1, EACH = LAST ? 1 : V;

    u64 channel, left, offset, plane;
    u32 in_plane, planes_per_step, rest_per_step, vectors_per_plane;
    u64 step;

    __device__ __forceinline__ Walk(const Channels& p) {
        const u32 own = LAST ? threadIdx.x / TEAM : threadIdx.x, height = LAST ? THREADS / TEAM : THREADS;
        const u64 first = (u64)blockIdx.y * height + own, by = (u64)gridDim.y * height;
        const u64 all = LAST ? p.batch * p.area : p.batch * (p.area / V);
        channel = LAST ? (u64)blockIdx.x * COLUMNS + threadIdx.x % TEAM * V : blockIdx.x;
        left = first < all && channel < p.channels ? (all - first + by - 1) / by : 0;
        if constexpr (LAST) {
            offset = first * p.channels + channel;
            step = by * p.channels;
        } else {
            vectors_per_plane = (u32)(p.area / V);
            plane = first / vectors_per_plane;
            in_plane = (u32)(first % vectors_per_plane);
            planes_per_step = (u32)(by / vectors_per_plane);
            rest_per_step = (u32)(by % vectors_per_plane);
            place(p);
        }
    }
    __device__ __forceinline__ void place(const Channels& p) {
        offset = (plane * p.channels + channel) * p.area + (u64)in_plane * V;
    }
    __device__ __forceinline__ void advance(const Channels& p) {
        left--;
        if constexpr (LAST) {
            offset += step;
        } else {
            plane += planes_per_step;
            in_plane += rest_per_step;
            if (in_plane >= vectors_per_plane) {
                in_plane -= vectors_per_plane;
                plane++;
            }
            place(p);
        }
    }
};

template <class T, int V> struct alignas(V * sizeof(T)) Vector { T v[V]; };

// Number, mean and sum of squared deviations of values.
template <class C> struct Moments {
    static constexpr int FIELDS = 3;
    C f[3];
    __device__ __forceinline__ void merge(const Moments& o) {
        const C all = f[0] + o.f[0];
        if (all == (C)0) return;
        const C d = o.f[1] - f[1], part = o.f[0] / all;
        f[1] += d * part;
        f[2] += o.f[2] + d * d * f[0] * part;
        f[0] = all;
    }
};

// Sums of a gradient, and of its products with the deviations from the mean.
template <class C> struct Sums {
    static constexpr int FIELDS = 2;
    C f[2];
    __device__ __forceinline__ void merge(const Sums& o) {
        f[0] += o.f[0];
        f[1] += o.f[1];
    }
};

// Merges the parts of all threads and blocks that have the same channel. Returns whether this thread
// has the whole of `channel`.
template <class C, class P, int V, bool LAST>
__device__ __forceinline__ bool merge_parts(
    P (&own)[LAST ? V : 1], Turn& turn, u64* scratch, const Channels& p, P& whole, u64& channel) {
    typedef Walk<V, LAST> W;
    constexpr u32 WARPS = THREADS / 32, COLUMNS = W::COLUMNS;
    __shared__ P shared[WARPS][COLUMNS];
    const u32 splits = gridDim.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (splits > 1) turn.number(p.ticket);
#pragma unroll
    for (u32 half = 16; half >= W::TEAM; half /= 2) {
#pragma unroll
        for (int c = 0; c < W::CHANNELS; c++) {
            P other;
#pragma unroll
            for (int f = 0; f < P::FIELDS; f++) other.f[f] = __shfl_xor_sync(~0u, own[c].f[f], half);
            own[c].merge(other);
        }
    }
    if (lane < W::TEAM) {
#pragma unroll
        for (int c = 0; c < W::CHANNELS; c++) shared[warp][lane * W::CHANNELS + c] = own[c];
    }
    const u64 first = LAST ? (u64)blockIdx.x * COLUMNS : blockIdx.x;
    channel = first + threadIdx.x;
    const bool has = threadIdx.x < COLUMNS && channel < p.channels;
    C* parts = (C*)(scratch + gridDim.x);
#pragma unroll 1
    for (bool is_whole = splits == 1;; is_whole = true) {
        __syncthreads();
        if (has) {
            whole = shared[0][threadIdx.x];
#pragma unroll 1
            for (u32 w = 1; w < WARPS; w++) whole.merge(shared[w][threadIdx.x]);
        }
        if (is_whole) return has;
        if (has) {
#pragma unroll
            for (int f = 0; f < P::FIELDS; f++)
                parts[((u64)blockIdx.y * P::FIELDS + f) * p.channels + channel] = whole.f[f];
        }
        if (!turn.is_last(p.ticket, splits)) return false;
        // The last block replaces the parts of warps by parts merged over blocks.
#pragma unroll 1
        for (u32 r = lane; r < COLUMNS; r += 32) {
            P sum = {};
            if (first + r < p.channels) {
#pragma unroll 4
                for (u32 s = warp; s < splits; s += WARPS) {
                    P part;
#pragma unroll
                    for (int f = 0; f < P::FIELDS; f++)
                        part.f[f] = __ldcg(&parts[((u64)s * P::FIELDS + f) * p.channels + first + r]);
                    sum.merge(part);
                }
            }
            shared[warp][r] = sum;
        }
    }
}

// Parameters of a channel are of the element type, or of its type of arithmetic if `wide`.
template <class T> __device__ __forceinline__ compute_t<T> parameter(const T* of, u64 i, u64 wide) {
    return wide ? ((const compute_t<T>*)of)[i] : load(of[i]);
}
template <class T> __device__ __forceinline__ void set_parameter(T* of, u64 i, u64 wide, compute_t<T> v) {
    if (wide) ((compute_t<T>*)of)[i] = v;
    else store(of[i], v);
}

__device__ __forceinline__ f32 root(f32 v) { return sqrtf(v); }
__device__ __forceinline__ f64 root(f64 v) { return sqrt(v); }

template <class C> __device__ __forceinline__ C number(u64 bits) { return (C)__longlong_as_double((i64)bits); }

// Returns the first element of a channel.
template <class T, bool LAST>
__device__ __forceinline__ compute_t<T> first_of(const T* in, u64 channel, const Channels& p) {
    return load(in[LAST ? channel : channel * p.area]);
}

template <class T, int V, bool LAST>
__device__ __forceinline__ void moments(
    const T* in, compute_t<T>* means, compute_t<T>* scales, T* running_mean, T* running_var, u64* scratch,
    const Channels& p) {
    typedef compute_t<T> C;
    typedef Walk<V, LAST> W;
    constexpr u32 AT_ONCE = 4;
    Turn turn;
    if (gridDim.y > 1) turn.begin(scratch);
    W walk(p);
    Moments<C> own[W::CHANNELS] = {};
    // The first element of a channel is subtracted from all its elements, because the difference of
    // two numbers of similar size is exact, whereas a mean of the elements is rounded.
    C first[W::CHANNELS];
#pragma unroll
    for (int c = 0; c < W::CHANNELS; c++) first[c] = walk.left > 0 ? first_of<T, LAST>(in, walk.channel + c, p) : (C)0;
#pragma unroll 1
    while (walk.left > 0) {
        const u32 n = (u32)min(walk.left, (u64)AT_ONCE);
        // All loads are issued before the first value is used.
        Vector<T, V> x[AT_ONCE];
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; k++) {
            if (k >= n) break;
            x[k] = *(const Vector<T, V>*)(in + walk.offset);
            walk.advance(p);
        }
        const C count = (C)(n * W::EACH), all = own[0].f[0] + count, part = count / all, each = (C)1 / count;
#pragma unroll
        for (int c = 0; c < W::CHANNELS; c++) {
            C sum = 0, squares = 0;
#pragma unroll
            for (u32 k = 0; k < AT_ONCE; k++) {
                if (k >= n) break;
#pragma unroll
                for (int j = 0; j < W::EACH; j++) sum += load(x[k].v[LAST ? c : j]) - first[c];
            }
            const C mean = sum * each;
#pragma unroll
            for (u32 k = 0; k < AT_ONCE; k++) {
                if (k >= n) break;
#pragma unroll
                for (int j = 0; j < W::EACH; j++) {
                    const C d = load(x[k].v[LAST ? c : j]) - first[c] - mean;
                    squares += d * d;
                }
            }
            const C d = mean - own[c].f[1];
            own[c].f[1] += d * part;
            own[c].f[2] += squares + d * d * own[c].f[0] * part;
            own[c].f[0] = all;
        }
    }
    Moments<C> whole;
    u64 channel;
    if (!merge_parts<C, Moments<C>, V, LAST>(own, turn, scratch, p, whole, channel)) return;
    const C count = whole.f[0], mean = first_of<T, LAST>(in, channel, p) + whole.f[1];
    means[channel] = mean;
    scales[channel] = (C)1 / root(whole.f[2] / count + number<C>(p.eps));
    if (p.is_running) {
        const C momentum = number<C>(p.momentum), keep = (C)1 - momentum;
        const C old_mean = parameter(running_mean, channel, p.is_running_wide);
        const C old_var = parameter(running_var, channel, p.is_running_wide);
        const C var = whole.f[2] / (count - (C)1);
        set_parameter(running_mean, channel, p.is_running_wide, keep * old_mean + momentum * mean);
        set_parameter(running_var, channel, p.is_running_wide, keep * old_var + momentum * var);
    }
}

// The factor of a channel's deviations: the reciprocal of their root mean square. Outside training
// `scales` has variances.
template <class T>
__device__ __forceinline__ compute_t<T> scale_of(const T* scales, u64 channel, const Channels& p) {
    typedef compute_t<T> C;
    const C v = parameter(scales, channel, p.is_running_wide);
    return p.is_training ? v : (C)1 / root(v + number<C>(p.eps));
}

template <class T, int V, bool LAST>
__device__ __forceinline__ void apply(
    const T* in, const T* weight, const T* bias, const T* means, const T* scales, T* out, const Channels& p) {
    typedef compute_t<T> C;
    typedef Walk<V, LAST> W;
    W walk(p);
    if (walk.left == 0) return;
    C mean[W::CHANNELS], factor[W::CHANNELS], plus[W::CHANNELS];
#pragma unroll
    for (int c = 0; c < W::CHANNELS; c++) {
        const u64 i = walk.channel + c;
        mean[c] = parameter(means, i, p.is_running_wide);
        factor[c] = scale_of(scales, i, p);
        if (p.is_weighted) factor[c] *= parameter(weight, i, p.is_wide);
        plus[c] = p.is_biased ? parameter(bias, i, p.is_wide) : (C)0;
    }
    constexpr u32 AT_ONCE = 4;
#pragma unroll 1
    while (walk.left > 0) {
        const u32 n = (u32)min(walk.left, (u64)AT_ONCE);
        Vector<T, V> x[AT_ONCE];
        u64 at[AT_ONCE];
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; k++) {
            if (k >= n) break;
            at[k] = walk.offset;
            x[k] = *(const Vector<T, V>*)(in + at[k]);
            walk.advance(p);
        }
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; k++) {
            if (k >= n) break;
#pragma unroll
            for (int j = 0; j < V; j++) {
                const int c = LAST ? j : 0;
                store(x[k].v[j], (load(x[k].v[j]) - mean[c]) * factor[c] + plus[c]);
            }
            *(Vector<T, V>*)(out + at[k]) = x[k];
        }
    }
}

template <class T, int V, bool LAST>
__device__ __forceinline__ void sums(
    const T* grad, const T* in, const compute_t<T>* means, const compute_t<T>* scales, T* of_weight, T* of_bias,
    compute_t<T>* along, compute_t<T>* plain, u64* scratch, const Channels& p) {
    typedef compute_t<T> C;
    typedef Walk<V, LAST> W;
    constexpr u32 AT_ONCE = 2;
    Turn turn;
    if (gridDim.y > 1) turn.begin(scratch);
    W walk(p);
    Sums<C> own[W::CHANNELS] = {};
    C mean[W::CHANNELS];
#pragma unroll
    for (int c = 0; c < W::CHANNELS; c++) mean[c] = walk.left > 0 ? means[walk.channel + c] : (C)0;
#pragma unroll 1
    while (walk.left > 0) {
        const u32 n = (u32)min(walk.left, (u64)AT_ONCE);
        Vector<T, V> g[AT_ONCE], x[AT_ONCE];
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; k++) {
            if (k >= n) break;
            g[k] = *(const Vector<T, V>*)(grad + walk.offset);
            x[k] = *(const Vector<T, V>*)(in + walk.offset);
            walk.advance(p);
        }
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; k++) {
            if (k >= n) break;
#pragma unroll
            for (int j = 0; j < V; j++) {
                const int c = LAST ? j : 0;
                const C v = load(g[k].v[j]);
                own[c].f[0] += v;
                own[c].f[1] += v * (load(x[k].v[j]) - mean[c]);
            }
        }
    }
    Sums<C> whole;
    u64 channel;
    if (!merge_parts<C, Sums<C>, V, LAST>(own, turn, scratch, p, whole, channel)) return;
    const C of_scale = whole.f[1] * scales[channel];
    plain[channel] = whole.f[0];
    along[channel] = of_scale;
    if (p.is_weighted) set_parameter(of_weight, channel, p.is_wide, of_scale);
    if (p.is_biased) set_parameter(of_bias, channel, p.is_wide, whole.f[0]);
}

template <class T, int V, bool LAST>
__device__ __forceinline__ void backward(
    const T* grad, const T* in, const T* weight, const compute_t<T>* means, const compute_t<T>* scales,
    const compute_t<T>* along, const compute_t<T>* plain, T* out, const Channels& p) {
    typedef compute_t<T> C;
    typedef Walk<V, LAST> W;
    constexpr u32 AT_ONCE = 2;
    W walk(p);
    if (walk.left == 0) return;
    const C count = (C)(p.batch * p.area);
    C mean[W::CHANNELS], factor[W::CHANNELS], less[W::CHANNELS], slope[W::CHANNELS];
#pragma unroll
    for (int c = 0; c < W::CHANNELS; c++) {
        const u64 i = walk.channel + c;
        mean[c] = means[i];
        factor[c] = scales[i];
        less[c] = plain[i] / count;
        slope[c] = along[i] / count * factor[c];
        if (p.is_weighted) factor[c] *= parameter(weight, i, p.is_wide);
    }
#pragma unroll 1
    while (walk.left > 0) {
        const u32 n = (u32)min(walk.left, (u64)AT_ONCE);
        Vector<T, V> g[AT_ONCE], x[AT_ONCE];
        u64 at[AT_ONCE];
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; k++) {
            if (k >= n) break;
            at[k] = walk.offset;
            g[k] = *(const Vector<T, V>*)(grad + at[k]);
            x[k] = *(const Vector<T, V>*)(in + at[k]);
            walk.advance(p);
        }
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; k++) {
            if (k >= n) break;
#pragma unroll
            for (int j = 0; j < V; j++) {
                const int c = LAST ? j : 0;
                const C d = load(x[k].v[j]) - mean[c];
                store(g[k].v[j], (load(g[k].v[j]) - less[c] - d * slope[c]) * factor[c]);
            }
            *(Vector<T, V>*)(out + at[k]) = g[k];
        }
    }
}

#define LAYOUT(T, name, V, LAST)                                                                  \
    extern "C" __global__ __launch_bounds__(THREADS, 2) void batch_norm_##T##_moments_##name(     \
        const T* in, compute_t<T>* means, compute_t<T>* scales, T* running_mean, T* running_var,  \
        u64* scratch, const __grid_constant__ Channels p) {                                      \
        moments<T, V, LAST>(in, means, scales, running_mean, running_var, scratch, p);            \
    }                                                                                             \
    extern "C" __global__ __launch_bounds__(THREADS, 2) void batch_norm_##T##_apply_##name(       \
        const T* in, const T* weight, const T* bias, const T* means, const T* scales, T* out,     \
        const __grid_constant__ Channels p) {                                                    \
        apply<T, V, LAST>(in, weight, bias, means, scales, out, p);                               \
    }                                                                                             \
    extern "C" __global__ __launch_bounds__(THREADS, 2) void batch_norm_##T##_sums_##name(        \
        const T* grad, const T* in, const compute_t<T>* means, const compute_t<T>* scales,        \
        T* of_weight, T* of_bias, compute_t<T>* along, compute_t<T>* plain, u64* scratch,         \
        const __grid_constant__ Channels p) {                                                    \
        sums<T, V, LAST>(grad, in, means, scales, of_weight, of_bias, along, plain, scratch, p);  \
    }                                                                                             \
    extern "C" __global__ __launch_bounds__(THREADS, 2) void batch_norm_##T##_backward_##name(    \
        const T* grad, const T* in, const T* weight, const compute_t<T>* means,                   \
        const compute_t<T>* scales, const compute_t<T>* along, const compute_t<T>* plain, T* out, \
        const __grid_constant__ Channels p) {                                                    \
        backward<T, V, LAST>(grad, in, weight, means, scales, along, plain, out, p);              \
    }
// A vector has 16 bytes.
#define BATCH_NORM(T)                                                                             \
    LAYOUT(T, planes, 1, false)                                                                   \
    LAYOUT(T, plane_vectors, (16 / sizeof(T)), false)                                             \
    LAYOUT(T, rows, 1, true)                                                                      \
    LAYOUT(T, row_vectors, (16 / sizeof(T)), true)
