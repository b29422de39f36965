//! CPU implementations of normalization and its gradients.

use std::ops::Range;

use warpline_cuda_sys_safe::HostLaunch;

use super::Norm;
use warpline_runtime::host::{self, Cast, GRAIN, HostElement, Number, SharedPtr};

pub(super) use layer_norm_backward_columns as layer_norm_backward_vectors;

/// Reads element `at` of an operand.
///
/// # Safety
/// The operand has an element at `at`, and no thread writes it meanwhile.
unsafe fn get<T: HostElement>(of: SharedPtr<T>, at: usize) -> f64 {
    // SAFETY: the caller guarantees that the element exists and is not being written.
    unsafe { of.read(at as isize) }.get().cast()
}

/// Writes element `at` of an operand.
///
/// # Safety
/// The operand has an element at `at`, which belongs to this thread.
unsafe fn put<T: HostElement>(of: SharedPtr<T>, at: usize, value: f64) {
    // SAFETY: the caller guarantees that the element exists and belongs to this thread.
    unsafe { of.write(at as isize, T::put(T::Compute::from_number(value))) };
}

/// Reads element `at` of an operand of means or scales.
///
/// # Safety
/// The operand has an element at `at`, and no thread writes it meanwhile.
unsafe fn moment<T: HostElement>(of: SharedPtr<T::Compute>, at: usize) -> f64 {
    // SAFETY: the caller guarantees that the element exists and is not being written.
    unsafe { of.read(at as isize) }.cast()
}

