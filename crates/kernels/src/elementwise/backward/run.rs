//! Launches backward passes.

use std::panic::Location;

use bytemuck::{Pod, Zeroable};
use warpline_runtime::iter::{Bits, Kernels};
use warpline_runtime::{DType, Error, ErrorKind, Result, Site, Target, View};
use warpline_runtime::{cuda_struct, dispatch};

use super::Backward;
use super::cuda::for_counts;
use super::host::Backpropagation;
use crate::elementwise::Arg;
use crate::elementwise::run::{NUMBER, Numbers, bits, truth};

/// The kernels' arguments apart from the views.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Fused<const N: usize> {
    pub(super) numbers: Numbers<N>,
    /// Address of the [`Backward`], for the CPU implementation.
    backward: Bits,
}

cuda_struct!(Fused<N> { numbers, backward });

impl<const N: usize> Fused<N> {
    /// Returns the backward pass.
    ///
    /// # Safety
    /// `run` made the arguments.
    pub(super) unsafe fn backward(&self) -> &'static Backward {
        let address = u64::from(self.backward) as usize;
        // SAFETY: `run` has exposed the address of a `&'static Backward`.
        unsafe { &*std::ptr::with_exposed_provenance(address) }
    }
}

// SAFETY: all fields are integers, for which zero bits are valid.
unsafe impl<const N: usize> Zeroable for Fused<N> {}
// SAFETY: `repr(C)` of 32-bit integers: no padding, every bit pattern is valid.
unsafe impl<const N: usize> Pod for Fused<N> {}

/// Computes the wanted gradients of an op's operands in one launch.
///
/// `inputs` has a value for each of [`leaves`](crate::elementwise::Formula::leaves), and `results`
/// memory for each of [`computed`](crate::elementwise::Formula::computed), `None` if that gradient
/// is unwanted. An input that only unwanted gradients read may be any number. All views have the
/// same sizes. The computation is in `dtype`; elements of other dtypes are converted as they are
/// read and written. Conditions are boolean.
///
/// # Errors
/// - [`ErrorKind::InvalidArgument`] if `backward` has no program ([`Backward::is_fused`]), if the
///   number of inputs or results is not that of the formulas, or if no result is wanted.
/// - [`ErrorKind::UnsupportedDType`] if `dtype` is not floating-point.
/// - [`ErrorKind::DTypeMismatch`] if a condition is not boolean.
/// - [`ErrorKind::ShapeMismatch`] if the sizes differ.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of a result overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if a result overlaps another view without being the same
///   elements.
/// - The errors of the launch.
#[track_caller]
pub fn apply_backward(
    target: Target<'_>,
    backward: &'static Backward,
    dtype: DType,
    inputs: &[Arg<'_>],
    results: &[Option<View<'_>>],
) -> Result<()> {
    let formula = backward.formula();
    let expected = (formula.leaves().len(), formula.computed().len());
    if expected != (inputs.len(), results.len()) {
        let (given, takes) = ((inputs.len(), results.len()), expected);
        let reason = format!("takes {takes:?} inputs and results, not {given:?}");
        return Err(Error::invalid(backward.name(), reason));
    }
    macro_rules! choose {
        ($(($i:literal, $k:literal))*) => {
            match expected {
                $(($i, $k) => run::<$i, { $i + $k }>(target, backward, dtype, inputs, results),)*
                _ => Err(Error::invalid(backward.name(), "has no backward program")),
            }
        };
    }
    for_counts!(choose)
}

#[track_caller]
fn run<const I: usize, const N: usize>(
    target: Target<'_>,
    backward: &'static Backward,
    dtype: DType,
    inputs: &[Arg<'_>],
    results: &[Option<View<'_>>],
) -> Result<()> {
    let name = backward.name();
    let Some(out) = results.iter().flatten().next().copied().filter(|_| backward.is_fused()) else {
        let reason = "has no backward program, or no gradient is wanted";
        return Err(Error::invalid(name, reason));
    };
    let Some(kernels) = backward.kernels::<I, N>(dtype) else {
        return Err(ErrorKind::UnsupportedDType { dtype }.of(name));
    };
    let mut numbers = Numbers::<I>::zeroed();
    let (mut views, mut untouched, mut converts) = ([out; N], 0, false);
    for ((k, input), &leaf) in inputs.iter().enumerate().zip(backward.formula().leaves()) {
        let is_condition = backward.formula().is_condition(leaf);
        match input {
            Arg::Tensor(view) if is_condition && view.dtype != DType::Bool => {
                let (expected, actual) = (DType::Bool, view.dtype);
                let location = Location::caller();
                return Err(ErrorKind::DTypeMismatch { expected, actual }.of(name).at(location));
            }
            Arg::Tensor(view) => {
                views[k] = *view;
                converts |= view.dtype != dtype && !is_condition;
                numbers.set_code(k, view.dtype as u32);
            }
            Arg::Number(value) => {
                untouched |= 1 << k;
                let value = if is_condition { truth(*value) } else { *value };
                let rounded = dtype.size() == 2 && backward.formula().is_rounded(leaf);
                numbers.set_number(k, bits(value, dtype, rounded));
            }
        }
    }
    for (k, result) in (I..N).zip(results) {
        match result {
            Some(view) => {
                views[k] = *view;
                converts |= view.dtype != dtype;
                numbers.set_code(k, view.dtype as u32);
            }
            None => {
                untouched |= 1 << k;
                numbers.set_code(k, NUMBER);
            }
        }
    }
    let address = std::ptr::from_ref(backward).expose_provenance() as u64;
    let args = Fused { numbers, backward: address.into() };
    kernels.converting(converts).launch_some(target, Site::here(name), views, untouched, args)
}

impl Backward {
    /// Returns the kernels for a dtype, with `I` inputs and `N` views. `None` if the dtype is not
    /// floating-point.
    fn kernels<const I: usize, const N: usize>(
        &'static self,
        dtype: DType,
    ) -> Option<Kernels<Fused<I>, N>> {
        let vector = if dtype == DType::F64 { 2 } else { 4 };
        // SAFETY: by the contract of `new`, the program is for the formulas, whose numbers of inputs
        // and results `apply_backward` has compared with `I` and `N`. `run` makes the arguments:
        // they contain the dtypes of the views, and mark inputs that are numbers and unwanted
        // results, which kernels and loop do not touch.
        let kernels = unsafe {
            dispatch!(dtype, float T => Kernels::new::<Backpropagation<T>>(self.program()), _ => return None)
        };
        Some(kernels.with_vector(vector).with_run(vector).with_results(N - I))
    }
}
