//! Recording of elementwise ops. The formulas of their gradients are beside the ops ([`entries::Backward`]).
//!
//! All ops of the table share one state, `Elementwise`. `Formula::uses` tells which operands and
//! results the wanted gradients read; only these are saved. A wanted operand without a formula is
//! an error in the forward pass.

use smallvec::SmallVec;
use warpline_kernels::elementwise::{self as entries, Op, Step};

use super::formula::{self, Leaves, Value};
use super::fused;
use crate::autograd::{
    Backward, Gradients, Inputs, check_in_place, record, record_in_place, refuse, saved, wanted,
    wanted_in_place,
};
use crate::{Result, Tensor, TensorOrScalar};

saved! {
    /// An elementwise op.
    struct Elementwise {
        backward: &'static entries::Backward,
        /// The operand of each input of the node.
        operands: SmallVec<[usize; 3]>,
        /// The values that the formulas of the wanted gradients read.
        leaves: Leaves,
    }
}

impl Elementwise {
    /// Returns the operands whose gradients are wanted, one entry per input.
    fn wanted(&self, inputs: &Inputs<'_>) -> SmallVec<[Option<usize>; 3]> {
        let wanted = |(input, &operand)| inputs.needs(input).then_some(operand);
        self.operands.iter().enumerate().map(wanted).collect()
    }
}

impl Backward for Elementwise {
    fn backward(&self, grad: &Tensor, inputs: &Inputs<'_>) -> Result<Gradients> {
        formula::evaluate(self.backward.formula(), &self.wanted(inputs), &self.leaves, grad)
    }

    fn fused(&self, grad: &Tensor, inputs: &Inputs<'_>) -> Result<Option<Gradients>> {
        fused::evaluate(self.backward, &self.wanted(inputs), &self.leaves, grad)
    }
}

/// The inputs of an op's node, and its state.
struct Plan<'a> {
    inputs: SmallVec<[&'a Tensor; 3]>,
    saved: Elementwise,
}

impl<'a> Plan<'a> {
    fn new(
        backward: &'static entries::Backward,
        operands: &[TensorOrScalar<'a>],
        result: &Tensor,
    ) -> Self {
        let (mut inputs, mut indices) = (SmallVec::new(), SmallVec::new());
        let mut leaves = Leaves::new();
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
                Step::Operand(operand) => match operands[*operand] {
                    TensorOrScalar::Scalar(number) => Value::Number(number),
                    TensorOrScalar::Tensor(tensor) => Value::Tensor(tensor.clone()),
                },
                Step::Result => Value::Tensor(result.clone()),
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
        None => refuse(op.name(), &tensors(operands)).map(|()| out),
    }
}

/// Records an op that computes `out` by another op's entry, but has its own formulas.
#[cold]
#[track_caller]
pub(crate) fn elementwise_as(
    backward: &'static entries::Backward,
    operands: &[TensorOrScalar<'_>],
    out: Tensor,
) -> Result<Tensor> {
    if !out.dtype().is_float() || !wanted(&tensors(operands)) {
        return Ok(out);
    }
    check_differentiable(backward, operands)?;
    let plan = Plan::new(backward, operands, &out);
    record(backward.name(), out, &plan.inputs, plan.saved)
}

/// Refuses an op if a gradient without a formula is wanted.
#[track_caller]
fn check_differentiable(
    backward: &'static entries::Backward,
    operands: &[TensorOrScalar<'_>],
) -> Result<()> {
    for (k, operand) in operands.iter().enumerate() {
        if let TensorOrScalar::Tensor(tensor) = operand
            && backward.formula().gradient(k).is_none()
        {
            refuse(backward.name(), &[tensor])?;
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
    plan: Plan<'a>,
}

/// Prepares the record of an op that will write into `a`, one of its operands. After the op has run, call
/// [`finish_in_place`]. The op is not a closure argument, because `#[track_caller]` stops at closures.
#[inline]
#[track_caller]
pub(crate) fn prepare_in_place<'a>(
    backward: Option<&'static entries::Backward>,
    name: &'static str,
    a: &'a Tensor,
    operands: &[TensorOrScalar<'a>],
) -> Result<Option<Box<InPlaceRecord<'a>>>> {
    if !any_requires_grad(operands) && !wanted_in_place(a, &[]) {
        return Ok(None);
    }
    InPlaceRecord::new(backward, name, a, operands)
}

/// Records an op after it has run.
#[inline]
#[track_caller]
pub(crate) fn finish_in_place(prepared: Option<Box<InPlaceRecord<'_>>>) -> Result<()> {
    prepared.map_or(Ok(()), |prepared| prepared.record())
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
        if !wanted_in_place(a, &tensors(operands)) {
            return Ok(None);
        }
        check_in_place(name, a)?;
        let Some(backward) = backward else {
            return refuse(name, &tensors(operands)).map(|()| None);
        };
        check_differentiable(backward, operands)?;
        let mut plan = Plan::new(backward, operands, a);
        // `record_in_place` takes the overwritten tensor first.
        let own = plan.inputs.iter().position(|tensor| tensor.is_same(a)).unwrap_or(0);
        plan.inputs.swap(0, own);
        plan.saved.operands.swap(0, own);
        // Operands whose memory is overwritten are copied before, each once.
        let mut copies: SmallVec<[(Tensor, Tensor); 1]> = SmallVec::new();
        let steps = backward.formula().steps();
        for (step, value) in &mut plan.saved.leaves {
            let (Step::Operand(_), Value::Tensor(tensor)) = (&steps[*step], value) else {
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
        Ok(Some(Box::new(Self { name, plan })))
    }

    #[cold]
    #[track_caller]
    fn record(self) -> Result<()> {
        record_in_place(self.name, &self.plan.inputs, self.plan.saved)
    }
}
