//! The CPU implementation of reductions. Sizes and strides alone determine how the elements of a
//! result are split, so results are the same on any number of threads.

use std::ops::Range;
use std::slice::from_raw_parts;

use warpline_cuda_sys_safe::HostLaunch;

use super::fold::{Fold, LANES, ReduceElement, TILE};
use super::plan::Plan;
use crate::math::{Loop, vectorized};
use warpline_runtime::DType;
use warpline_runtime::dispatch;
use warpline_runtime::host::{self, Cast, CastAny, GRAIN, HostElement, Number, SharedPtr};

/// Number of results or tiles below which several threads share the elements of a result.
const FEW: usize = 64;

/// Maximum number of partial results that are kept for one result at a time. The limit is needed
/// because an expanded source may have more parts than fit in memory.
const PARTS: usize = 4096;

/// Number of partial results for a short range of elements, instead of [`LANES`].
const SHORT_LANES: usize = 8;

/// Minimum length of a run for which vector instructions are selected.
const LONG: usize = 64;

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the source (`T`) and
/// the result (the plan's dtype).
pub(super) unsafe fn reduce<F: Fold<T>, T: ReduceElement>(launch: &HostLaunch<'_>, plan: &Plan) {
    let source = SharedPtr::<T>::operand(launch, 0);
    let result = SharedPtr::<u8>::operand(launch, 1);
    // SAFETY: the result has an element for each output, and only one thread writes this element.
    let write_result =
        |output: usize, acc: F::Acc| unsafe { store(result, plan, output, F::result(acc)) };
    let [near, far] = [plan.kept.inner().1[0], plan.reduced.inner().1[0]].map(isize::abs);
    // SAFETY: the caller guarantees that all elements of the plan are readable.
    unsafe {
        if plan.outputs > 1 && near < far {
            side_by_side::<F, T>(source, plan, launch.parallel, write_result);
        } else {
            row_by_row::<F, T>(source, plan, launch.parallel, write_result);
        }
    }
}

/// Converts a value to the element of one result, and writes it. Compiled once for all reductions with values of this
/// type.
///
/// # Safety
/// The result has an element for `output`, of the plan's dtype, and no other thread writes it.
unsafe fn store<V: Number + CastAny>(result: SharedPtr<u8>, plan: &Plan, output: usize, value: V) {
    let at = plan.kept.offsets(output)[1];
    dispatch!(DType::ALL[plan.result_dtype as usize], all R => {
        let value = if plan.divisor == 1.0 {
            R::put(value.cast())
        } else {
            let value: f64 = value.cast();
            R::put((value / plan.divisor).cast())
        };
        // SAFETY: the caller guarantees that the result has the element, and `R` is the plan's
        // dtype.
        unsafe { SharedPtr(result.at(0).cast::<R>()).write(at, value) };
    });
}

/// Reduces one result after the other. Threads share the results or, if there are few, the elements
/// of each result.
///
/// # Safety
/// The source is valid for reads of all elements of the plan.
unsafe fn row_by_row<F: Fold<T>, T: ReduceElement>(
    source: SharedPtr<T>,
    plan: &Plan,
    parallel: bool,
    write_result: impl Fn(usize, F::Acc) + Sync,
) {
    let (outputs, extent) = (plan.outputs as usize, plan.extent as usize);
    let base = |output: usize| plan.kept.offsets(output)[0];
    if outputs >= FEW || extent <= 2 * GRAIN {
        let grain = (GRAIN / extent.max(1)).max(1);
        return host::parallel_for(parallel, outputs, grain, |mine| {
            for output in mine {
                // SAFETY: the caller guarantees that all elements of the plan are readable.
                write_result(output, unsafe {
                    reduce_range::<F, T>(source, plan, base(output), 0..extent)
                });
            }
        });
    }
    let parts = extent.div_ceil(GRAIN);
    let mut accs = vec![F::identity(); parts.min(PARTS)];
    for output in 0..outputs {
        let base = base(output);
        let mut acc = F::identity();
        for first in (0..parts).step_by(PARTS) {
            let accs = &mut accs[..PARTS.min(parts - first)];
            let of_parts = SharedPtr(accs.as_mut_ptr());
            host::parallel_for(parallel, accs.len(), 1, |mine| {
                for part in mine {
                    let begin = (first + part) * GRAIN;
                    let range = begin..(begin + GRAIN).min(extent);
                    // SAFETY: the caller guarantees that all elements of the plan are readable, and
                    // the partial result belongs to this thread.
                    unsafe {
                        of_parts
                            .write(part as isize, reduce_range::<F, T>(source, plan, base, range));
                    }
                }
            });
            acc = accs.iter().copied().fold(acc, F::merge);
        }
        write_result(output, acc);
    }
}

