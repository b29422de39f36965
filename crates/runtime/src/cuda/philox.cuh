// Where random ops start: in the sequence of a seed, or in that of a replay, which is in memory.
__device__ __forceinline__ Place resolve(const Place& place, const u64* state) {
    return place.in_graph ? Place{state[0], state[1] + place.offset, 0} : place;
}
