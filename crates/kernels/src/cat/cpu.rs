//! The CPU implementation.

use warpline_cuda_sys_safe::{HostKernel, HostLaunch};
use warpline_runtime::host::{GRAIN, Shared, parallel_for, params};

use super::{Cat, SOURCES};

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

/// # Safety
/// As [`HostKernel`]: [`SOURCES`] operands and the result, of units of `T`, and [`Cat`].
unsafe fn cat<T: Copy>(launch: &HostLaunch<'_>) {
    let Cat { pitch, parts }: Cat = params(launch);
    let out = Shared::<T>::operand(launch, SOURCES);
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
