// The next scale after the gradients of a step were checked. One thread.

extern "C" __global__ void
amp_update_scale(f32* scale, i32* growth_tracker, const f32* found_inf, const __grid_constant__ UpdateScale u) {
    if (*found_inf != 0) {
        *scale = (f32)(*scale * u.backoff_factor);
        *growth_tracker = 0;
        return;
    }
    const i32 successful = *growth_tracker + 1;
    const bool grows = successful == u.growth_interval;
    const f32 grown = (f32)(*scale * u.growth_factor);
    // The scale stays below infinity.
    if (grows && grown - grown == 0) *scale = grown;
    *growth_tracker = grows ? 0 : successful;
}
