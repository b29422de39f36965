//! Evaluates formulas of gradients with ops of tensors, which have gradients themselves.

use smallvec::SmallVec;
use warpline_kernels::elementwise::{Formula, Op, Step};

use super::{Context, Gradients};
use crate::tensor::{apply_elementwise, common_dtype};
use crate::{DType, Device, Result, Scalar, Tensor, TensorOrScalar};

/// Where the inputs of a formula are in a backward pass.
#[derive(Clone, Debug, Default)]
pub(super) struct Inputs {
    pub(super) operands: SmallVec<[Operand; 4]>,
    /// The result's number among the saved tensors.
    pub(super) out: Option<usize>,
}

/// Where an operand is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operand {
    Number(Scalar),
    /// Its number among the saved tensors.
    Saved(usize),
    /// A tensor that no formula of a wanted gradient reads.
    Unread,
}

#[derive(Clone)]
enum Value {
    Tensor(Tensor),
    Number(Scalar),
}

/// Computes the gradients of the operands in `wanted`; `None` where there is none.
pub(super) fn evaluate(
    formula: &Formula,
    wanted: &[Option<usize>],
    inputs: &Inputs,
    context: &Context<'_>,
    grad: &Tensor,
) -> Result<Gradients> {
    let mut values = Values {
        readers: formula.readers(wanted.iter().flatten().copied()),
        values: vec![None; formula.steps().len()],
    };
    for (k, step) in formula.steps().iter().enumerate() {
        if values.readers[k] == 0 {
            continue;
        }
        let value = match step {
            Step::Gradient => Value::Tensor(grad.clone()),
            Step::Operand(operand) => match inputs.operands.get(*operand) {
                Some(Operand::Number(number)) => Value::Number(*number),
                Some(Operand::Saved(saved)) => Value::Tensor(context.saved(*saved)?),
                _ => Value::Tensor(context.saved(usize::MAX)?),
            },
            Step::Result => Value::Tensor(context.saved(inputs.out.unwrap_or(usize::MAX))?),
            Step::Constant(number) => Value::Number(Scalar::Float(*number)),
            Step::Single(step) => match values.read(*step) {
                Value::Number(number) => Value::Number(f64::from(number.to_f64() as f32).into()),
                Value::Tensor(tensor) => Value::Tensor(tensor.to(DType::F32)?.to(tensor.dtype())?),
            },
            Step::Apply(op, _) => {
                let operands: SmallVec<[Value; 4]> =
                    step.reads().iter().map(|&step| values.read(step)).collect();
                apply(op, &operands, grad)?
            }
        };
        values.values[k] = Some(value);
    }
    let mut gradient = |operand: &Option<usize>| {
        let Some(step) = operand.and_then(|operand| formula.gradient(operand)) else {
            return Ok(None);
        };
        match values.read(step) {
            Value::Tensor(gradient) => Ok(Some(gradient)),
            Value::Number(number) => grad.full_like(number, ()).map(Some),
        }
    };
    wanted.iter().map(&mut gradient).collect()
}

/// The values of the steps so far.
struct Values {
    /// For each step, how many are still going to read it.
    readers: Vec<usize>,
    values: Vec<Option<Value>>,
}

impl Values {
    /// The value of an earlier step. The last reader takes it, so that no memory is kept longer than needed.
    fn read(&mut self, step: usize) -> Value {
        self.readers[step] -= 1;
        let value = &mut self.values[step];
        let value = if self.readers[step] == 0 { value.take() } else { value.clone() };
        value.unwrap_or(Value::Number(Scalar::Float(f64::NAN)))
    }
}

fn apply(op: &'static Op, operands: &[Value], grad: &Tensor) -> Result<Value> {
    if let [Value::Number(condition), yes, no] = operands
        && op.is_condition(0)
    {
        return Ok(if condition.to_bool() { yes.clone() } else { no.clone() });
    }
    if operands.iter().all(|operand| matches!(operand, Value::Number(_))) {
        return of_numbers(op, operands, grad).map(Value::Number);
    }
    let operands: SmallVec<[TensorOrScalar<'_>; 4]> = operands
        .iter()
        .map(|operand| match operand {
            Value::Tensor(tensor) => tensor.into(),
            Value::Number(number) => TensorOrScalar::Scalar(*number),
        })
        .collect();
    let first = usize::from(op.is_condition(0));
    let is_tensor = |operand: &TensorOrScalar<'_>| matches!(operand, TensorOrScalar::Tensor(_));
    // Numbers alone are of the gradient's dtype.
    let common = match operands[first..].iter().any(is_tensor) {
        true => common_dtype(&operands[first..]),
        false => grad.dtype(),
    };
    apply_elementwise(op, &operands, common).map(Value::Tensor)
}

/// An op of numbers, computed on the CPU in `float64`.
fn of_numbers(op: &'static Op, operands: &[Value], grad: &Tensor) -> Result<Scalar> {
    let tensor = |operand: &Value| match operand {
        Value::Tensor(tensor) => Ok(tensor.clone()),
        Value::Number(Scalar::Bool(condition)) => {
            grad.new_full((), *condition, (DType::Bool, Device::Cpu))
        }
        Value::Number(number) => grad.new_full((), *number, (DType::F64, Device::Cpu)),
    };
    let tensors: SmallVec<[Tensor; 4]> = operands.iter().map(tensor).collect::<Result<_>>()?;
    let operands: SmallVec<[TensorOrScalar<'_>; 4]> = tensors.iter().map(Into::into).collect();
    apply_elementwise(op, &operands, common_dtype(&operands))?.to_scalar()
}
