//! The CPU implementation.

use warpline_cuda_sys_safe::HostLaunch;

use super::Pick;
use warpline_runtime::host::{Cast, GRAIN, HostElement, Shared, parallel_for, rows};

/// # Safety
/// As [`HostKernel`](warpline_cuda_sys_safe::HostKernel): a source of `T`, indices of `I`, and a result of `T`.
pub(super) unsafe fn gather<T, I>(launch: &HostLaunch<'_>, &Pick { report, step, space }: &Pick)
where
    T: Copy + Default,
    I: HostElement<Compute: Cast<i64>>,
{
    let (source, out) = (Shared::<T>::operand(launch, 0), Shared::<T>::operand(launch, 2));
    let index = Shared::<I>::operand(launch, 1);
    let [a, b, c] = space.inner_strides();
    parallel_for(launch.parallel, space.numel(), GRAIN, |range| {
        rows(&space, range, |[from, at, to], n| {
            if b == 0 {
                // SAFETY: as below, of an index that all of them share.
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
                // SAFETY: declared elements; the source's only where the index is in range. What
                // is written is this thread's. The report's mailbox is there for the launch.
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

/// Copies `n` elements at these steps.
///
/// # Safety
/// They are valid for reads and writes, and nobody else touches what is written meanwhile.
unsafe fn copy_row<T: Copy>((from, a): (*const T, isize), (to, c): (*mut T, isize), n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if (a, c) == (1, 1) {
            to.copy_from(from, n);
        } else {
            (0..n as isize).for_each(|k| to.offset(k * c).write(from.offset(k * a).read()));
        }
    }
}
