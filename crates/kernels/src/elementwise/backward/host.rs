//! The CPU implementation of backward passes: the ops' loops over slices that stay in the level 1
//! cache.

use std::marker::PhantomData;

use warpline_cuda_sys_safe::HostLaunch;
use warpline_runtime::host::{Cast, GRAIN, HostElement, Number, SharedPtr, parallel_for, rows};
use warpline_runtime::iter::{HostLoop, Index};

use super::BackwardPass;
use crate::elementwise::entry::Slices;
use crate::elementwise::formula::{Formula, FormulaStep};
use crate::elementwise::host::{Reader, SLICE, Writer};
use crate::elementwise::run::{NUMBER, Numbers};

/// Computes the gradients of `P` for elements of `T`.
pub(super) struct Backpropagation<P, T>(PhantomData<(P, T)>);

// SAFETY: `over` reads only inputs that are not numbers, and writes only wanted results.
unsafe impl<P, T, const I: usize, const N: usize> HostLoop<Numbers<I>, N> for Backpropagation<P, T>
where
    P: BackwardPass,
    T: HostElement,
{
    const VARIANT: &'static str = T::DTYPE.suffix();
    const RESULTS: usize = N - I;

    unsafe fn strided(launch: &HostLaunch<'_>, index: &Index<N>, numbers: &Numbers<I>) {
        // SAFETY: the caller guarantees that the launch has `I` inputs and then the results, with the dtypes in
        // `numbers`; that the operands have elements at the positions of `index`; and that no other thread writes these
        // elements.
        unsafe { over::<T, I, N>(launch, index, *numbers, P::backward().formula()) }
    }
}

/// Values of a slice.
type Slice<T> = [<T as HostElement>::Compute; SLICE];

/// # Safety
/// The launch has `I` inputs, then the results. Inputs that are numbers are not read, and unwanted
/// results are not written. All other inputs and results have the dtypes in the arguments, and an
/// element at each position of `index`. No other thread writes to these elements.
unsafe fn over<T: HostElement, const I: usize, const N: usize>(
    launch: &HostLaunch<'_>,
    index: &Index<N>,
    numbers: Numbers<I>,
    formula: &Formula,
) {
    let strides = index.inner_strides();
    let memory: [SharedPtr<T>; N] = std::array::from_fn(|k| SharedPtr::operand(launch, k));
    // For each wanted result: its index among the views, the operand, and the step that computes
    // the gradient.
    let results: Vec<(usize, usize, usize)> = (I..N)
        .zip(formula.differentiable())
        .filter(|(k, _)| numbers.code(*k) != NUMBER)
        .filter_map(|(k, operand)| Some((k, operand, formula.gradient(operand)?)))
        .collect();
    let uses = formula.uses(results.iter().map(|(_, operand, _)| *operand));
    let steps: Vec<(usize, CpuStep)> = (formula.steps().iter().enumerate())
        .filter(|(k, _)| uses[*k] > 0)
        .filter_map(|(k, step)| Some((k, cpu_step::<T>(step)?)))
        .collect();
    parallel_for(launch.parallel, index.numel(), GRAIN, |range| {
        let mut inputs: [Reader<T>; I] = std::array::from_fn(|k| {
            let number = numbers.number(k).map(T::Compute::from_bits);
            Reader::new(memory[k], strides[k], numbers.dtype(k), number, range.len())
        });
        let mut outs: Vec<Writer<T>> = results
            .iter()
            .map(|&(k, ..)| Writer::new(memory[k], strides[k], numbers.dtype(k), range.len()))
            .collect();
        let zero = T::Compute::from_bits(0);
        let mut buffers: Vec<Slice<T>> = vec![[zero; SLICE]; formula.steps().len()];
        for (k, step_code) in &steps {
            if let CpuStep::Constant(number) = step_code {
                buffers[*k] = [T::Compute::from_scalar((*number).into()); SLICE];
            }
        }
        let buffers = buffers.as_mut_ptr();
        // SAFETY: `k` is less than the number of buffers. From here on, the buffers are accessed
        // only through these pointers.
        let buffer = |k: usize| unsafe { buffers.add(k) }.cast::<T::Compute>();
        // Address of the values of each step: its buffer, or the memory of an input that is read in
        // place.
        let mut values: Vec<*const u8> =
            (0..formula.steps().len()).map(|k| buffer(k).cast_const().cast()).collect();
        rows(index, range, |at, n| {
            for first in (0..n).step_by(SLICE) {
                let n = SLICE.min(n - first);
                let offset = |k: usize| at[k] + first as isize * strides[k];
                for (k, input) in inputs.iter_mut().enumerate() {
                    if uses[k] > 0 {
                        // SAFETY: the caller guarantees that the inputs have the elements of the
                        // row, and `n` is at most [`SLICE`].
                        values[k] = unsafe { input.read(offset(k), n) }.cast();
                    }
                }
                for (k, step_code) in &steps {
                    match step_code {
                        CpuStep::Constant(_) => {}
                        CpuStep::Single(step) => {
                            for i in 0..n {
                                // SAFETY: an earlier step has `n` values, and the buffer of this
                                // step has room for them.
                                unsafe {
                                    let wide = values[*step].cast::<T::Compute>().add(i).read();
                                    let single = T::Compute::from_number(Cast::<f32>::cast(wide));
                                    buffer(*k).add(i).write(single);
                                }
                            }
                        }
                        CpuStep::Apply(slices, reads) => {
                            let mut inputs = [std::ptr::null(); 4];
                            for (input, read) in inputs.iter_mut().zip(reads) {
                                *input = values[*read];
                            }
                            // SAFETY: the earlier steps have `n` values, in inputs or in other
                            // buffers than this step's.
                            unsafe { slices(&inputs[..reads.len()], buffer(*k).cast(), n) };
                        }
                    }
                }
                for ((k, _, step), out) in results.iter().zip(&mut outs) {
                    // SAFETY: the caller guarantees that the results have the elements of the row,
                    // and the step has `n` values.
                    unsafe {
                        let to = out.results(offset(*k));
                        values[*step].cast::<T::Compute>().copy_to_nonoverlapping(to, n);
                        out.write(offset(*k), n);
                    }
                }
            }
        });
    });
}

/// A step in the form that the CPU executes.
enum CpuStep {
    Constant(f64),
    Single(usize),
    Apply(Slices, Vec<usize>),
}

/// Converts a step. `None` for a leaf.
fn cpu_step<T: HostElement>(step: &FormulaStep) -> Option<CpuStep> {
    match step {
        FormulaStep::Gradient | FormulaStep::Operand(_) | FormulaStep::Result => None,
        FormulaStep::Constant(number) => Some(CpuStep::Constant(*number)),
        FormulaStep::Single(step) => Some(CpuStep::Single(*step)),
        FormulaStep::Apply(op, _) => {
            Some(CpuStep::Apply(op.entry.slices[T::DTYPE as usize]?, step.reads().to_vec()))
        }
    }
}
