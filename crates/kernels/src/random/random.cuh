// Philox4x32-10, and PyTorch's conversions of its words.

struct Words {
    u32 w[4];
};

// Computes both halves of a product with one instruction.
template <u32 factor>
__device__ __forceinline__ void times(u32 a, u32 &low, u32 &high) {
    asm("{ .reg .b64 t; mul.wide.u32 t, %2, %3; mov.b64 {%0, %1}, t; }"
        : "=r"(low), "=r"(high) : "r"(a), "n"(factor));
}

// Returns the words at `counter` in the sequence of thread `subsequence`, for `seed`.
__device__ __forceinline__ Words philox(u64 seed, u64 subsequence, u64 counter) {
    u32 c0 = (u32)counter, c1 = (u32)(counter >> 32);
    u32 c2 = (u32)subsequence, c3 = (u32)(subsequence >> 32);
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u32 lo0, hi0, lo1, hi1;
        times<0xD2511F53u>(c0, lo0, hi0);
        times<0xCD9E8D57u>(c2, lo1, hi1);
        c0 = hi1 ^ c1 ^ k0;
        c1 = lo1;
        c2 = hi0 ^ c3 ^ k1;
        c3 = lo0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

__device__ __forceinline__ u64 wide(u32 high, u32 low) { return (u64)high << 32 | low; }

// Converts a word to a float in (0, 1].
__device__ __forceinline__ float unit_float(u32 word) {
    return fmaf((float)word, 0x1p-32f, 0x1p-33f);
}

// Converts two words to a double in (0, 1].
__device__ __forceinline__ double unit_double(u32 low, u32 high) {
    return fma((double)((u64)low ^ (u64)high << 21), 0x1p-53, 0x1p-54);
}

// Returns sqrtf(-2 * logf(x)), with the same bits for each `x` that `unit_float` returns. Each such
// `x` is neither so small nor so large that it needs the library's special cases.
__device__ __forceinline__ float radius(float x) {
    // x is 2^exponent * (1 + m), with m in [-1/3, 1/3].
    i32 bits = __float_as_int(x), e = (bits - 0x3f2aaaab) & 0xff800000;
    float m = __int_as_float(bits - e) - 1.0f;
    float log = fmaf(-0x1.0aa04ep-3f, m, 0x1.2073ecp-3f);
    log = fmaf(log, m, -0x1.f19b98p-4f);
    log = fmaf(log, m, 0x1.1e52aap-3f);
    log = fmaf(log, m, -0x1.55b172p-3f);
    log = fmaf(log, m, 0x1.99da16p-3f);
    log = fmaf(log, m, -0x1.fffe44p-3f);
    log = fmaf(log, m, 0x1.5554fp-2f);
    log = fmaf(log, m, -0.5f);
    log = fmaf(m * log, m, m);
    // `e` is the exponent times 2^23.
    float square = -2.0f * fmaf((float)e, 0x1p-23f * 0.693147182f, log);
    // The root, with the rounding of `sqrtf`. A zero keeps its sign.
    float inverse;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(inverse) : "f"(fmaxf(square, 0x1p-100f)));
    float root = square * inverse;
    return fmaf(fmaf(-root, root, square), 0.5f * inverse, root);
}

__device__ __forceinline__ void normal_floats(u32 a, u32 b, float *out) {
    const float turn = 0x1p-32f * 6.2831855f;
    float length = radius(unit_float(a)), sine, cosine;
    __sincosf(fmaf((float)b, turn, turn / 2), &sine, &cosine);
    out[0] = sine * length;
    out[1] = cosine * length;
}

__device__ __forceinline__ void normal_doubles(Words x, double *out) {
    double radius = sqrt(-2.0 * log(unit_double(x.w[0], x.w[1])));
    u64 z = (u64)x.w[2] ^ (u64)x.w[3] << 21;
    double sine, cosine;
    sincospi(fma((double)z, 0x1p-52, 0x1p-53), &sine, &cosine);
    out[0] = sine * radius;
    out[1] = cosine * radius;
}

// Conversions of four words to four floats or to two doubles.
template <typename A>
struct Lanes;

template <>
struct Lanes<float> {
    static const int count = 4;
    static __device__ __forceinline__ void uniform(Words x, float *out) {
#pragma unroll
        for (int i = 0; i < 4; i++) out[i] = unit_float(x.w[i]);
    }
    static __device__ __forceinline__ void normal(Words x, float *out) {
        normal_floats(x.w[0], x.w[1], out);
        normal_floats(x.w[2], x.w[3], out + 2);
    }
};

template <>
struct Lanes<double> {
    static const int count = 2;
    static __device__ __forceinline__ void uniform(Words x, double *out) {
        out[0] = unit_double(x.w[0], x.w[1]);
        out[1] = unit_double(x.w[2], x.w[3]);
    }
    static __device__ __forceinline__ void normal(Words x, double *out) { normal_doubles(x, out); }
};

// Returns the offset of element `index`, in the order in which elements are filled.
__device__ __forceinline__ i64 offset_of(const Walk<1> &order, u64 index) {
    return order.ndim == 1 ? (i64)index * order.strides[0][0] : walk(order, 0, index);
}

// Converts an integer to any dtype and writes it to element `at`.
__device__ __noinline__ void store_integer(void *out, u64 dtype, i64 at, i64 value) {
    switch (dtype) {
    case DTYPE_bool: ((bool *)out)[at] = value != 0; break;
    case DTYPE_u8:
    case DTYPE_i8: ((char *)out)[at] = (char)value; break;
    case DTYPE_i16: ((i16 *)out)[at] = (short)value; break;
    case DTYPE_i32: ((i32 *)out)[at] = (int)value; break;
    case DTYPE_i64: ((i64 *)out)[at] = value; break;
    case DTYPE_f16: store(((f16 *)out)[at], (f32)value); break;
    case DTYPE_bf16: store(((bf16 *)out)[at], (f32)value); break;
    case DTYPE_f32: ((f32 *)out)[at] = (f32)value; break;
    case DTYPE_f64: ((f64 *)out)[at] = (f64)value; break;
    }
}
