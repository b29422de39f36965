#include "unary.cuh"

STRIDED(f64, f64)
#define KERNEL(name, code) FLOAT_KERNEL(f64, f64, name)
INT_OPS(KERNEL)
FLOAT_OPS(KERNEL)
