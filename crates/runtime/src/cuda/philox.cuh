// Returns the starting point of a random op. In a graph, `state` holds the seed of the replay and
// the offset to add.
__device__ __forceinline__ PhiloxState resolve(const PhiloxState& position, const u64* state) {
    return position.in_graph ? PhiloxState{state[0], state[1] + position.offset, 0} : position;
}
