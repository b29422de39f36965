// Sums, and means.
#include "reduce.cuh"

REDUCE_NUMBERS(sum, Sum)
