// One step of an optimizer on many tensors. Each block updates `CHUNK` elements of one tensor. A
// tensor has `LISTS` operands: the parameter, its gradient, and the optimizer state.

template <class C> __device__ __forceinline__ C toward(C from, C to, C weight) {
    return weight < (C)0.5 ? from + weight * (to - from) : to - (to - from) * (1 - weight);
}
__device__ __forceinline__ f32 root(f32 v) { return sqrtf(v); }
__device__ __forceinline__ f64 root(f64 v) { return sqrt(v); }

// Negates the gradient if the objective is maximized, and adds weight decay.
template <class C> __device__ __forceinline__ C gradient(C p, C g, C decay, u32 flags) {
    if (flags & MAXIMIZE) g = -g;
    return g + decay * p;
}

template <class C> struct Sgd {
    C lr, momentum, undamped, decay;
    u32 flags;
    __device__ __forceinline__ Sgd(const Update& u, const f64* rates)
        : lr(u.flags & RATES ? rates[0] : u.numbers[0]), momentum(u.numbers[1]),
          undamped(u.numbers[2]), decay(u.numbers[3]), flags(u.flags) {}
    __device__ __forceinline__ void operator()(C* x) const {
        C g = gradient(x[0], x[1], decay, flags);
        if (flags & MOMENTUM) {
            x[2] = flags & FIRST ? g : momentum * x[2] + undamped * g;
            g = flags & NESTEROV ? g + momentum * x[2] : x[2];
        }
        x[0] -= lr * g;
    }
};

template <class C> struct Adam {
    C rate, root2, kept, beta1, beta2, eps, decay;
    u32 flags;
    __device__ __forceinline__ Adam(const Update& u, const f64* rates)
        : rate(u.flags & RATES ? rates[0] : u.numbers[0]),
          root2(u.flags & RATES ? rates[1] : u.numbers[1]),
          kept(u.flags & RATES ? rates[2] : u.numbers[2]), beta1(1 - u.numbers[3]),
          beta2(u.numbers[4]), eps(u.numbers[5]), decay(u.numbers[6]), flags(u.flags),
          rest(1 - u.numbers[4]) {}
    C rest;
    __device__ __forceinline__ void operator()(C* x) const {
        const C g = gradient(x[0], x[1], decay, flags);
        x[2] = toward(x[2], g, beta1);
        x[3] = beta2 * x[3] + rest * g * g;
        C square = x[3];
        if (flags & AMSGRAD) square = x[4] = x[4] > square || x[4] != x[4] ? x[4] : square;
        x[0] = kept * x[0] - rate * x[2] / (root(square) / root2 + eps);
    }
};

template <class C> struct RmsProp {
    C lr, alpha, rest, eps, decay, momentum;
    u32 flags;
    __device__ __forceinline__ RmsProp(const Update& u, const f64* rates)
        : lr(u.flags & RATES ? rates[0] : u.numbers[0]), alpha(u.numbers[1]),
          rest(1 - u.numbers[1]), eps(u.numbers[2]), decay(u.numbers[3]), momentum(u.numbers[4]),
          flags(u.flags) {}
    __device__ __forceinline__ void operator()(C* x) const {
        const C g = gradient(x[0], x[1], decay, flags);
        x[2] = alpha * x[2] + rest * g * g;
        C square = x[2];
        if (flags & CENTERED) {
            x[4] = toward(x[4], g, rest);
            square -= x[4] * x[4];
        }
        C by = g / (root(square) + eps);
        if (flags & MOMENTUM) by = x[3] = momentum * x[3] + by;
        x[0] -= lr * by;
    }
};

template <class C> struct Scale {
    C by;
    __device__ __forceinline__ Scale(const Update& u, const f64* rates) : by(rates[0]) {}
    __device__ __forceinline__ void operator()(C* x) const { x[0] *= by; }
};

// Elements of one 16-byte load.
template <class T> union Words {
    Raw<16> raw;
    T each[16 / sizeof(T)];
};

template <class T, class Rule>
__device__ __forceinline__ void
update(T* const (&x)[LISTS], const f64* rates, const f32* found_inf, const f32* grad_scale,
       const Update& u, u32 which) {
    typedef compute_t<T> C;
    if (u.flags & SKIPS && *found_inf != 0) return;
    const C grad_divisor = u.flags & UNSCALES ? (C)*grad_scale : (C)1;
    constexpr u32 EACH = 16 / sizeof(T);
    const Rule rule(u, rates);
    const u32 numel = u.tensors[which].numel;
    const u32 first = (blockIdx.x - u.tensors[which].first) * CHUNK + threadIdx.x * EACH;
    bool aligned = true;
#pragma unroll
    for (u32 k = 0; k < LISTS; k++) {
        if ((u.reads | u.writes) >> k & 1) aligned &= (u64)x[k] % 16 == 0;
    }
#pragma unroll 1
    for (u32 begin = first; begin < first + CHUNK && begin < numel; begin += BLOCK * EACH) {
        const bool whole = aligned && begin + EACH <= numel;
        Words<T> words[LISTS];
#pragma unroll
        for (u32 k = 0; k < LISTS; k++) {
            words[k].raw = Raw<16>{};
            if (!(u.reads >> k & 1)) continue;
            if (whole) {
                words[k].raw = *(const Raw<16>*)(x[k] + begin);
            } else {
#pragma unroll
                for (u32 j = 0; j < EACH; j++) {
                    if (begin + j < numel) words[k].each[j] = x[k][begin + j];
                }
            }
        }
#pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            C v[LISTS];
#pragma unroll
            for (u32 k = 0; k < LISTS; k++) v[k] = load(words[k].each[j]);
            if (LISTS > 1 && u.flags & UNSCALES) v[1] = v[1] / grad_divisor;
            rule(v);
#pragma unroll
            for (u32 k = 0; k < LISTS; k++) store(words[k].each[j], v[k]);
        }
#pragma unroll
        for (u32 k = 0; k < LISTS; k++) {
            if (!(u.writes >> k & 1)) continue;
            if (whole) {
                *(Raw<16>*)(x[k] + begin) = words[k].raw;
            } else {
#pragma unroll
                for (u32 j = 0; j < EACH; j++) {
                    if (begin + j < numel) x[k][begin + j] = words[k].each[j];
                }
            }
        }
    }
}
