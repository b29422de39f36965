// Combines the indices of several dimensions into one number, a dimension per launch: the number so
// far times the size of this dimension, plus the index. Negative indices count from the end.
extern "C" __global__ __launch_bounds__(256) void linear_index(
    const i64* index, i64* out, const __grid_constant__ Linear p) {
    const u64 e = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= p.elements) return;
    const i64 size = (i64)p.report.size, given = index[walk(p.walk, 0, e)];
    const i64 k = given < 0 && given >= -size ? given + size : given;
    i64& to = out[walk(p.walk, 1, e)];
    const bool is_right = check_index(k, p.report);
    to = (p.first ? 0 : to * size) + (is_right ? k : 0);
}
