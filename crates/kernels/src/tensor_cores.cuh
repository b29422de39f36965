// Products of a warp on tensor cores. The launch requires compute capability 8.0.

// c += a * b, where `a` is 16 x 16 and `b` is 16 x 8.
template <class T> __device__ __forceinline__ void multiply(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1);
#define MULTIPLY(T, name)                                                                             \
    template <>                                                                                       \
    __device__ __forceinline__ void multiply<T>(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {     \
        asm volatile("{ /* sm_80: mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 "       \
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}; */\n\t"                  \
            "trap;\n\t"                                                                               \
            "}" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                      \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                          \
    }
MULTIPLY(f16, "f16")
MULTIPLY(bf16, "bf16")
