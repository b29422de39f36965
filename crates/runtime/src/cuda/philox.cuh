// Where random ops start. Mirrors `graph/philox.rs`.
#pragma once

#include "element.cuh"

// A place in the sequence of a seed. In a graph it counts from the replay's, which is in memory.
struct Place {
    u64 seed, offset, in_graph;

    __device__ __forceinline__ Place resolve(const u64 *state) const {
        return in_graph ? Place{state[0], state[1] + offset, 0} : *this;
    }
};
