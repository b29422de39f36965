//! Recording of elementwise ops. The table of ops has the formulas of their gradients
//! ([`entries::Backward`]).
//!
//! All ops of the table save the same state, `Elementwise`: the operands and results that the wanted
//! gradients read (`Formula::uses`). The forward pass fails if a wanted gradient has no formula.

use smallvec::SmallVec;
use warpline_kernels::elementwise::{self as entries, FormulaStep, Op};

use super::backward_program;
use super::formula::{self, FormulaLeaves, StepValue};
use crate::autograd::{
    Gradients, NodeInputs, OpBackward, check_in_place, record, record_in_place, refuse_gradient,
    saved, should_record, should_record_in_place,
};
use crate::{Result, Tensor, TensorOrScalar};

saved! {
    /// An elementwise op.
    struct Elementwise {
        backward: &'static entries::Backward,
        /// Index of the operand for each input of the node.
        operands: SmallVec<[usize; 3]>,
        /// The values that the formulas of the wanted gradients read.
        leaves: FormulaLeaves,
    }
}

impl Elementwise {
    /// Returns one entry per input: its operand, or `None` if the input needs no gradient.
    fn wanted(&self, inputs: &NodeInputs<'_>) -> SmallVec<[Option<usize>; 3]> {
        let wanted = |(input, &operand)| inputs.needs(input).then_some(operand);
        self.operands.iter().enumerate().map(wanted).collect()
    }
}

impl OpBackward for Elementwise {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        formula::evaluate(self.backward.formula(), &self.wanted(inputs), &self.leaves, grad)
    }

    fn fused(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Option<Gradients>> {
        backward_program::evaluate(self.backward, &self.wanted(inputs), &self.leaves, grad)
    }
}

/// The arguments of [`record`] for an elementwise op.
struct RecordArgs<'a> {
    inputs: SmallVec<[&'a Tensor; 3]>,
    saved: Elementwise,
}

impl<'a> RecordArgs<'a> {
    fn new(
        backward: &'static entries::Backward,
        operands: &[TensorOrScalar<'a>],
        result: &Tensor,
    ) -> Self {
        let (mut inputs, mut indices) = (SmallVec::new(), SmallVec::new());
        let mut leaves = FormulaLeaves::new();
        for (k, operand) in operands.iter().enumerate() {
            if let TensorOrScalar::Tensor(tensor) = operand {
                inputs.push(*tensor);
                indices.push(k);
            }
        }
        let formula = backward.formula();
        let wanted = |(input, k): (&&Tensor, &usize)| input.requires_grad().then_some(*k);
        let uses = formula.uses(inputs.iter().zip(&indices).filter_map(wanted));
        for (k, step) in formula.steps().iter().enumerate().filter(|(k, _)| uses[*k] > 0) {
            let value = match step {
                FormulaStep::Operand(operand) => match operands[*operand] {
                    TensorOrScalar::Scalar(number) => StepValue::Number(number),
                    TensorOrScalar::Tensor(tensor) => StepValue::Tensor(tensor.clone()),
                },
                FormulaStep::Result => StepValue::Tensor(result.clone()),
                _ => continue,
            };
            leaves.push((k, value));
        }
        Self { inputs, saved: Elementwise { backward, operands: indices, leaves } }
    }
}

/// Records an op with result `out`, if a gradient is wanted.
#[inline]
#[track_caller]
pub(crate) fn elementwise(
    op: &'static Op,
    operands: &[TensorOrScalar<'_>],
    out: Tensor,
) -> Result<Tensor> {
    if !any_requires_grad(operands) || !out.dtype().is_float() {
        return Ok(out);
    }
    match op.backward() {
        Some(backward) => elementwise_as(backward, operands, out),
        None => refuse_gradient(op.name(), &tensors(operands)).map(|()| out),
    }
}

/// Records an op with the formulas of `backward`, which may differ from the formulas of the table entry that
/// computed `out`.
#[cold]
#[track_caller]
pub(crate) fn elementwise_as(
    backward: &'static entries::Backward,
    operands: &[TensorOrScalar<'_>],
    out: Tensor,
) -> Result<Tensor> {
    if !out.dtype().is_float() || !should_record(&tensors(operands)) {
        return Ok(out);
    }
    check_differentiable(backward, operands)?;
    let args = RecordArgs::new(backward, operands, &out);
    record(backward.name(), out, &args.inputs, args.saved)
}

/// Fails if an operand that requires a gradient has no formula for it.
#[track_caller]
fn check_differentiable(
    backward: &'static entries::Backward,
    operands: &[TensorOrScalar<'_>],
) -> Result<()> {
    for (k, operand) in operands.iter().enumerate() {
        if let TensorOrScalar::Tensor(tensor) = operand
            && backward.formula().gradient(k).is_none()
        {
            refuse_gradient(backward.name(), &[tensor])?;
        }
    }
    Ok(())
}

#[inline]
fn any_requires_grad(operands: &[TensorOrScalar<'_>]) -> bool {
    operands.iter().any(|operand| match operand {
        TensorOrScalar::Tensor(tensor) => tensor.requires_grad(),
        TensorOrScalar::Scalar(_) => false,
    })
}

fn tensors<'a>(operands: &[TensorOrScalar<'a>]) -> SmallVec<[&'a Tensor; 4]> {
    let tensor = |operand: &TensorOrScalar<'a>| match operand {
        TensorOrScalar::Tensor(tensor) => Some(*tensor),
        TensorOrScalar::Scalar(_) => None,
    };
    operands.iter().filter_map(tensor).collect()
}

/// The record of an in-place op, prepared before the op overwrites its operand.
pub(crate) struct InPlaceRecord<'a> {
    name: &'static str,
    args: RecordArgs<'a>,
}

/// Prepares the record of an op that will write to its operand `a`. Call [`finish_in_place`] after the op.
/// The op is not passed as a closure, because `#[track_caller]` does not work through closures.
#[inline]
#[track_caller]
pub(crate) fn prepare_in_place<'a>(
    backward: Option<&'static entries::Backward>,
    name: &'static str,
    a: &'a Tensor,
    operands: &[TensorOrScalar<'a>],
) -> Result<Option<Box<InPlaceRecord<'a>>>> {
    if !any_requires_grad(operands) && !should_record_in_place(a, &[]) {
        return Ok(None);
    }
    InPlaceRecord::new(backward, name, a, operands)
}

