#include "unary.cuh"

INT_KERNELS(bool, boolean)
INT_KERNELS(u8, u8)
INT_KERNELS(i8, i8)
INT_KERNELS(i16, i16)
INT_KERNELS(i32, i32)
INT_KERNELS(i64, i64)
