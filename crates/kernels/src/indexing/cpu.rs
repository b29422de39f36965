//! The CPU implementation of selection by indices.

use warpline_cuda_sys_safe::HostLaunch;

use super::Pick;
use warpline_runtime::host::{Cast, GRAIN, HostElement, SharedPtr, parallel_for, rows};

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are source
/// (`T`), index (`I`) and result (`T`).
pub(super) unsafe fn gather<T, I>(launch: &HostLaunch<'_>, &Pick { report, step, space }: &Pick)
where
    T: Copy + Default,
    I: HostElement<Compute: Cast<i64>>,
{
    let (source, out) = (SharedPtr::<T>::operand(launch, 0), SharedPtr::<T>::operand(launch, 2));
    let index = SharedPtr::<I>::operand(launch, 1);
    let [a, b, c] = space.inner_strides();
    parallel_for(launch.parallel, space.numel(), GRAIN, |range| {
        rows(&space, range, |[from, at, to], n| {
            if b == 0 {
                // SAFETY: source and index have these elements; the source is reached only if the
                // one index of the row is in range. The row of the result belongs to this thread.
                // The report's mailbox lives as long as the launch.
                unsafe {
                    let i: i64 = index.read(at).get().cast();
                    if !report.check_index(i) {
                        (0..n as isize).for_each(|k| out.write(to + k * c, T::default()));
                    } else {
                        let from = from + i as isize * step as isize;
                        copy_row((source.at(from), a), (out.at(to), c), n);
                    }
                }
                return;
            }
            for k in 0..n as isize {
                // SAFETY: source and index have these elements; the source is reached only if the
                // index is in range. The element of the result belongs to this thread. The report's
                // mailbox lives as long as the launch.
                unsafe {
                    let i: i64 = index.read(at + k * b).get().cast();
                    let value = if report.check_index(i) {
                        source.read(from + k * a + i as isize * step as isize)
                    } else {
                        T::default()
                    };
                    out.write(to + k * c, value);
                }
            }
        });
    });
}

/// Copies `n` elements, `a` apart, to places that are `c` apart.
///
/// # Safety
/// The elements are valid for reads and the places for writes, and no other thread accesses the
/// places meanwhile.
unsafe fn copy_row<T: Copy>((from, a): (*const T, isize), (to, c): (*mut T, isize), n: usize) {
    // SAFETY: the caller guarantees that elements and places are valid.
    unsafe {
        if (a, c) == (1, 1) {
            to.copy_from(from, n);
        } else {
            (0..n as isize).for_each(|k| to.offset(k * c).write(from.offset(k * a).read()));
        }
    }
}
