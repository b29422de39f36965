//! CPU implementations of normalization and its gradients.

use std::ops::Range;

use warpline_cuda_sys_safe::HostLaunch;

use super::Norm;
use crate::math::{Loop, vectorized};
use warpline_runtime::host::{self, Cast, GRAIN, HostElement, LANES, Number, SharedPtr};

/// Number of terms of a sum that are computed at a time.
const BLOCK: usize = 4 * LANES;

pub(super) use layer_norm_backward_columns as layer_norm_backward_vectors;

/// Reads element `at` of an operand.
///
/// # Safety
/// The operand has an element at `at`, and no thread writes it meanwhile.
#[inline(always)]
unsafe fn get<T: HostElement>(of: SharedPtr<T>, at: usize) -> f64 {
    // SAFETY: the caller guarantees that the element exists and is not being written.
    unsafe { of.read(at as isize) }.get().cast()
}

/// Writes element `at` of an operand.
///
/// # Safety
/// The operand has an element at `at`, which belongs to this thread.
#[inline(always)]
unsafe fn put<T: HostElement>(of: SharedPtr<T>, at: usize, value: f64) {
    // SAFETY: the caller guarantees that the element exists and belongs to this thread.
    unsafe { of.write(at as isize, T::put(T::Compute::from_number(value))) };
}

/// Reads element `at` of an operand of means or scales.
///
/// # Safety
/// The operand has an element at `at`, and no thread writes it meanwhile.
#[inline(always)]
unsafe fn moment<T: HostElement>(of: SharedPtr<T::Compute>, at: usize) -> f64 {
    // SAFETY: the caller guarantees that the element exists and is not being written.
    unsafe { of.read(at as isize) }.cast()
}

/// Returns the sum of `f(i)` for all `i` in a range. Terms are computed in blocks and added to
/// [`LANES`] partial sums, so that both loops have vector instructions.
#[inline(always)]
fn sum(range: Range<usize>, f: impl Fn(usize) -> f64) -> f64 {
    let (mut terms, mut sums) = ([0.0; BLOCK], [0.0; LANES]);
    for first in range.clone().step_by(BLOCK) {
        let terms = &mut terms[..BLOCK.min(range.end - first)];
        for (i, term) in (first..).zip(&mut *terms) {
            *term = f(i);
        }
        let (chunks, rest) = terms.as_chunks::<LANES>();
        for chunk in chunks {
            for (sum, term) in sums.iter_mut().zip(chunk) {
                *sum += term;
            }
        }
        for (sum, term) in sums.iter_mut().zip(rest) {
            *sum += term;
        }
    }
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            sums[lane] += sums[lane + half];
        }
        half /= 2;
    }
    sums[0]
}

/// Returns the mean of a row, and the number to add to correct its rounding error: 0 for `f32` and halves.
///
/// # Safety
/// The operand has these elements, and no thread writes them meanwhile.
#[inline(always)]
unsafe fn mean<T: HostElement>(of: SharedPtr<T>, at: Range<usize>) -> (f64, f64) {
    let size = at.len() as f64;
    // SAFETY: the caller guarantees that the elements exist and are not being written.
    let element = |i: usize| unsafe { get(of, i) };
    let mut mean = sum(at.clone(), element) / size;
    if size_of::<T>() < size_of::<f64>() {
        return (mean, 0.0);
    }
    if mean.is_infinite() {
        // A sum may overflow although its mean does not.
        mean = sum(at.clone(), |i| element(i) / size);
    }
    // Elements that differ little from the mean need it more exactly than an `f64` has it.
    (mean, sum(at, |i| element(i) - mean) / size)
}

