// Where the largest and smallest values are.
#include "reduce.cuh"

template <class A> using ArgMax = Arg<A, true>;
template <class A> using ArgMin = Arg<A, false>;
REDUCE_NUMBERS(argmax, ArgMax)
REDUCE_NUMBERS(argmin, ArgMin)
