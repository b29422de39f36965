//! The CPU implementation.

use bytemuck::Zeroable;
use warpline_cuda_sys_safe::{HostKernel, HostLaunch};
use warpline_runtime::host::{GRAIN, Shared, parallel_for, params};

use super::{Cat, Pair, Part};

/// Of units of `size` bytes.
pub(super) fn kernel(size: usize) -> HostKernel {
    match size {
        1 => cat::<u8>,
        2 => cat::<u16>,
        4 => cat::<u32>,
        8 => cat::<u64>,
        _ => cat::<[u64; 2]>,
    }
}

/// The same of two sources that take all of the rows.
pub(super) fn pair_kernel(size: usize) -> HostKernel {
    match size {
        1 => pair::<u8>,
        2 => pair::<u16>,
        4 => pair::<u32>,
        8 => pair::<u64>,
        _ => pair::<[u64; 2]>,
    }
}

/// # Safety
/// As [`HostKernel`]: [`super::SOURCES`] operands and the result, of units of `T`, and [`Cat`].
unsafe fn cat<T: Copy>(launch: &HostLaunch<'_>) {
    let Cat { pitch, parts } = params(launch);
    // SAFETY: the caller's promise.
    unsafe { join::<T>(launch, pitch, &parts) }
}

/// # Safety
/// As [`HostKernel`]: two operands and the result, of units of `T`, and [`Pair`].
unsafe fn pair<T: Copy>(launch: &HostLaunch<'_>) {
    let Pair { numel, columns, .. } = params(launch);
    let part = |k: usize, at| Part { numel: numel[k], columns: columns[k], at, ..Part::zeroed() };
    // SAFETY: the caller's promise.
    unsafe { join::<T>(launch, columns[0] + columns[1], &[part(0, 0), part(1, columns[0])]) }
}

/// # Safety
/// As [`HostKernel`]: an operand for each part, and the result, whose rows are `pitch` units long.
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
