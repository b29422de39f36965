//! CPU implementation of concatenation.

use bytemuck::Zeroable;
use warpline_cuda_sys_safe::HostLaunch;
use warpline_runtime::host::{GRAIN, SharedPtr, parallel_for};

use super::{Cat, CatPair, Part};

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are
/// [`super::SOURCES`] sources and the result, of units of `T`.
pub(super) unsafe fn cat<T: Copy>(launch: &HostLaunch<'_>, p: &Cat) {
    // SAFETY: the caller guarantees that there is an operand for each part, then the result.
    unsafe { join::<T>(launch, p.pitch, &p.parts) }
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are two
/// sources and the result, of units of `T`.
pub(super) unsafe fn pair<T: Copy>(launch: &HostLaunch<'_>, p: &CatPair) {
    let CatPair { numel, columns, .. } = *p;
    let part = |k: usize, at| Part { numel: numel[k], columns: columns[k], at, ..Part::zeroed() };
    // SAFETY: the caller guarantees that there is an operand for each of the two parts, then the
    // result.
    unsafe { join::<T>(launch, columns[0] + columns[1], &[part(0, 0), part(1, columns[0])]) }
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are a source
/// for each part, then the result, whose rows have `pitch` units.
unsafe fn join<T: Copy>(launch: &HostLaunch<'_>, pitch: u32, parts: &[Part]) {
    let out = SharedPtr::<T>::operand(launch, parts.len());
    for (k, part) in parts.iter().enumerate() {
        let source = SharedPtr::<T>::operand(launch, k);
        let columns = (part.columns as usize).max(1);
        parallel_for(launch.parallel, part.numel as usize, GRAIN, |range| {
            let mut i = range.start;
            while i < range.end {
                let (row, column) = (i / columns, i % columns);
                let n = (columns - column).min(range.end - i);
                let to = row * pitch as usize + part.at as usize + column;
                // SAFETY: the source has `numel` units, and the result has the source's columns in
                // each row. These columns belong to this source, and each unit to one thread.
                unsafe { out.at(to as isize).copy_from_nonoverlapping(source.at(i as isize), n) };
                i += n;
            }
        });
    }
}
