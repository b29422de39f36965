//! The CPU implementation.

use bytemuck::Zeroable;
use warpline_cuda_sys_safe::HostLaunch;
use warpline_runtime::host::{GRAIN, Shared, parallel_for};

use super::{Cat, Pair, Part};

/// # Safety
/// As [`HostKernel`](warpline_cuda_sys_safe::HostKernel): [`super::SOURCES`] operands and the result, of units of `T`.
pub(super) unsafe fn cat<T: Copy>(launch: &HostLaunch<'_>, p: &Cat) {
    // SAFETY: the caller's promise.
    unsafe { join::<T>(launch, p.pitch, &p.parts) }
}

/// # Safety
/// As [`HostKernel`](warpline_cuda_sys_safe::HostKernel): two operands and the result, of units of `T`.
pub(super) unsafe fn pair<T: Copy>(launch: &HostLaunch<'_>, &Pair { numel, columns, .. }: &Pair) {
    let part = |k: usize, at| Part { numel: numel[k], columns: columns[k], at, ..Part::zeroed() };
    // SAFETY: the caller's promise.
    unsafe { join::<T>(launch, columns[0] + columns[1], &[part(0, 0), part(1, columns[0])]) }
}

/// # Safety
/// As [`HostKernel`](warpline_cuda_sys_safe::HostKernel): an operand for each part, and the result, whose rows are `pitch` units long.
unsafe fn join<T: Copy>(launch: &HostLaunch<'_>, pitch: u32, parts: &[Part]) {
    let out = Shared::<T>::operand(launch, parts.len());
    for (k, part) in parts.iter().enumerate() {
        let source = Shared::<T>::operand(launch, k);
        let columns = (part.columns as usize).max(1);
        parallel_for(launch.parallel, part.numel as usize, GRAIN, |range| {
            let mut i = range.start;
            while i < range.end {
                let (row, column) = (i / columns, i % columns);
                let n = (columns - column).min(range.end - i);
                let to = row * pitch as usize + part.at as usize + column;
                // SAFETY: the source has `numel` units, the result its columns of each row. Nobody
                // else writes them.
                unsafe { out.at(to as isize).copy_from_nonoverlapping(source.at(i as isize), n) };
                i += n;
            }
        });
    }
}
