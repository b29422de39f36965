// Largest and smallest values.
#include "reduce.cuh"

REDUCE_NUMBERS(max, Max)
REDUCE_NUMBERS(min, Min)
