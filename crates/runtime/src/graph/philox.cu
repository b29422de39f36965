// Writes the starting point of a replay's random ops.
extern "C" __global__ void philox_set_state(u64* state, Place place) {
    state[0] = place.seed;
    state[1] = place.offset;
}
