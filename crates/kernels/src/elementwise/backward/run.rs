//! Launches backward passes.

use std::fmt::Debug;
use std::panic::Location;

use bytemuck::Zeroable;
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::host::HostElement;
use warpline_runtime::iter::{Kernels, Variant, Widths};
use warpline_runtime::module::{Program, Source};
use warpline_runtime::{DType, Error, Result, Scalar, Site, Target, View, by_dtype};

use super::host::Backpropagation;
use super::{Backward, BackwardPass};
use crate::elementwise::Arg;
use crate::elementwise::cuda::structs;
use crate::elementwise::formula::MAX_OPERANDS;
use crate::elementwise::run::{MAX_VIEWS, NUMBER, Numbers, bits, truth};

/// The kernels of a backward pass with `I` inputs and `N` views. Only floating-point dtypes have
/// kernels.
#[derive(Debug)]
pub struct BackwardKernels<const I: usize, const N: usize>(Kernels<Numbers<I>, N>);

impl<const I: usize, const N: usize> BackwardKernels<I, N> {
    /// Describes the kernels of the backward pass `P`. `conditions` has `true` for each operand
    /// that is a condition.
    ///
    /// # Safety
    /// `program` has the [`source`](super::source) of `P`, and its committed PTX was compiled from
    /// that source. `P` has these conditions, `I` inputs and `N - I` results.
    #[doc(hidden)]
    #[must_use]
    pub const unsafe fn new<P: BackwardPass>(
        program: &'static Program,
        conditions: &[bool],
    ) -> Self {
        Self(Kernels::new(by_dtype!(all T => {
            // SAFETY: the caller guarantees that the program is that of `P`.
            unsafe { variant::<P, T, I, N>(program, conditions) }
        })))
    }
}

/// # Safety
/// The conditions of [`BackwardKernels::new`].
const unsafe fn variant<P: BackwardPass, T: HostElement, const I: usize, const N: usize>(
    program: &'static Program,
    conditions: &[bool],
) -> Option<Variant<Numbers<I>, N>> {
    if !T::DTYPE.is_float() {
        return None;
    }
    let mut dtypes = [T::DTYPE; N];
    let mut operand = 0;
    while operand < conditions.len() {
        if conditions[operand] {
            dtypes[operand] = DType::Bool;
        }
        operand += 1;
    }
    let vector = if T::DTYPE as u64 == DType::F64 as u64 { 2 } else { 4 };
    // SAFETY: the caller guarantees that the program is that of `P`, which has these numbers of
    // inputs and results. `launch` makes the arguments: they contain the dtypes of the views, and
    // mark unused inputs and unwanted results, which kernels and loop do not touch. `vector` is
    // that of `source`.
    Some(unsafe {
        Variant::new::<Backpropagation<P, T>>(program, dtypes, Widths { vector, run: vector })
    })
}

/// [`BackwardKernels`] with any numbers of inputs and views.
pub(super) trait LaunchBackward: Debug + Sync {
    /// Returns the number of inputs.
    fn inputs(&self) -> usize;
    /// Returns the number of inputs and results.
    fn views(&self) -> usize;
    /// Declares the parameters.
    fn structs(&self) -> Source;
    /// Launches the kernels of a fused `backward`. `inputs` has a value for each of the formula's
    /// leaves, and `results` memory for each of the computed gradients.
    fn launch(
        &self,
        target: Target<'_>,
        backward: &Backward,
        dtype: DType,
        inputs: &[Arg<'_>],
        results: &[Option<View<'_>>],
        location: &'static Location<'static>,
    ) -> Result<()>;
}

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
    let (name, formula, location) = (backward.name(), backward.formula(), Location::caller());
    let takes = (formula.leaves().len(), formula.computed().len());
    let given = (inputs.len(), results.len());
    if takes != given {
        let reason = format!(
            "takes {} inputs and {} results, not {} and {}",
            takes.0, takes.1, given.0, given.1
        );
        return Err(Error::invalid(name, reason));
    }
    if !backward.is_fused() {
        return Err(Error::invalid(name, "has no backward program"));
    }
    let launched = backward.kernels.launch(target, backward, dtype, inputs, results, location);
    launched.map_err(|e| e.at(location))
}

impl<const I: usize, const N: usize> LaunchBackward for BackwardKernels<I, N> {
    fn inputs(&self) -> usize {
        I
    }

    fn views(&self) -> usize {
        N
    }

    fn structs(&self) -> Source {
        structs::<I, N>()
    }

    fn launch(
        &self,
        target: Target<'_>,
        backward: &Backward,
        dtype: DType,
        inputs: &[Arg<'_>],
        results: &[Option<View<'_>>],
        location: &'static Location<'static>,
    ) -> Result<()> {
        debug_assert!(N <= MAX_VIEWS, "only fused backward passes are launched");
        let (op, formula) = (backward.name(), backward.formula());
        let Some(out) = results.iter().flatten().next().copied() else {
            return Err(Error::invalid(op, "no gradient is wanted"));
        };
        // The index of a leaf among the steps is its index among the inputs. Inputs that no gradient
        // reads are the number 0.
        let mut args = [Arg::Number(Scalar::Int(0)); I];
        for (&leaf, input) in formula.leaves().iter().zip(inputs) {
            args[leaf] = *input;
        }
        let mut gradients = [None; MAX_OPERANDS];
        for (&operand, result) in formula.computed().iter().zip(results) {
            gradients[operand] = *result;
        }
        let mut numbers = Numbers::<I>::zeroed();
        let (mut views, mut untouched) = ([out; N], 0);
        for (k, input) in args.iter().enumerate() {
            let is_condition = formula.is_condition(k);
            match input {
                Arg::Tensor(view) => {
                    if is_condition {
                        view.check_operand_dtype(op, "the condition", DType::Bool)?;
                    }
                    views[k] = *view;
                    numbers.set_code(k, view.dtype as u32);
                }
                Arg::Number(value) => {
                    untouched |= 1 << k;
                    let value = if is_condition { truth(*value) } else { *value };
                    let rounded = dtype.size() == 2 && formula.is_rounded(k);
                    numbers.set_number(k, bits(value, dtype, rounded));
                }
            }
        }
        for (k, operand) in (I..N).zip(formula.differentiable()) {
            match gradients[operand] {
                Some(view) => {
                    views[k] = view;
                    numbers.set_code(k, view.dtype as u32);
                }
                None => {
                    untouched |= 1 << k;
                    numbers.set_code(k, NUMBER);
                }
            }
        }
        let site = Site { op, location };
        self.0.launch_some(target, site, dtype, views, untouched, numbers)
    }
}
