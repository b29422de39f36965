//! The CPU implementation of rotary position embeddings.

use warpline_cuda_sys_safe::HostLaunch;

use super::Rotary;
use warpline_runtime::host::{self, GRAIN, HostElement, Number, SharedPtr};

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are the
/// input, the cosines, the sines and the result. Their elements have type `T`, but cosines and
/// sines have the compute type of `T` if `is_wide` is set.
pub(super) unsafe fn rotary_embedding<T: HostElement>(launch: &HostLaunch<'_>, p: &Rotary) {
    let [x, out] = [0, 3].map(|i| SharedPtr::<T>::operand(launch, i));
    let angles = [1, 2].map(|i| SharedPtr::<T>::operand(launch, i));
    let wide_angles = [1, 2].map(|i| SharedPtr::<T::Compute>::operand(launch, i));
    let angle = |k: usize, at: isize| {
        // SAFETY: the caller guarantees the type of the cosines and sines. This is called only for
        // offsets of their elements, which are only read.
        unsafe { if p.is_wide != 0 { wide_angles[k].read(at) } else { angles[k].read(at).get() } }
    };
    let steps = p.steps.map(|step| step as isize);
    let (pairs, rest) = (p.pairs as isize, p.rest as isize);
    let zero = T::Compute::from_bits(0);
    let grain = (GRAIN / (2 * pairs + rest).max(1) as usize).max(1);
    host::parallel_for(launch.parallel, p.rows as usize, grain, |rows| {
        for row in rows {
            let at = p.walk.offsets(row);
            let offset = |k: usize, column: isize| at[k] + column * steps[k];
            for i in 0..pairs {
                let (a, b) =
                    if p.is_interleaved != 0 { (2 * i, 2 * i + 1) } else { (i, i + pairs) };
                let (cos, sin) = (angle(0, offset(1, i)), angle(1, offset(2, i)));
                let sin = if p.is_inverse != 0 { zero.sub(sin) } else { sin };
                // SAFETY: the operands have these elements, and the row of the result belongs to
                // this thread.
                unsafe {
                    let (first, second) = (x.read(offset(0, a)).get(), x.read(offset(0, b)).get());
                    out.write(offset(3, a), T::put(first.mul(cos).sub(second.mul(sin))));
                    out.write(offset(3, b), T::put(second.mul(cos).add(first.mul(sin))));
                }
            }
            for column in 2 * pairs..2 * pairs + rest {
                // SAFETY: the operands have this element, and the row of the result belongs to this
                // thread.
                unsafe { out.write(offset(3, column), x.read(offset(0, column))) };
            }
        }
    });
}
