//! The CPU implementation of backward passes: the ops' loops over slices that stay in the nearest cache.

use std::marker::PhantomData;

use warpline_cuda_sys_safe::HostLaunch;
use warpline_runtime::host::{Cast, GRAIN, HostElement, Number, Shared, parallel_for, rows};
use warpline_runtime::iter::{HostLoop, HostLoops, Index};
use warpline_runtime::{DType, dispatch};

use super::run::Fused;
use crate::elementwise::entry::Slices;
use crate::elementwise::formula::{Formula, Step};
use crate::elementwise::host::{Reader, SLICE, Writer};
use crate::elementwise::run::NUMBER;

/// Returns the loops of a backward pass on elements of a dtype. `None` if the dtype is not a float.
pub(super) fn loops<const I: usize, const N: usize>(
    dtype: DType,
) -> Option<HostLoops<Fused<I>, N>> {
    dispatch!(dtype, float T => Some(HostLoops::of::<Backpropagation<T>>()), _ => None)
}

/// Computes gradients of `T`.
struct Backpropagation<T>(PhantomData<T>);

// SAFETY: `over` reads the inputs that are not numbers and writes the wanted results.
unsafe impl<T: HostElement, const I: usize, const N: usize> HostLoop<Fused<I>, N>
    for Backpropagation<T>
{
    unsafe fn strided(launch: &HostLaunch<'_>, index: &Index<N>, args: &Fused<I>) {
        // SAFETY: this function's contract; launches of backward passes alone have `Fused`.
        unsafe { over::<T, I, N>(launch, index, *args, args.backward().formula()) }
    }
}

/// Values of a slice.
type Slice<T> = [<T as HostElement>::Compute; SLICE];

/// # Safety
/// The launch has `I` inputs, of which none is read that a number stands for, then the results, of which unwanted ones are not
/// written. They have the dtypes in the arguments, and elements at the positions of `index`. No other thread writes to them.
unsafe fn over<T: HostElement, const I: usize, const N: usize>(
    launch: &HostLaunch<'_>,
    index: &Index<N>,
    Fused { numbers, .. }: Fused<I>,
    formula: &Formula,
) {
    let strides = index.inner_strides();
    let memory: [Shared<T>; N] = std::array::from_fn(|k| Shared::operand(launch, k));
    // Each wanted result: its place among the views, and the step that computes it.
    let results: Vec<(usize, usize, usize)> = (I..N)
        .zip(formula.computed())
        .filter(|(k, _)| numbers.code(*k) != NUMBER)
        .filter_map(|(k, &operand)| Some((k, operand, formula.gradient(operand)?)))
        .collect();
    let uses = formula.uses(results.iter().map(|(_, operand, _)| *operand));
    let steps: Vec<(usize, Code)> = (formula.steps().iter().enumerate())
        .filter(|(k, _)| uses[*k] > 0)
        .filter_map(|(k, step)| Some((k, code::<T>(step)?)))
        .collect();
    parallel_for(launch.parallel, index.numel(), GRAIN, |range| {
        let mut inputs: [Reader<T>; I] = std::array::from_fn(|k| {
            let number = numbers.number(k).map(T::Compute::from_bits);
            Reader::new(memory[k], strides[k], numbers.dtype(k), number)
        });
        let mut outs: Vec<Writer<T>> = results
            .iter()
            .map(|&(k, ..)| Writer::new(memory[k], strides[k], numbers.dtype(k)))
            .collect();
        let zero = T::Compute::from_bits(0);
        let mut buffers: Vec<Slice<T>> = vec![[zero; SLICE]; formula.steps().len()];
        for (k, code) in &steps {
            if let Code::Constant(number) = code {
                buffers[*k] = [T::Compute::from_scalar((*number).into()); SLICE];
            }
        }
        let buffers = buffers.as_mut_ptr();
        // SAFETY: there is a buffer for each step. From here on, they are reached through these pointers alone.
        let buffer = |k: usize| unsafe { buffers.add(k) }.cast::<T::Compute>();
        // The values of each step: a buffer's, or those of an input in its place.
        let mut values: Vec<*const u8> =
            (0..formula.steps().len()).map(|k| buffer(k).cast_const().cast()).collect();
        rows(index, range, |at, n| {
            for first in (0..n).step_by(SLICE) {
                let n = SLICE.min(n - first);
                let offset = |k: usize| at[k] + first as isize * strides[k];
                for (k, &leaf) in formula.leaves().iter().enumerate().take(I) {
                    if uses[leaf] > 0 {
                        // SAFETY: elements of the row from `first` on, as the caller promises.
                        values[leaf] = unsafe { inputs[k].read(offset(k), n) }.cast();
                    }
                }
                for (k, code) in &steps {
                    match code {
                        Code::Constant(_) => {}
                        Code::Single(step) => {
                            for i in 0..n {
                                // SAFETY: a step before has as many values, and the buffer has room for them.
                                unsafe {
                                    let wide = values[*step].cast::<T::Compute>().add(i).read();
                                    let single = T::Compute::from_number(Cast::<f32>::cast(wide));
                                    buffer(*k).add(i).write(single);
                                }
                            }
                        }
                        Code::Apply(slices, reads) => {
                            let mut inputs = [std::ptr::null(); 4];
                            for (input, read) in inputs.iter_mut().zip(reads) {
                                *input = values[*read];
                            }
                            // SAFETY: steps before have as many values, in other buffers or in inputs.
                            unsafe { slices(&inputs[..reads.len()], buffer(*k).cast(), n) };
                        }
                    }
                }
                for ((k, _, step), out) in results.iter().zip(&mut outs) {
                    // SAFETY: elements of the row from `first` on, as the caller promises.
                    unsafe {
                        let place = out.place(offset(*k));
                        values[*step].cast::<T::Compute>().copy_to_nonoverlapping(place, n);
                        out.write(offset(*k), n);
                    }
                }
            }
        });
    });
}

/// How the CPU computes a step.
enum Code {
    Constant(f64),
    Single(usize),
    Apply(Slices, Vec<usize>),
}

/// `None` for a leaf.
fn code<T: HostElement>(step: &Step) -> Option<Code> {
    match step {
        Step::Gradient | Step::Operand(_) | Step::Result => None,
        Step::Constant(number) => Some(Code::Constant(*number)),
        Step::Single(step) => Some(Code::Single(*step)),
        Step::Apply(op, _) => {
            let host = (op.entry.host)(T::DTYPE)?;
            Some(Code::Apply(host.slices, step.reads().to_vec()))
        }
    }
}
