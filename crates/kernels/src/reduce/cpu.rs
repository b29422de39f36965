//! The CPU implementation of reductions.

use std::ops::Range;

use rayon::prelude::*;
use warpline_cuda_sys_safe::HostLaunch;

use super::fold::{Fold, Source};
use super::plan::Plan;
use warpline_runtime::DType;
use warpline_runtime::dispatch;
use warpline_runtime::host::{self, Cast, GRAIN, HostElement, Shared};

/// Elements taken together, so that the compiler may use vector instructions.
const LANES: usize = 16;

/// Neighbouring results worked on together where they lie closer than what goes into each.
const TILE: usize = 64;

/// Parts of a result that threads work on before these are merged.
const PIECES: usize = 4096;

/// # Safety
/// As [`warpline_cuda_sys_safe::HostKernel`]: the source, of `T`s, the result, of the plan's dtype, and a
/// [`Plan`].
pub(super) unsafe fn reduce<F: Fold<Value = T::Wide>, T: Source>(launch: &HostLaunch<'_>) {
    let plan: Plan = host::params(launch);
    let source = Shared::<T>::operand(launch, 0);
    let result = Shared::<u8>::operand(launch, 1);
    // SAFETY: the result has room for each, and each is one thread's.
    let leave = |output: usize, acc: F::Acc| unsafe { store::<F>(result, &plan, output, acc) };
    // SAFETY: the caller's promise.
    unsafe { all::<F, T>(source, &plan, launch.parallel, leave) };
}

/// Writes one result.
///
/// # Safety
/// As [`reduce`]; no other thread writes that result.
unsafe fn store<F: Fold>(result: Shared<u8>, plan: &Plan, output: usize, acc: F::Acc) {
    let value = F::result(acc);
    let at = plan.kept.offsets(output)[1];
    dispatch!(DType::ALL[plan.result_dtype as usize], all T => {
        let value = if plan.divisor == 1.0 {
            T::put(value.cast())
        } else {
            let value: f64 = value.cast();
            T::put((value / plan.divisor).cast())
        };
        // SAFETY: the caller's promise.
        unsafe { Shared(result.at(0).cast::<T>()).write(at, value) };
    });
}

/// Reduces the elements of every result.
///
/// # Safety
/// The source is valid for reads at all of the plan's elements.
unsafe fn all<F: Fold<Value = T::Wide>, T: Source>(
    source: Shared<T>,
    plan: &Plan,
    parallel: bool,
    leave: impl Fn(usize, F::Acc) + Sync,
) {
    let outputs = plan.outputs as usize;
    let range = 0..plan.extent as usize;
    let grain = (GRAIN / range.len().max(1)).max(1);
    let (inner, [step, _]) = plan.kept.inner();
    let side_by_side = outputs > 1 && step.abs() < plan.reduced.inner().1[0].abs();
    if !side_by_side
        && parallel
        && range.len() > 2 * GRAIN
        && outputs < 2 * host::thread_count()
        && host::has_threads()
    {
        // Few results of many elements each: threads share a result.
        for output in 0..outputs {
            let base = plan.kept.offsets(output)[0];
            let piece = |piece| {
                let begin = range.start + piece * GRAIN;
                // SAFETY: the caller's promise.
                unsafe { one::<F, T>(source, plan, base, begin..(begin + GRAIN).min(range.end)) }
            };
            let pieces = range.len().div_ceil(GRAIN);
            let mut acc = F::identity();
            // An expanded source may have more pieces than there is memory for.
            for first in (0..pieces).step_by(PIECES) {
                let next = first..pieces.min(first + PIECES);
                let accs: Vec<F::Acc> =
                    host::on_threads(|| next.into_par_iter().map(piece).collect());
                acc = accs.into_iter().fold(acc, F::merge);
            }
            leave(output, acc);
        }
        return;
    }
    host::parallel_for(parallel, outputs, grain, |mine| {
        let mut output = mine.start;
        while output < mine.end {
            let base = plan.kept.offsets(output)[0];
            if !side_by_side {
                // SAFETY: the caller's promise.
                leave(output, unsafe { one::<F, T>(source, plan, base, range.clone()) });
                output += 1;
                continue;
            }
            let n = (inner - output % inner).min(mine.end - output).min(TILE);
            let mut accs = [F::identity(); TILE];
            for i in range.clone() {
                let at = base + plan.reduced.offsets(i)[0];
                for (k, acc) in accs[..n].iter_mut().enumerate() {
                    // SAFETY: the caller's promise.
                    let value = unsafe { source.read(at + k as isize * step) };
                    *acc = F::merge(*acc, F::make(value.wide(), i));
                }
            }
            for (k, acc) in accs[..n].iter().enumerate() {
                leave(output + k, *acc);
            }
            output += n;
        }
    });
}

/// Reduces the elements `range` of one result, whose first element is at `base`.
///
/// # Safety
/// As [`all`].
unsafe fn one<F: Fold<Value = T::Wide>, T: Source>(
    source: Shared<T>,
    plan: &Plan,
    base: isize,
    range: Range<usize>,
) -> F::Acc {
    let (inner, [step]) = plan.reduced.inner();
    let mut accs = [F::identity(); LANES];
    let mut i = range.start;
    while i < range.end {
        let n = (inner - i % inner).min(range.end - i);
        let row = base + plan.reduced.offsets(i)[0];
        let whole = if step == 1 { n - n % LANES } else { 0 };
        for k in (0..whole).step_by(LANES) {
            // SAFETY: a run of elements without gaps, as the caller promises.
            let values: [T; LANES] =
                unsafe { source.at(row + k as isize).cast::<[T; LANES]>().read() };
            for (j, acc) in accs.iter_mut().enumerate() {
                *acc = F::merge(*acc, F::make(values[j].wide(), i + k + j));
            }
        }
        for k in whole..n {
            // SAFETY: the caller's promise.
            let value = unsafe { source.read(row + k as isize * step) };
            accs[k % LANES] = F::merge(accs[k % LANES], F::make(value.wide(), i + k));
        }
        i += n;
    }
    accs.into_iter().fold(F::identity(), F::merge)
}
