//! CPU implementations of losses.

use warpline_cuda_sys_safe::HostLaunch;

use super::{Checked, Losses};
use warpline_runtime::host::{self, Cast, GRAIN, HostElement, Number, SharedPtr};

/// Writes a total weight in the compute type of `T`.
///
/// # Safety
/// Operand `index` has one element of the compute type of `T`. The element belongs to this thread.
unsafe fn put_total<T: HostElement>(launch: &HostLaunch<'_>, index: usize, total: f64) {
    // SAFETY: the caller guarantees that the operand has this element, of this type.
    unsafe { SharedPtr::<T::Compute>::operand(launch, index).write(0, Number::from_number(total)) };
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are
/// logarithms (`T`), classes (`i64`), weights and loss (`T`), and total weight (`T::Compute`).
pub(super) unsafe fn nll_loss<T: HostElement>(
    launch: &HostLaunch<'_>,
    Checked { report, losses: p }: &Checked,
) {
    let [log, weight, loss] = [0, 2, 3].map(|i| SharedPtr::<T>::operand(launch, i));
    let classes = SharedPtr::<i64>::operand(launch, 1);
    let [row_step, step] = p.log_steps.map(|step| step as isize);
    let (mut sum, mut total) = (0.0, 0.0);
    for n in 0..p.rows as isize {
        // SAFETY: the classes have an element per row. Logarithms and weights are read only after
        // the class was checked. The report's mailbox lives as long as the launch.
        unsafe {
            let class = classes.read(n * p.class_step as isize);
            if class == p.ignored || !report.check_index(class) {
                continue;
            }
            let class = class as isize;
            let w: f64 = match p.is_weighted {
                0 => 1.0,
                _ => weight.read(class * p.weight_step as isize).get().cast(),
            };
            let value: f64 = log.read(n * row_step + class * step).get().cast();
            sum -= w * value;
            total += w;
        }
    }
    let value = if p.is_mean != 0 { sum / total } else { sum };
    // SAFETY: each result has one element, and the loop runs on one thread.
    unsafe {
        loss.write(0, T::put(T::Compute::from_number(value)));
        put_total::<T>(launch, 4, total);
    }
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are gradient
/// and logarithms (`T`), classes (`i64`), weights (`T`), total weight (`T::Compute`), and result
/// (`T`).
pub(super) unsafe fn nll_loss_backward<T: HostElement>(launch: &HostLaunch<'_>, p: &Losses) {
    let [grad, log, weight, out] = [0, 1, 3, 5].map(|i| SharedPtr::<T>::operand(launch, i));
    let classes = SharedPtr::<i64>::operand(launch, 2);
    // SAFETY: gradient and total weight have one element each.
    let (grad, total): (f64, f64) = unsafe {
        let total = SharedPtr::<T::Compute>::operand(launch, 4).read(0);
        (grad.read(0).get().cast(), total.cast())
    };
    let [[log_row, log_step], [out_row, out_step]] =
        [p.log_steps, p.out_steps].map(|steps| steps.map(|step| step as isize));
    let grain = (GRAIN / 4 / p.size as usize).max(1);
    host::parallel_for(launch.parallel, p.rows as usize, grain, |rows| {
        for row in rows {
            let row = row as isize;
            // SAFETY: the classes have an element per row. A weight is read only if the class is in
            // range.
            let (class, scale) = unsafe {
                let class = classes.read(row * p.class_step as isize);
                let counts = class != p.ignored && (class as u64) < p.size;
                let w: f64 = match p.is_weighted {
                    _ if !counts => 0.0,
                    0 => 1.0,
                    _ => weight.read(class as isize * p.weight_step as isize).get().cast(),
                };
                let scale = if p.is_mean != 0 { grad * w / total } else { grad * w };
                (class, counts.then_some(scale))
            };
            for c in 0..p.size as isize {
                // SAFETY: `c` is less than the number of classes.
                let log: f64 = unsafe { log.read(row * log_row + c * log_step) }.get().cast();
                let own = f64::from(c as i64 == class);
                let slope = scale.map_or(0.0, |scale| (log.exp() - own) * scale);
                let slope = T::put(T::Compute::from_number(slope));
                // SAFETY: `c` is less than the number of classes, and the row belongs to this
                // thread.
                unsafe { out.write(row * out_row + c * out_step, slope) };
            }
        }
    });
}