/// Runs `f` over ranges of rows, in parallel.
fn parallel_rows(launch: &HostLaunch<'_>, p: &Norm, f: impl Fn(Range<usize>) + Sync) {
    let grain = (GRAIN / 4 / p.size as usize).max(1);
    host::parallel_for(launch.parallel, p.rows as usize, grain, f);
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are rows,
/// weight, bias and result (`T`), then mean and scale (`T::Compute`).
pub(super) unsafe fn layer_norm<T: HostElement>(launch: &HostLaunch<'_>, p: &Norm) {
    let operands = [0, 1, 2, 3].map(|i| SharedPtr::<T>::operand(launch, i));
    let moments = [4, 5].map(|i| SharedPtr::<T::Compute>::operand(launch, i));
    parallel_rows(launch, p, |rows| {
        vectorized(Normalize { p, added: None, operands, moments, rows });
    });
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are rows,
/// residual, weight, bias, result and sum (`T`), then mean and scale (`T::Compute`).
pub(super) unsafe fn layer_norm_add<T: HostElement>(launch: &HostLaunch<'_>, p: &Norm) {
    let [input, residual, weight, bias, out, sum] =
        [0, 1, 2, 3, 4, 5].map(|i| SharedPtr::<T>::operand(launch, i));
    let moments = [6, 7].map(|i| SharedPtr::<T::Compute>::operand(launch, i));
    let (added, operands) = (Some([input, residual]), [sum, weight, bias, out]);
    parallel_rows(launch, p, |rows| vectorized(Normalize { p, added, operands, moments, rows }));
}

/// Normalizes rows.
///
/// The operands must be rows, weight, bias and result, and the moments mean and scale. The rows and
/// their moments must belong to this thread. If `added` is given, the rows are first computed as the
/// sum of its operands.
struct Normalize<'a, T: HostElement> {
    p: &'a Norm,
    added: Option<[SharedPtr<T>; 2]>,
    operands: [SharedPtr<T>; 4],
    moments: [SharedPtr<T::Compute>; 2],
    rows: Range<usize>,
}

impl<T: HostElement> Loop for Normalize<'_, T> {
    #[inline(always)]
    fn run(self) {
        let Self { p, added, operands: [input, weight, bias, out], moments, rows } = self;
        let (n, size, eps) = (p.size as usize, p.size as f64, f64::from_bits(p.eps));
        let (weighted, biased) = (p.is_weighted != 0, p.is_biased != 0);
        for row in rows {
            let at = row * n..(row + 1) * n;
            // SAFETY: only `layer_norm` and `layer_norm_add` create this loop. All operands and
            // moments have these elements. Weight and bias are read only if they exist.
            unsafe {
                if let Some([x, residual]) = added {
                    for i in at.clone() {
                        put(input, i, get(x, i) + get(residual, i));
                    }
                }
                let (mean, rest) =
                    if p.is_centred != 0 { mean::<T>(input, at.clone()) } else { (0.0, 0.0) };
                let centred = |i: usize| get(input, i) - mean - rest;
                let squares = sum(at.clone(), |i| centred(i) * centred(i));
                let scale = 1.0 / (squares / size + eps).sqrt();
                for (moments, value) in moments.into_iter().zip([mean, scale]) {
                    moments.write(row as isize, T::Compute::from_number(value));
                }
                for (column, i) in at.enumerate() {
                    let y = centred(i) * scale;
                    let y = if weighted { y * get(weight, column) } else { y };
                    put(out, i, if biased { y + get(bias, column) } else { y });
                }
            }
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
    let moments = [3, 4].map(|i| SharedPtr::<T::Compute>::operand(launch, i));
    let operands = [grad, input, weight, out];
    parallel_rows(launch, p, |rows| vectorized(RowsBackward { p, operands, other, moments, rows }));
}

/// Computes the gradient of rows.
///
/// The operands must be gradient, rows, weight and result, then another gradient, mean and scale.
/// The rows of the result must belong to this thread.
struct RowsBackward<'a, T: HostElement> {
    p: &'a Norm,
    operands: [SharedPtr<T>; 4],
    other: Option<SharedPtr<T>>,
    moments: [SharedPtr<T::Compute>; 2],
    rows: Range<usize>,
}

impl<T: HostElement> Loop for RowsBackward<'_, T> {
    #[inline(always)]
    fn run(self) {
        let Self { p, operands: [grad, input, weight, out], other, moments, rows } = self;
        let (n, size, weighted) = (p.size as usize, p.size as f64, p.is_weighted != 0);
        for row in rows {
            let at = row * n..(row + 1) * n;
            // SAFETY: only `rows_backward` creates this loop. All operands and moments have these
            // elements. The weight is read only if it exists.
            unsafe {
                let [mean, scale] = moments.map(|of| moment::<T>(of, row));
                let grad = |i: usize| {
                    let g = get(grad, i);
                    if weighted { g * get(weight, i - row * n) } else { g }
                };
                let normalized = |i: usize| (get(input, i) - mean) * scale;
                let plain = if p.is_centred != 0 { sum(at.clone(), grad) / size } else { 0.0 };
                let along = sum(at.clone(), |i| grad(i) * normalized(i)) / size;
                for i in at {
                    let other = other.map_or(0.0, |other| get(other, i));
                    put(out, i, (grad(i) - plain - normalized(i) * along) * scale + other);
                }
            }
        }
    }
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
    let moments = [2, 3].map(|i| SharedPtr::<T::Compute>::operand(launch, i));
    let of_bias = (p.is_biased != 0).then(|| SharedPtr::<T>::operand(launch, 5));
    let (rows, size) = (p.rows as usize, p.size as usize);
    host::parallel_for(launch.parallel, size, (GRAIN / 4 / rows).max(1), |columns| {
        let mut sums = vec![(0.0, 0.0); columns.len()];
        let first = columns.start;
        vectorized(Columns { p, operands: [grad, input], moments, first, sums: &mut sums });
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

/// Sums columns for the gradients of weight and bias, from column `first` on.
///
/// The operands must be gradient and rows, and the moments mean and scale.
struct Columns<'a, T: HostElement> {
    p: &'a Norm,
    operands: [SharedPtr<T>; 2],
    moments: [SharedPtr<T::Compute>; 2],
    first: usize,
    sums: &'a mut [(f64, f64)],
}

impl<T: HostElement> Loop for Columns<'_, T> {
    #[inline(always)]
    fn run(self) {
        let Self { p, operands: [grad, input], moments, first, sums } = self;
        for row in 0..p.rows as usize {
            let at = row * p.size as usize + first;
            // SAFETY: only `layer_norm_backward_columns` creates this loop. The operands have these
            // elements, which are only read.
            unsafe {
                let [mean, scale] = moments.map(|of| moment::<T>(of, row));
                for ((along, plain), i) in sums.iter_mut().zip(at..) {
                    let g = get(grad, i);
                    *along += g * ((get(input, i) - mean) * scale);
                    *plain += g;
                }
            }
        }
    }
}
