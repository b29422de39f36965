// Returns the starting point of a random op. In a graph, `state` holds the seed of the replay and
// the offset to add.
__device__ __forceinline__ Place resolve(const Place& place, const u64* state) {
    return place.in_graph ? Place{state[0], state[1] + place.offset, 0} : place;
}
