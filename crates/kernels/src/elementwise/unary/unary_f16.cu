#include "unary.cuh"

STRIDED(f16, f16)
#define KERNEL(name, code) FLOAT_KERNEL(f16, f16, name)
INT_OPS(KERNEL)
FLOAT_OPS(KERNEL)
