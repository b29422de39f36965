// Writes the starting point of a replay's random ops.
extern "C" __global__ void philox_set_state(u64* state, PhiloxState position) {
    state[0] = position.seed;
    state[1] = position.offset;
}
