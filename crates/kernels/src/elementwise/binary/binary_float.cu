#include "binary.cuh"

DTYPE(f16, f16)
DTYPE(bf16, bf16)
DTYPE(f32, f32)
DTYPE(f64, f64)
