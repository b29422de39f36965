//! CPU implementations of `linear_index` and `index_add`.

use warpline_cuda_sys_safe::HostLaunch;

use super::index_add::IndexAdd;
use super::linear::Linear;
use warpline_runtime::host::{self, GRAIN, HostElement, Number, SharedPtr};

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the index and the
/// result, with elements of type `i64`.
pub(super) unsafe fn linear_index(launch: &HostLaunch<'_>, p: &Linear) {
    let (index, out) = (SharedPtr::<i64>::operand(launch, 0), SharedPtr::<i64>::operand(launch, 1));
    let size = p.report.size() as i64;
    host::parallel_for(launch.parallel, p.elements as usize, GRAIN, |range| {
        for e in range {
            let [at, to] = p.walk.offsets(e);
            // SAFETY: both operands have this element, and the element of the result belongs to
            // this thread. The report's mailbox lives as long as the launch.
            unsafe {
                let given = index.read(at);
                let from_end = given.saturating_add(size);
                let k = if given < 0 && from_end >= 0 { from_end } else { given };
                let k = if p.report.check_index(k) { k } else { 0 };
                let before = if p.first != 0 { 0 } else { out.read(to).wrapping_mul(size) };
                out.write(to, before.wrapping_add(k));
            }
        }
    });
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are the
/// source (`T`), the index (`i64`) and the result (`T`).
pub(super) unsafe fn index_add<T: HostElement>(launch: &HostLaunch<'_>, p: &IndexAdd) {
    /// Minimum number of columns per task, because each task reads all indices.
    const COLUMNS: usize = 64;
    let (source, out) = (SharedPtr::<T>::operand(launch, 0), SharedPtr::<T>::operand(launch, 2));
    let index = SharedPtr::<i64>::operand(launch, 1);
    let [a, b, c] = [p.source_step, p.index_step, p.out_step].map(|step| step as isize);
    let columns = p.columns as usize;
    let work = p.count as usize + if p.from_zero != 0 { p.report.size() } else { 0 };
    let grain = (GRAIN / work.max(1)).max(COLUMNS);
    host::parallel_for(launch.parallel, columns, grain, |range| {
        let offsets: Vec<[isize; 2]> = range.map(|column| p.walk.offsets(column)).collect();
        // SAFETY: source and index have these elements. The columns of the result belong to this
        // thread, and rows of the result are accessed only at indices in range. The report's
        // mailbox lives as long as the launch.
        unsafe {
            if p.from_zero != 0 {
                for row in 0..p.report.size() as isize {
                    for [_, to] in &offsets {
                        out.write(to + row * c, T::put(<T::Compute as Number>::from_bits(0)));
                    }
                }
            }
            for n in 0..p.count as isize {
                let k = index.read(n * b);
                if !p.report.check_index(k) || k == p.skip {
                    continue;
                }
                for [from, to] in &offsets {
                    let at = to + k as isize * c;
                    let sum = out.read(at).get().add(source.read(from + n * a).get());
                    out.write(at, T::put(sum));
                }
            }
        }
    });
}
