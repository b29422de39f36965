//! The CPU implementation of appending to a cache.

use warpline_cuda_sys_safe::HostLaunch;

use super::Append;
use warpline_runtime::host::{self, GRAIN, SharedPtr};

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are keys,
/// values and both caches (`T`), and the state (`i64`).
pub(super) unsafe fn kv_cache_append<T: Copy + Send + Sync>(launch: &HostLaunch<'_>, p: &Append) {
    let [k, v, keys, values] = [0, 1, 2, 3].map(|i| SharedPtr::<T>::operand(launch, i));
    let state = SharedPtr::<i64>::operand(launch, 4);
    let width = p.width as isize;
    let in_elements = |units: i64| units as isize * width;
    // SAFETY: the state has a length, which no other thread writes. The report's mailbox lives as
    // long as the launch.
    let (length, fits) = unsafe {
        let length = state.read(0);
        let last = length.wrapping_add(p.count as i64 - 1);
        (length, p.report.check_index(if length < 0 { length } else { last }))
    };
    if !fits {
        return;
    }
    let size = p.units as usize * p.width as usize;
    // A unit's elements are neighbours.
    let steps = p.steps.map(|step| if p.width == 1 { step as isize } else { 1 });
    let start = length as isize * in_elements(p.step);
    host::parallel_for(launch.parallel, p.rows as usize, (GRAIN / size.max(1)).max(1), |rows| {
        for row in rows {
            let at = p.walk.offsets(row).map(|units| units * width);
            for i in 0..size as isize {
                // SAFETY: keys and values have these elements, and the caches have the positions
                // from `length` on, because the last of them is in range. The row belongs to this
                // thread.
                unsafe {
                    keys.write(at[2] + start + i, k.read(at[0] + i * steps[0]));
                    values.write(at[3] + start + i, v.read(at[1] + i * steps[1]));
                }
            }
        }
    });
    // SAFETY: the state has a length, which no other thread reads now.
    unsafe { state.write(0, length + p.count as i64) };
}