/// Reduces the elements `range` of one result. Element 0 of the result is at offset `base`.
///
/// # Safety
/// The source is valid for reads of all elements of the plan.
unsafe fn reduce_range<F: Fold<T>, T: ReduceElement>(
    source: SharedPtr<T>,
    plan: &Plan,
    base: isize,
    range: Range<usize>,
) -> F::Acc {
    let (inner, [step]) = plan.reduced.inner();
    let element = |row: isize, k: usize, i: usize| {
        // SAFETY: the caller guarantees that all elements of the plan are readable, and `i + k` is
        // in `range`.
        F::make(unsafe { source.read(row + k as isize * step) }, i + k)
    };
    if range.len() <= inner.min(LANES) {
        // For so few elements, merging all lanes would take longer than the reduction itself. All
        // elements lie in the last run of the result: only the last range of a result can be this
        // short, and it is not longer than a run.
        let mut accs = [F::identity(); SHORT_LANES];
        let row = if range.is_empty() { 0 } else { base + plan.reduced.offsets(range.start)[0] };
        for k in 0..range.len() {
            accs[k % SHORT_LANES] = F::merge(accs[k % SHORT_LANES], element(row, k, range.start));
        }
        return accs.into_iter().fold(F::identity(), F::merge);
    }
    let mut accs = [F::identity(); LANES];
    let mut i = range.start;
    while i < range.end {
        let n = (inner - i % inner).min(range.end - i);
        let row = base + plan.reduced.offsets(i)[0];
        if step == 1 {
            // SAFETY: the caller guarantees that the run has `n` elements, which are adjacent
            // because `step` is 1.
            let elements = unsafe { from_raw_parts(source.at(row), n) };
            if n >= LONG {
                vectorized(Run::<F, T> { accs: &mut accs, elements, first: i });
            } else {
                F::run(&mut accs, elements, i);
            }
        } else {
            for k in 0..n {
                accs[k % LANES] = F::merge(accs[k % LANES], element(row, k, i));
            }
        }
        i += n;
    }
    F::total(accs)
}

/// Calls [`Fold::run`], as a loop for [`vectorized`].
struct Run<'a, F: Fold<T>, T: ReduceElement> {
    accs: &'a mut [F::Acc; LANES],
    elements: &'a [T],
    first: usize,
}

impl<F: Fold<T>, T: ReduceElement> Loop for Run<'_, F, T> {
    #[inline(always)]
    fn run(self) {
        F::run(self.accs, self.elements, self.first);
    }
}

/// Reduces results whose first elements are closer together in memory than the elements of one
/// result. A task reduces a tile of neighbouring results, row by row.
///
/// # Safety
/// The source is valid for reads of all elements of the plan.
unsafe fn side_by_side<F: Fold<T>, T: ReduceElement>(
    source: SharedPtr<T>,
    plan: &Plan,
    parallel: bool,
    write_result: impl Fn(usize, F::Acc) + Sync,
) {
    let (outputs, extent) = (plan.outputs as usize, plan.extent as usize);
    let inner = plan.kept.inner().0;
    let (width, across) = (inner.min(TILE), inner.div_ceil(TILE));
    let tiles = outputs / inner * across;
    let parts = (extent.saturating_mul(width) / (2 * GRAIN)).clamp(1, FEW.div_ceil(tiles));
    let rows = extent.div_ceil(parts);
    let mut partial = vec![F::identity(); if parts > 1 { parts * outputs } else { 0 }];
    let partials = SharedPtr(partial.as_mut_ptr());
    let grain = (GRAIN / rows.saturating_mul(width).max(1)).max(1);
    host::parallel_for(parallel, parts * tiles, grain, |tasks| {
        let mut accs = [F::identity(); TILE];
        for task in tasks {
            let (part, tile) = (task / tiles, task % tiles);
            let output = tile / across * inner + tile % across * TILE;
            let accs = &mut accs[..TILE.min(inner - tile % across * TILE)];
            accs.fill(F::identity());
            let range = (part * rows).min(extent)..((part + 1) * rows).min(extent);
            // SAFETY: the caller guarantees that all elements of the plan are readable.
            unsafe { columns::<F, T>(source, plan, output, range, accs) };
            for (output, &acc) in (output..).zip(&*accs) {
                if parts == 1 {
                    write_result(output, acc);
                } else {
                    // SAFETY: the partial results of this part and tile belong to this task.
                    unsafe { partials.write((part * outputs + output) as isize, acc) };
                }
            }
        }
    });
    if parts > 1 {
        host::parallel_for(parallel, outputs, (GRAIN / parts).max(1), |mine| {
            for output in mine {
                let accs = partial[output..].iter().step_by(outputs).copied();
                write_result(output, accs.fold(F::identity(), F::merge));
            }
        });
    }
}

/// Reduces the elements `range` of each of several neighbouring results, the first of which is
/// `output`. Merges them into `accs`, which has one accumulator per result.
///
/// # Safety
/// The source is valid for reads of all elements of the plan.
unsafe fn columns<F: Fold<T>, T: ReduceElement>(
    source: SharedPtr<T>,
    plan: &Plan,
    output: usize,
    range: Range<usize>,
    accs: &mut [F::Acc],
) {
    let base = plan.kept.offsets(output)[0];
    let step = plan.kept.inner().1[0];
    if step == 1 {
        return vectorized(Columns::<F, T> { source, plan, base, range, accs });
    }
    for i in range {
        let row = base + plan.reduced.offsets(i)[0];
        for (k, acc) in accs.iter_mut().enumerate() {
            // SAFETY: the caller guarantees that all elements of the plan are readable.
            let element = unsafe { source.read(row + k as isize * step) };
            *acc = F::merge(*acc, F::make(element, i));
        }
    }
}

/// Calls [`Fold::columns`], as a loop for [`vectorized`].
struct Columns<'a, F: Fold<T>, T: ReduceElement> {
    source: SharedPtr<T>,
    plan: &'a Plan,
    base: isize,
    range: Range<usize>,
    accs: &'a mut [F::Acc],
}

impl<F: Fold<T>, T: ReduceElement> Loop for Columns<'_, F, T> {
    #[inline(always)]
    fn run(self) {
        let Self { source, plan, base, range, accs } = self;
        let width = accs.len();
        F::columns(accs, range, |i| {
            let row = base + plan.reduced.offsets(i)[0];
            // SAFETY: `columns` creates this loop only if neighbouring results are adjacent, and
            // its caller guarantees that all elements of the plan are readable.
            unsafe { from_raw_parts(source.at(row), width) }
        });
    }
}
