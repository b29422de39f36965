//! Checks the operands of an op and launches its kernel.

use std::panic::Location;

use bytemuck::Zeroable;
use warpline_runtime::host::{HostElement, Number};
use warpline_runtime::iter::{Bits, Kernels};
use warpline_runtime::{Category, DType, Error, ErrorKind, Result, Scalar, Site, Target, View};
use warpline_runtime::{cuda_struct, dispatch};

use super::Op;
use super::entry::{NumberRounding, OpKernels, ResultDType};

/// An operand: a tensor, or a number, which needs no memory and no launch of its own.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// A tensor with the sizes of the result. Expand a view to broadcast it.
    Tensor(View<'a>),
    /// A number.
    Number(Scalar),
}

impl<'a> From<View<'a>> for Arg<'a> {
    fn from(view: View<'a>) -> Self {
        Self::Tensor(view)
    }
}

impl From<Scalar> for Arg<'_> {
    fn from(number: Scalar) -> Self {
        Self::Number(number)
    }
}

/// The dtype code of an operand that is a number, and of an unwanted result.
pub(super) const NUMBER: u32 = 15;

/// Largest number of inputs and results, because their dtype codes share 32 bits.
pub(super) const MAX_VIEWS: usize = 8;

cuda_struct! {
    /// The kernels' arguments apart from the operands.
    pub struct Numbers<const N: usize> {
        /// The dtype codes of inputs and results, four bits each. [`NUMBER`] for a number.
        dtypes: u32,
        /// The bits of number inputs, in the compute type.
        number: [Bits; N],
    }
}

impl<const N: usize> Numbers<N> {
    /// Returns the dtype code of a view, or [`NUMBER`]. Inputs are counted first, then results.
    pub(super) fn code(&self, view: usize) -> u32 {
        self.dtypes >> (4 * view) & 15
    }

    /// Sets the code of a view. The code must not have been set before.
    #[inline(always)]
    pub(super) fn set_code(&mut self, view: usize, code: u32) {
        self.dtypes |= code << (4 * view);
    }

    /// Makes an input the number with these bits.
    #[inline(always)]
    pub(super) fn set_number(&mut self, input: usize, bits: u64) {
        self.set_code(input, NUMBER);
        self.number[input] = bits.into();
    }

    /// Returns the dtype of a view that is neither a number nor an unwanted result.
    pub(super) fn dtype(&self, operand: usize) -> DType {
        DType::ALL[self.code(operand) as usize % DType::ALL.len()]
    }

    /// Returns the bits of an input if it is a number.
    pub(super) fn number(&self, input: usize) -> Option<u64> {
        (self.code(input) == NUMBER).then(|| self.number[input].into())
    }
}

/// Returns whether the op rounds a number operand to `dtype`. Only half-width floats are computed
/// in a wider type.
fn rounds(op: &Op, dtype: DType, target: Target<'_>) -> bool {
    if !dtype.is_float() || dtype.size() > 2 {
        return false;
    }
    op.entry.output == ResultDType::Bool
        || match op.entry.rounds {
            NumberRounding::Never => false,
            NumberRounding::OnCpu => matches!(target, Target::Cpu(_)),
            NumberRounding::Always => true,
        }
}

/// Returns 1 for a true condition and 0 for a false one.
pub(super) fn truth(condition: Scalar) -> Scalar {
    Scalar::Int(condition.to_bool().into())
}

/// Returns the bits of a number in the compute type of `dtype`. `check` has rejected floats for
/// integers, except for conditions.
pub(super) fn bits(value: Scalar, dtype: DType, rounded: bool) -> u64 {
    dispatch!(dtype, all T => {
        let value = <T as HostElement>::Compute::from_scalar(value);
        Number::to_bits(if rounded { T::put(value).get() } else { value })
    })
}

