// Steps of optimizers over many tensors: `t` are the operands of the one that this block has a chunk of.

// Which that is.
template <int tensors>
__device__ __forceinline__ u32 which_of(const Step& p) {
    u32 which = 0;
#pragma unroll
    for (int k = 1; k < tensors; k++) {
        if (blockIdx.x >= p.first[k]) which = k;
    }
    return which;
}

// Calls `f` for each element of the chunk.
template <class F>
__device__ __forceinline__ void each(const Step& p, u32 which, F f) {
    const u64 begin = (u64)(blockIdx.x - p.first[which]) * CHUNK + threadIdx.x;
#pragma unroll 4
    for (u32 k = 0; k < CHUNK; k += 256) {
        if (begin + k < p.numel[which]) f(begin + k);
    }
}

__device__ __forceinline__ u64 step_of(const void* steps, const Step& p, u32 which) {
    const u64 step = p.step[which];
    return p.flags & ON_DEVICE ? (u64)((const f32*)steps)[step] : step;
}

__device__ __forceinline__ f64 lr_of(const void* lr, const Step& p) {
    return p.flags & ON_DEVICE ? *(const f64*)lr : p.lr;
}

// base to the power of n.
__device__ __forceinline__ f64 power(f64 base, u64 n) {
    f64 result = 1;
    for (; n; n >>= 1, base *= base) {
        if (n & 1) result *= base;
    }
    return result;
}

__device__ __forceinline__ f32 root(f32 x) { return sqrtf(x); }
__device__ __forceinline__ f64 root(f64 x) { return sqrt(x); }

// From a to b, by a weight below or above one half.
template <class A> __device__ __forceinline__ A lerp(A a, A b, A weight) {
    return weight < (A)0.5 ? a + weight * (b - a) : b - (b - a) * ((A)1 - weight);
}

template <class T>
__device__ __forceinline__ void
sgd(T* const (&t)[3], const void* steps, const void* lrs, const Step& p, u32 which) {
    typedef compute_t<T> A;
    const A lr = (A)lr_of(lrs, p), momentum = (A)p.a, part = (A)(1 - p.b), decay = (A)p.weight_decay;
    const bool first = step_of(steps, p, which) == 1;
    each(p, which, [&](u64 i) {
        A own = load(t[0][i]), grad = load(t[1][i]);
        if (p.flags & MAXIMIZE) grad = -grad;
        if (decay != (A)0) grad += decay * own;
        if (momentum != (A)0) {
            const A buffer = first ? grad : momentum * load(t[2][i]) + part * grad;
            store(t[2][i], buffer);
            grad = p.flags & NESTEROV ? grad + momentum * buffer : buffer;
        }
        store(t[0][i], own - lr * grad);
    });
}

template <class T>
__device__ __forceinline__ void
adam(T* const (&t)[5], const void* steps, const void* lrs, const Step& p, u32 which) {
    typedef compute_t<T> A;
    const f64 lr = lr_of(lrs, p);
    const u64 step = step_of(steps, p, which);
    const A size = (A)(lr / (1 - power(p.a, step))), root2 = (A)sqrt(1 - power(p.b, step));
    const A weight1 = (A)(1 - p.a), beta2 = (A)p.b, weight2 = (A)(1 - p.b), eps = (A)p.eps;
    const A decay = (A)p.weight_decay, kept = (A)(1 - lr * p.weight_decay);
    each(p, which, [&](u64 i) {
        A own = load(t[0][i]), grad = load(t[1][i]);
        if (p.flags & MAXIMIZE) grad = -grad;
        if (p.flags & DECOUPLED) own *= kept;
        else if (decay != (A)0) grad += decay * own;
        const A mean = lerp(load(t[2][i]), grad, weight1);
        A square = beta2 * load(t[3][i]) + weight2 * grad * grad;
        store(t[2][i], mean);
        store(t[3][i], square);
        if (p.flags & AMSGRAD) {
            const A most = load(t[4][i]);
            square = square > most || square != square ? square : most;
            store(t[4][i], square);
        }
        store(t[0][i], own - size * mean / (root(square) / root2 + eps));
    });
}

template <class T>
__device__ __forceinline__ void
rmsprop(T* const (&t)[5], const void*, const void* lrs, const Step& p, u32 which) {
    typedef compute_t<T> A;
    const A lr = (A)lr_of(lrs, p), alpha = (A)p.a, rest = (A)(1 - p.a), eps = (A)p.eps;
    const A momentum = (A)p.b, decay = (A)p.weight_decay;
    each(p, which, [&](u64 i) {
        A own = load(t[0][i]), grad = load(t[1][i]);
        if (p.flags & MAXIMIZE) grad = -grad;
        if (decay != (A)0) grad += decay * own;
        const A square = alpha * load(t[2][i]) + rest * grad * grad;
        store(t[2][i], square);
        A spread = square;
        if (p.flags & CENTERED) {
            const A mean = lerp(load(t[3][i]), grad, rest);
            store(t[3][i], mean);
            spread -= mean * mean;
        }
        A change = grad / (root(spread) + eps);
        if (momentum > (A)0) {
            change += momentum * load(t[4][i]);
            store(t[4][i], change);
        }
        store(t[0][i], own - lr * change);
    });
}

template <class T>
__device__ __forceinline__ void
grad_scale(T* const (&t)[1], const void* by, const void*, const Step& p, u32 which) {
    typedef compute_t<T> A;
    const A factor = (A)*(const f64*)by;
    each(p, which, [&](u64 i) { store(t[0][i], load(t[0][i]) * factor); });
}

// NaN is larger than anything.
__device__ __forceinline__ f64 larger(f64 a, f64 b) { return a > b || a != a ? a : b; }

template <class T>
__device__ __forceinline__ void
grad_norm(T* const (&t)[1], void* out, const void*, const Step& p, u32 which) {
    __shared__ f64 parts[256];
    f64 part = 0;
    each(p, which, [&](u64 i) {
        const f64 x = (f64)load(t[0][i]);
        part = p.flags & LARGEST ? larger(fabs(x), part) : part + x * x;
    });
    parts[threadIdx.x] = part;
    for (u32 half = 128; half; half >>= 1) {
        __syncthreads();
        if (threadIdx.x < half) {
            const f64 a = parts[threadIdx.x], b = parts[threadIdx.x + half];
            parts[threadIdx.x] = p.flags & LARGEST ? larger(a, b) : a + b;
        }
    }
    if (threadIdx.x == 0) ((f64*)out)[blockIdx.x] = parts[0];
}
