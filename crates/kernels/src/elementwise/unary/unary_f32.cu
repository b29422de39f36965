#include "unary.cuh"

STRIDED(f32, f32)
#define KERNEL(name, code) FLOAT_KERNEL(f32, f32, name)
INT_OPS(KERNEL)
FLOAT_OPS(KERNEL)