/// Computes `out = op(args)`. Each operand is converted as it is read, to the dtype in which the op
/// is computed for `common` ([`Op::dtypes`]). The result is converted to the dtype of `out` as it is
/// written. Neither takes a copy, as in PyTorch's TensorIterator. Conditions are boolean. `out` may be
/// one of the operands.
///
/// As in PyTorch, arithmetic on half-width floats takes a number in `f32`. Comparisons, and ops
/// with `rounds` in their entry, first round the number to `common`; with `rounds OnCpu`, an op does
/// so only on the CPU.
///
/// # Errors
/// - [`ErrorKind::InvalidArgument`] if the number of operands is not that of the op.
/// - [`ErrorKind::UnsupportedDType`] if the op does not support `common`.
/// - [`ErrorKind::CannotCast`] if an operand is a float number and the op is computed in integers or
///   bools.
/// - [`ErrorKind::DTypeMismatch`] if a condition is not boolean.
/// - [`ErrorKind::ShapeMismatch`] if an operand's sizes are not those of `out`.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if `out` overlaps an operand without being the same
///   elements.
/// - The errors of the launch.
#[track_caller]
pub fn apply(
    target: Target<'_>,
    op: &'static Op,
    common: DType,
    args: &[Arg<'_>],
    out: View<'_>,
) -> Result<()> {
    let location = Location::caller();
    match (&op.entry.kernels, args) {
        (OpKernels::Unary(kernels), &[a]) => run(target, op, kernels, common, &[a], out, location),
        (OpKernels::Binary(kernels), &[a, b]) => {
            run(target, op, kernels, common, &[a, b], out, location)
        }
        (OpKernels::Ternary(kernels), &[a, b, c]) => {
            run(target, op, kernels, common, &[a, b, c], out, location)
        }
        (OpKernels::Quaternary(kernels), &[a, b, c, d]) => {
            run(target, op, kernels, common, &[a, b, c, d], out, location)
        }
        _ => {
            let reason = format!("takes {} operands, not {}", op.inputs(), args.len());
            Err(Error::invalid(op.entry.name, reason))
        }
    }
}

/// Runs an op of `I` inputs. `N` counts the inputs and the result.
#[track_caller]
fn run<const I: usize, const N: usize>(
    target: Target<'_>,
    op: &Op,
    kernels: &Kernels<Numbers<I>, N>,
    common: DType,
    args: &[Arg<'_>; I],
    out: View<'_>,
    location: &'static Location<'static>,
) -> Result<()> {
    let (dtype, _) = op.dtypes(common)?;
    check(op, args, dtype)?;
    let mut numbers = Numbers::<I>::zeroed();
    numbers.set_code(I, out.dtype as u32);
    let mut untouched = 0;
    let mut views = [out; N];
    for (k, arg) in args.iter().enumerate() {
        match arg {
            Arg::Tensor(view) => {
                views[k] = *view;
                numbers.set_code(k, view.dtype as u32);
            }
            Arg::Number(value) => {
                untouched |= 1 << k;
                let value = if op.is_condition(k) { truth(*value) } else { *value };
                numbers.set_number(k, bits(value, dtype, rounds(op, dtype, target)));
            }
        }
    }
    let site = Site { op: op.entry.name, location };
    kernels.launch_some(target, site, dtype, views, untouched, numbers)
}

/// Returns an error for a condition that is not boolean, and for a float number if the op is
/// computed in integers or bools.
#[track_caller]
fn check(op: &Op, args: &[Arg<'_>], dtype: DType) -> Result<()> {
    for (input, arg) in op.entry.inputs.iter().zip(args) {
        match arg {
            Arg::Tensor(view) if input.is_bool => {
                view.check_operand_dtype(op.entry.name, "the condition", DType::Bool)?;
            }
            Arg::Number(value)
                if value.category() == Category::Float && !dtype.is_float() && !input.is_bool =>
            {
                return Err(ErrorKind::CannotCast { from: DType::F32, to: dtype }.of(op.entry.name));
            }
            _ => {}
        }
    }
    Ok(())
}
