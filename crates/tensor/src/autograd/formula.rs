//! Evaluation of gradient formulas with tensor ops. These ops are recorded, which gives gradients of
//! gradients.
//!
//! Each value is dropped at its last use. Steps whose operands are all numbers are computed on the CPU in
//! `float64`, without a launch.

use smallvec::SmallVec;
use warpline_kernels::elementwise::{Formula, FormulaStep, Op};

use super::{Gradients, Saved};
use crate::methods::{apply_elementwise, apply_elementwise_in, common_dtype_of, rounded};
use crate::{DType, Device, Error, Result, Scalar, Tensor, TensorOrScalar};

/// Saved operands and results that a formula reads, each with the index of its step.
pub(super) type FormulaLeaves = SmallVec<[(usize, StepValue); 4]>;

/// The value of a step.
#[derive(Clone)]
pub(super) enum StepValue {
    Number(Scalar),
    Tensor(Tensor),
}

impl Saved for StepValue {
    fn for_each_tensor(&mut self, f: &mut dyn FnMut(&mut Tensor) -> Result<()>) -> Result<()> {
        match self {
            Self::Number(_) => Ok(()),
            Self::Tensor(tensor) => f(tensor),
        }
    }
}

/// Returns the saved value of a step.
pub(super) fn leaf_value(leaves: &FormulaLeaves, step: usize) -> Result<&StepValue> {
    leaves.iter().find(|(k, _)| *k == step).map(|(_, value)| value).ok_or_else(missing_value)
}

/// Computes the gradients of the operands in `wanted`, one for each element of `wanted`.
pub(super) fn evaluate(
    formula: &Formula,
    wanted: &[Option<usize>],
    leaves: &FormulaLeaves,
    grad: &Tensor,
) -> Result<Gradients> {
    let mut values = StepValues {
        uses: formula.uses(wanted.iter().flatten().copied()),
        values: vec![None; formula.steps().len()],
    };
    for (k, step) in formula.steps().iter().enumerate() {
        if values.uses[k] == 0 {
            continue;
        }
        let value = match step {
            FormulaStep::Gradient => StepValue::Tensor(grad.clone()),
            FormulaStep::Operand(_) | FormulaStep::Result => match leaf_value(leaves, k)? {
                StepValue::Number(number) => StepValue::Number(as_read(formula, k, *number, grad)),
                tensor => tensor.clone(),
            },
            FormulaStep::Constant(number) => StepValue::Number(Scalar::Float(*number)),
            FormulaStep::Single(step) => match values.take(*step)? {
                StepValue::Number(number) => {
                    StepValue::Number(f64::from(number.to_f64() as f32).into())
                }
                StepValue::Tensor(tensor) => {
                    StepValue::Tensor(tensor.to(DType::F32)?.to(tensor.dtype())?)
                }
            },
            FormulaStep::Apply(op, _) => {
                let operands = step.reads().iter().map(|&step| values.take(step));
                let operands: SmallVec<[StepValue; 4]> = operands.collect::<Result<_>>()?;
                apply(op, &operands, grad)?
            }
        };
        values.values[k] = Some(value);
    }
    let mut gradient = |operand: &Option<usize>| {
        let Some(step) = operand.and_then(|operand| formula.gradient(operand)) else {
            return Ok(None);
        };
        let gradient = match values.take(step)? {
            StepValue::Tensor(gradient) => gradient,
            StepValue::Number(number) => grad.full_like(number, ())?,
        };
        // Keeps the value, because another operand may have the same gradient.
        values.values[step] = Some(StepValue::Tensor(gradient.clone()));
        Ok(Some(gradient))
    };
    wanted.iter().map(&mut gradient).collect()
}

/// Converts a number operand to the value that a formula reads.
fn as_read(formula: &Formula, leaf: usize, number: Scalar, grad: &Tensor) -> Scalar {
    match number {
        // A bool is 0 or 1 in arithmetic.
        Scalar::Bool(bool) if !formula.is_condition(leaf) => Scalar::Float(bool.into()),
        number if formula.is_rounded(leaf) && grad.dtype().size() == 2 => {
            rounded(number, grad.dtype())
        }
        number => number,
    }
}

/// The values of the evaluated steps.
struct StepValues {
    /// Remaining uses of each step.
    uses: Vec<usize>,
    values: Vec<Option<StepValue>>,
}

impl StepValues {
    /// Returns the value of an earlier step, and removes the value at its last use.
    fn take(&mut self, step: usize) -> Result<StepValue> {
        self.uses[step] = self.uses[step].saturating_sub(1);
        let value = &mut self.values[step];
        let value = if self.uses[step] == 0 { value.take() } else { value.clone() };
        value.ok_or_else(missing_value)
    }
}

/// Creates the error for a value that the forward pass did not save.
fn missing_value() -> Error {
    Error::gradient("elementwise", "a formula reads a value that is missing")
}

/// Applies an op to the values of earlier steps.
fn apply(op: &'static Op, operands: &[StepValue], grad: &Tensor) -> Result<StepValue> {
    if let [StepValue::Number(condition), yes, no] = operands
        && op.is_condition(0)
    {
        return Ok(if condition.to_bool() { yes.clone() } else { no.clone() });
    }
    if operands.iter().all(|operand| matches!(operand, StepValue::Number(_))) {
        return apply_to_numbers(op, operands, grad).map(StepValue::Number);
    }
    let operands: SmallVec<[TensorOrScalar<'_>; 4]> = operands
        .iter()
        .map(|operand| match operand {
            StepValue::Tensor(tensor) => tensor.into(),
            StepValue::Number(number) => TensorOrScalar::Scalar(*number),
        })
        .collect();
    // A selection between two numbers has the gradient's dtype.
    let common = match operands[..] {
        [_, TensorOrScalar::Scalar(_), TensorOrScalar::Scalar(_)] if op.is_condition(0) => {
            grad.dtype()
        }
        // Formulas compare with exact numbers, but a comparison op rounds a number to half-width floats.
        _ => match common_dtype_of(op, &operands) {
            DType::F16 | DType::BF16 if op.returns_bools() && has_number(&operands) => DType::F32,
            common => common,
        },
    };
    apply_elementwise_in(op, &operands, common).map(StepValue::Tensor)
}

fn has_number(operands: &[TensorOrScalar<'_>]) -> bool {
    operands.iter().any(|operand| matches!(operand, TensorOrScalar::Scalar(_)))
}

/// Applies an op to numbers, on the CPU in `float64`.
fn apply_to_numbers(op: &'static Op, operands: &[StepValue], grad: &Tensor) -> Result<Scalar> {
    let tensor = |operand: &StepValue| match operand {
        StepValue::Tensor(tensor) => Ok(tensor.clone()),
        StepValue::Number(Scalar::Bool(condition)) => {
            grad.new_full((), *condition, (DType::Bool, Device::Cpu))
        }
        StepValue::Number(number) => grad.new_full((), *number, (DType::F64, Device::Cpu)),
    };
    let tensors: SmallVec<[Tensor; 4]> = operands.iter().map(tensor).collect::<Result<_>>()?;
    let operands: SmallVec<[TensorOrScalar<'_>; 4]> = tensors.iter().map(Into::into).collect();
    apply_elementwise(op, &operands)?.to_scalar()
}
