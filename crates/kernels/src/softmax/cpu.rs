//! The CPU implementation of softmax.

use warpline_cuda_sys_safe::HostLaunch;

use super::Rows;
use super::row::{BLOCK, Exp, Row};
use crate::math::vectorized;
use warpline_runtime::host::{self, GRAIN, HostElement, LANES, Number, SharedPtr};

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the source and the
/// result, with elements of type `T`.
pub(super) unsafe fn softmax<T: HostElement<Compute: Exp>>(launch: &HostLaunch<'_>, p: &Rows) {
    let (source, result) = (SharedPtr::<T>::operand(launch, 0), SharedPtr::<T>::operand(launch, 1));
    let size = p.size as usize;
    let grain = (GRAIN / 8 / size).max(1);
    host::parallel_for(launch.parallel, p.rows as usize, grain, |rows| {
        let mut block = vec![[T::Compute::LOWEST; LANES]; size.min(BLOCK).div_ceil(LANES)];
        for index in rows {
            let columns = p.columns as usize;
            let [from, to] =
                p.walk.offsets(index / columns).map(|at| at + (index % columns) as isize);
            let read = |first: usize, values: &mut [T::Compute]| {
                for (i, x) in (first as isize..).zip(values) {
                    // SAFETY: `Row` reads only elements of the row, which the launch declares as
                    // read.
                    *x = unsafe { source.read(from + i * p.source_step as isize) }.get();
                }
            };
            let write = |first: usize, values: &[T::Compute]| {
                for (i, &x) in (first as isize..).zip(values) {
                    // SAFETY: `Row` writes only elements of the row, and the row belongs to this
                    // thread.
                    unsafe { result.write(to + i * p.result_step as isize, T::put(x)) };
                }
            };
            let row = Row { size, log: p.log != 0, block: &mut block, read: &read, write: &write };
            vectorized(row);
        }
    });
}
