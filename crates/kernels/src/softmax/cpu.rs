//! The CPU implementations of softmax and its gradient.

use warpline_cuda_sys_safe::HostLaunch;

use super::Rows;
use super::backward::Gradient;
use super::row::{BLOCK, Exp, Row};
use crate::math::vectorized;
use warpline_runtime::host::{self, Cast, GRAIN, HostElement, LANES, Number, SharedPtr};

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

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are the
/// incoming gradient, the forward result and the result, with elements of type `T`.
pub(super) unsafe fn softmax_backward<T: HostElement>(launch: &HostLaunch<'_>, p: &Gradient) {
    let [grad, out, result] = [0, 1, 2].map(|i| SharedPtr::<T>::operand(launch, i));
    let [a, b, c] = p.steps.map(|step| step as isize);
    let (size, log) = (p.size as isize, p.log != 0);
    let grain = (GRAIN / 4 / p.size as usize).max(1);
    host::parallel_for(launch.parallel, p.rows as usize, grain, |rows| {
        for row in rows {
            let [g, o, to] = p.walk.offsets(row);
            let pair = |i: isize| -> (f64, f64) {
                // SAFETY: `i` is less than the row's size, and the launch declares both operands as
                // read.
                let (g, o) = unsafe { (grad.read(g + i * a), out.read(o + i * b)) };
                (g.get().cast(), o.get().cast())
            };
            let sum: f64 = (0..size).map(pair).map(|(g, o)| if log { g } else { g * o }).sum();
            for i in 0..size {
                let (g, o) = pair(i);
                let slope = if log { g - o.exp() * sum } else { o * (g - sum) };
                // SAFETY: `i` is less than the row's size, and the row belongs to this thread.
                unsafe { result.write(to + i * c, T::put(T::Compute::from_number(slope))) };
            }
        }
    });
}
