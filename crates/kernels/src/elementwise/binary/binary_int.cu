#include "binary.cuh"

DTYPE(bool, boolean)
DTYPE(u8, u8)
DTYPE(i8, i8)
DTYPE(i16, i16)
DTYPE(i32, i32)
DTYPE(i64, i64)
