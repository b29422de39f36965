//! Records elementwise ops. The formulas of their gradients stand beside the ops ([`Backward`]).

use smallvec::SmallVec;
use warpline_kernels::elementwise::{Backward, Op, Step};

use super::formula::{self, Source, Sources};
use super::fused;
use crate::autograd::{
    Context, Gradients, check_in_place, record, record_in_place, refuse, wanted, wanted_in_place,
};
use crate::{Result, Tensor, TensorOrScalar};

/// The inputs of an op's node and the tensors to save for it.
struct Plan<'a> {
    backward: &'static Backward,
    /// The node's inputs, each with the index of its operand.
    inputs: SmallVec<[(&'a Tensor, usize); 3]>,
    /// The tensors that the formulas of the wanted gradients read.
    saved: SmallVec<[&'a Tensor; 3]>,
    /// The index of the op's result in `saved`.
    result: Option<usize>,
    sources: Sources,
}

impl<'a> Plan<'a> {
    fn new(
        backward: &'static Backward,
        operands: &[TensorOrScalar<'a>],
        result: &'a Tensor,
    ) -> Self {
        let mut plan = Self {
            backward,
            inputs: SmallVec::new(),
            saved: SmallVec::new(),
            result: None,
            sources: Sources::new(),
        };
        for (k, operand) in operands.iter().enumerate() {
            if let TensorOrScalar::Tensor(tensor) = operand {
                plan.inputs.push((tensor, k));
            }
        }
        let formula = backward.formula();
        let wanted = plan.inputs.iter().filter(|(tensor, _)| tensor.requires_grad());
        let uses = formula.uses(wanted.map(|(_, operand)| *operand));
        for (k, step) in formula.steps().iter().enumerate().filter(|(k, _)| uses[*k] > 0) {
            let source = match step {
                Step::Operand(operand) => match operands[*operand] {
                    TensorOrScalar::Scalar(number) => Source::Number(number),
                    TensorOrScalar::Tensor(tensor) => plan.save(tensor),
                },
                Step::Result => {
                    plan.result = Some(plan.saved.len());
                    plan.save(result)
                }
                _ => continue,
            };
            plan.sources.push((k, source));
        }
        plan
    }

    fn save(&mut self, tensor: &'a Tensor) -> Source {
        self.saved.push(tensor);
        Source::Saved(self.saved.len() - 1)
    }

    fn tensors(&self) -> SmallVec<[&'a Tensor; 3]> {
        self.inputs.iter().map(|(tensor, _)| *tensor).collect()
    }

    fn rule(&self) -> impl Fn(&Context<'_>, &Tensor) -> Result<Gradients> + Send + Sync + 'static {
        let (backward, sources) = (self.backward, self.sources.clone());
        let operands: SmallVec<[usize; 3]> = self.inputs.iter().map(|(_, k)| *k).collect();
        move |context, grad| {
            let wanted = |(input, &operand)| context.needs(input).then_some(operand);
            let wanted: SmallVec<[Option<usize>; 3]> =
                operands.iter().enumerate().map(wanted).collect();
            match fused::evaluate(backward, &wanted, &sources, context, grad)? {
                Some(gradients) => Ok(gradients),
                None => formula::evaluate(backward.formula(), &wanted, &sources, context, grad),
            }
        }
    }
}

/// Records an op whose result is `out`, if a gradient is wanted.
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

/// Records an op that computes `out` by another op's entry but has formulas of its own.
#[cold]
#[track_caller]
pub(crate) fn elementwise_as(
    backward: &'static Backward,
    operands: &[TensorOrScalar<'_>],
    out: Tensor,
) -> Result<Tensor> {
    if !out.dtype().is_float() || !wanted(&tensors(operands)) {
        return Ok(out);
    }
    check_differentiable(backward, operands)?;
    let plan = Plan::new(backward, operands, &out);
    record(backward.name(), out.clone(), &plan.tensors(), &plan.saved, plan.rule())
}

/// Fails if the gradient of an operand is wanted that has no formula.
#[track_caller]
fn check_differentiable(
    backward: &'static Backward,
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
    /// Copies of the saved tensors whose memory is overwritten, with their indices among these.
    former: SmallVec<[(usize, Tensor); 1]>,
}

/// Prepares the record of an op that will write into `a`, one of its operands. After the op has run, call
/// [`finish_in_place`]. The op is not a closure argument, because `#[track_caller]` stops at closures.
#[inline]
#[track_caller]
pub(crate) fn prepare_in_place<'a>(
    backward: Option<&'static Backward>,
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
        backward: Option<&'static Backward>,
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
        let own = plan.inputs.iter().position(|(tensor, _)| tensor.is_same(a)).unwrap_or(0);
        plan.inputs.swap(0, own);
        let mut former: SmallVec<[(usize, Tensor); 1]> = SmallVec::new();
        for (i, saved) in plan.saved.iter().enumerate() {
            if plan.result == Some(i) || !saved.storage().same_as(a.storage()) {
                continue;
            }
            let copied = former.iter().find(|(k, _)| plan.saved[*k].is_same(saved));
            let copy = match copied {
                Some((_, copy)) => copy.clone(),
                None => saved.copy()?,
            };
            former.push((i, copy));
        }
        Ok(Some(Box::new(Self { name, plan, former })))
    }

    #[cold]
    #[track_caller]
    fn record(self) -> Result<()> {
        let mut saved: SmallVec<[&Tensor; 3]> = self.plan.saved.iter().copied().collect();
        self.former.iter().for_each(|(i, former)| saved[*i] = former);
        record_in_place(self.name, &self.plan.tensors(), &saved, self.plan.rule())
    }
}
