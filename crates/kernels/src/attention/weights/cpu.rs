//! CPU implementations of the weights of attention and of their gradient.

use warpline_cuda_sys_safe::HostLaunch;
use warpline_runtime::host::{self, Cast, GRAIN, HostElement, LANES, Number, SharedPtr};

use super::Attention;
use crate::math::vectorized;
use crate::softmax::row::{BLOCK, Exp, Row};

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are the
/// scores (`T::Compute`) and the weights (`T`).
pub(super) unsafe fn attention_weights<T>(launch: &HostLaunch<'_>, p: &Attention)
where
    T: HostElement<Compute: Exp>,
{
    let (scores, weights) =
        (SharedPtr::<T::Compute>::operand(launch, 0), SharedPtr::<T>::operand(launch, 1));
    let (keys, scale) = (p.keys as usize, f64::from_bits(p.scale));
    let zero = T::put(T::Compute::from_bits(0));
    let scale = T::Compute::from_number(scale);
    let grain = (GRAIN / 8 / keys).max(1);
    host::parallel_for(launch.parallel, (p.batch * p.queries) as usize, grain, |rows| {
        let mut block = vec![[T::Compute::LOWEST; LANES]; keys.min(BLOCK).div_ceil(LANES)];
        for row in rows {
            let (at, size) = ((row * keys) as isize, p.visible_keys(row));
            let read = |first: usize, values: &mut [T::Compute]| {
                for (i, x) in (first as isize..).zip(values) {
                    // SAFETY: the row has `keys` elements, which the launch declares as read.
                    *x = unsafe { scores.read(at + i) }.mul(scale);
                }
            };
            let write = |first: usize, values: &[T::Compute]| {
                for (i, &x) in (first as isize..).zip(values) {
                    // SAFETY: the row has `keys` weights and belongs to this thread.
                    unsafe { weights.write(at + i, T::put(x)) };
                }
            };
            let block = &mut block[..size.min(BLOCK).div_ceil(LANES)];
            vectorized(Row { size, log: false, block, read: &read, write: &write });
            for i in size..keys {
                // SAFETY: `i` is less than `keys`, and the row belongs to this thread.
                unsafe { weights.write(at + i as isize, zero) };
            }
        }
    });
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are the
/// gradient (`T::Compute`), the weights (`T`) and the result (`T`).
pub(super) unsafe fn attention_weights_backward<T: HostElement>(
    launch: &HostLaunch<'_>,
    p: &Attention,
) {
    let grad = SharedPtr::<T::Compute>::operand(launch, 0);
    let [weights, result] = [1, 2].map(|i| SharedPtr::<T>::operand(launch, i));
    let (keys, scale) = (p.keys as usize, f64::from_bits(p.scale));
    let grain = (GRAIN / 4 / keys).max(1);
    host::parallel_for(launch.parallel, (p.batch * p.queries) as usize, grain, |rows| {
        for row in rows {
            let (at, size) = ((row * keys) as isize, p.visible_keys(row) as isize);
            let pair = |i: isize| -> (f64, f64) {
                // SAFETY: `i` is less than `keys`, and the launch declares both operands as read.
                let (g, w) = unsafe { (grad.read(at + i), weights.read(at + i)) };
                (g.cast(), w.get().cast())
            };
            let sum: f64 = (0..size).map(pair).map(|(g, w)| g * w).sum();
            for i in 0..keys as isize {
                let slope = if i < size {
                    let (g, w) = pair(i);
                    scale * w * (g - sum)
                } else {
                    0.0
                };
                // SAFETY: `i` is less than `keys`, and the row belongs to this thread.
                unsafe { result.write(at + i, T::put(T::Compute::from_number(slope))) };
            }
        }
    });
}