fn each_row(launch: &HostLaunch<'_>, p: &Norm, f: impl Fn(usize, Range<usize>) + Sync) {
    let size = p.size as usize;
    host::parallel_for(launch.parallel, p.rows as usize, (GRAIN / 4 / size).max(1), |rows| {
        rows.for_each(|row| f(row, row * size..(row + 1) * size));
    });
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are rows,
/// weight, bias and result (`T`), then mean and scale (`T::Compute`).
pub(super) unsafe fn layer_norm<T: HostElement>(launch: &HostLaunch<'_>, p: &Norm) {
    let operands = [0, 1, 2, 3].map(|i| SharedPtr::<T>::operand(launch, i));
    let moments = [4, 5].map(|i| SharedPtr::<T::Compute>::operand(launch, i));
    each_row(launch, p, |row, at| {
        // SAFETY: the caller guarantees that the operands are these, and the row belongs to this
        // thread.
        unsafe { normalize(p, operands, moments, row, at) };
    });
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are rows,
/// residual, weight, bias, result and sum (`T`), then mean and scale (`T::Compute`).
pub(super) unsafe fn layer_norm_add<T: HostElement>(launch: &HostLaunch<'_>, p: &Norm) {
    let [input, residual, weight, bias, out, sum] =
        [0, 1, 2, 3, 4, 5].map(|i| SharedPtr::<T>::operand(launch, i));
    let moments = [6, 7].map(|i| SharedPtr::<T::Compute>::operand(launch, i));
    each_row(launch, p, |row, at| {
        // SAFETY: the caller guarantees that the operands are these, and the row belongs to this
        // thread.
        unsafe {
            at.clone().for_each(|i| put(sum, i, get(input, i) + get(residual, i)));
            normalize(p, [sum, weight, bias, out], moments, row, at);
        }
    });
}

/// Normalizes the row `row`, whose elements are `at`.
///
/// # Safety
/// The operands are rows, weight, bias and result, and the moments mean and scale. The row and its
/// moments belong to this thread. Weight and bias have an element per column if `is_weighted` and
/// `is_biased` are set.
unsafe fn normalize<T: HostElement>(
    p: &Norm,
    [input, weight, bias, out]: [SharedPtr<T>; 4],
    [means, scales]: [SharedPtr<T::Compute>; 2],
    row: usize,
    at: Range<usize>,
) {
    let (size, eps) = (p.size as f64, f64::from_bits(p.eps));
    // SAFETY: the caller guarantees that the row, its moments, weight and bias have these elements.
    // Weight and bias are read only if they exist.
    unsafe {
        let values = || at.clone().map(|i| get(input, i));
        let mean = if p.is_centred != 0 { values().sum::<f64>() / size } else { 0.0 };
        let squares: f64 = values().map(|x| (x - mean) * (x - mean)).sum();
        let scale = 1.0 / (squares / size + eps).sqrt();
        means.write(row as isize, T::Compute::from_number(mean));
        scales.write(row as isize, T::Compute::from_number(scale));
        for (column, i) in at.clone().enumerate() {
            let y = (get(input, i) - mean) * scale;
            let y = if p.is_weighted != 0 { y * get(weight, column) } else { y };
            put(out, i, if p.is_biased != 0 { y + get(bias, column) } else { y });
        }
    }
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are gradient,
/// rows and weight (`T`), mean and scale (`T::Compute`), and the result (`T`).
pub(super) unsafe fn layer_norm_backward<T: HostElement>(launch: &HostLaunch<'_>, p: &Norm) {
    // SAFETY: the caller guarantees that the operands are these.
    unsafe { rows_backward::<T>(launch, p, None, 5) };
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are gradient,
/// rows and weight (`T`), mean and scale (`T::Compute`), another gradient of the rows (`T`), and
/// the result (`T`).
pub(super) unsafe fn layer_norm_backward_add<T: HostElement>(launch: &HostLaunch<'_>, p: &Norm) {
    // SAFETY: the caller guarantees that the operands are these.
    unsafe { rows_backward::<T>(launch, p, Some(5), 6) };
}

/// Computes the gradient of the rows into operand `out`. Adds the operand `other`.
///
/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are gradient,
/// rows and weight (`T`), mean and scale (`T::Compute`), then `other`, if given, and `out` (`T`).
unsafe fn rows_backward<T: HostElement>(
    launch: &HostLaunch<'_>,
    p: &Norm,
    other: Option<usize>,
    out: usize,
) {
    let [grad, input, weight, out] = [0, 1, 2, out].map(|i| SharedPtr::<T>::operand(launch, i));
    let other = other.map(|i| SharedPtr::<T>::operand(launch, i));
    let [means, scales] = [3, 4].map(|i| SharedPtr::<T::Compute>::operand(launch, i));
    let size = p.size as f64;
    each_row(launch, p, |row, at| {
        // SAFETY: the row of the result belongs to this thread. The weight has an element per
        // column, and is read only if it exists.
        unsafe {
            let (mean, scale) = (moment::<T>(means, row), moment::<T>(scales, row));
            let pair = |(column, i): (usize, usize)| {
                let g = get(grad, i);
                let own = if p.is_weighted != 0 { g * get(weight, column) } else { g };
                (own, (get(input, i) - mean) * scale)
            };
            let pairs = || at.clone().enumerate().map(pair);
            let (plain, along) =
                pairs().fold((0.0, 0.0), |(plain, along), (g, y)| (plain + g, along + g * y));
            let plain = if p.is_centred != 0 { plain / size } else { 0.0 };
            for ((g, y), i) in pairs().zip(at.clone()) {
                let other = other.map_or(0.0, |other| get(other, i));
                put(out, i, (g - plain - y * (along / size)) * scale + other);
            }
        }
    });
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are gradient
/// and rows (`T`), mean and scale (`T::Compute`), the gradient of the weight (`T`), and the
/// gradient of the bias (`T`), which is written only if `is_biased` is set.
pub(super) unsafe fn layer_norm_backward_columns<T: HostElement>(
    launch: &HostLaunch<'_>,
    p: &Norm,
) {
    let [grad, input, of_weight] = [0, 1, 4].map(|i| SharedPtr::<T>::operand(launch, i));
    let [means, scales] = [2, 3].map(|i| SharedPtr::<T::Compute>::operand(launch, i));
    let of_bias = (p.is_biased != 0).then(|| SharedPtr::<T>::operand(launch, 5));
    let (rows, size) = (p.rows as usize, p.size as usize);
    host::parallel_for(launch.parallel, size, (GRAIN / 4 / rows).max(1), |columns| {
        let mut sums = vec![(0.0, 0.0); columns.len()];
        for row in 0..rows {
            // SAFETY: `row` and `column` are within the moments, the gradient and the rows, which
            // are only read.
            unsafe {
                let (mean, scale) = (moment::<T>(means, row), moment::<T>(scales, row));
                for (sums, column) in sums.iter_mut().zip(columns.clone()) {
                    let g = get(grad, row * size + column);
                    sums.0 += g * ((get(input, row * size + column) - mean) * scale);
                    sums.1 += g;
                }
            }
        }
        for ((along, plain), column) in sums.into_iter().zip(columns) {
            // SAFETY: the results have an element per column, and the column belongs to this
            // thread.
            unsafe {
                put(of_weight, column, along);
                if let Some(of_bias) = of_bias {
                    put(of_bias, column, plain);
                }
            }
        }
    });
}