/// Records an op after it has run.
#[inline]
#[track_caller]
pub(crate) fn finish_in_place(prepared: Option<Box<InPlaceRecord<'_>>>) -> Result<()> {
    match prepared {
        None => Ok(()),
        Some(prepared) => prepared.record(),
    }
}

impl<'a> InPlaceRecord<'a> {
    #[cold]
    #[track_caller]
    fn new(
        backward: Option<&'static entries::Backward>,
        name: &'static str,
        a: &'a Tensor,
        operands: &[TensorOrScalar<'a>],
    ) -> Result<Option<Box<Self>>> {
        if !should_record_in_place(a, &tensors(operands)) {
            return Ok(None);
        }
        check_in_place(name, a)?;
        let Some(backward) = backward else {
            return refuse_gradient(name, &tensors(operands)).map(|()| None);
        };
        check_differentiable(backward, operands)?;
        let mut args = RecordArgs::new(backward, operands, a);
        // `record_in_place` expects the overwritten tensor as the first input.
        let own = args.inputs.iter().position(|tensor| tensor.is_same(a)).unwrap_or(0);
        args.inputs.swap(0, own);
        args.saved.operands.swap(0, own);
        // Copies each saved operand whose memory the op will overwrite.
        let mut copies: SmallVec<[(Tensor, Tensor); 1]> = SmallVec::new();
        let steps = backward.formula().steps();
        for (step, value) in &mut args.saved.leaves {
            let (FormulaStep::Operand(_), StepValue::Tensor(tensor)) = (&steps[*step], value)
            else {
                continue;
            };
            if !tensor.storage().same_as(a.storage()) {
                continue;
            }
            let copied = copies.iter().find(|(former, _)| former.is_same(tensor));
            let copy = match copied {
                Some((_, copy)) => copy.clone(),
                None => tensor.copy()?,
            };
            copies.push((std::mem::replace(tensor, copy.clone()), copy));
        }
        Ok(Some(Box::new(Self { name, args })))
    }

    #[cold]
    #[track_caller]
    fn record(self) -> Result<()> {
        record_in_place(self.name, &self.args.inputs, self.args.saved)
    }
}
