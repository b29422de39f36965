#include "unary.cuh"

STRIDED(bf16, bf16)
#define KERNEL(name, code) FLOAT_KERNEL(bf16, bf16, name)
INT_OPS(KERNEL)
FLOAT_OPS(KERNEL)
