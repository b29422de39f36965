//! Records elementwise ops, whose gradients are formulas beside their entries.

use smallvec::SmallVec;
use warpline_kernels::elementwise::{Gradients as Formulas, Op, Step};

use super::formula::{Inputs, Operand, evaluate};
use crate::autograd::{
    Context, Gradients, check_in_place, record, record_in_place, refuse, wanted, wanted_in_place,
};
use crate::{Result, Tensor, TensorOrScalar};

/// The inputs of an op's node, and the tensors that the formulas of the wanted gradients read.
struct Plan<'a> {
    formulas: &'static Formulas,
    tensors: SmallVec<[&'a Tensor; 3]>,
    saved: SmallVec<[&'a Tensor; 3]>,
    /// For each input of the node, the number of its operand.
    numbers: SmallVec<[usize; 3]>,
    inputs: Inputs,
}

impl<'a> Plan<'a> {
    fn new(formulas: &'static Formulas, operands: &[TensorOrScalar<'a>], out: &'a Tensor) -> Self {
        let mut plan = Self {
            formulas,
            tensors: SmallVec::new(),
            saved: SmallVec::new(),
            numbers: SmallVec::new(),
            inputs: Inputs::default(),
        };
        let mut wanted: SmallVec<[usize; 3]> = SmallVec::new();
        for (i, operand) in operands.iter().enumerate() {
            if let TensorOrScalar::Tensor(tensor) = operand {
                plan.tensors.push(tensor);
                plan.numbers.push(i);
                if tensor.requires_grad() {
                    wanted.push(i);
                }
            }
        }
        let formula = formulas.formula();
        let readers = formula.readers(wanted);
        let steps = || formula.steps().iter().zip(&readers).filter(|(_, readers)| **readers > 0);
        for (i, operand) in operands.iter().enumerate() {
            plan.inputs.operands.push(match operand {
                TensorOrScalar::Scalar(number) => Operand::Number(*number),
                TensorOrScalar::Tensor(tensor)
                    if steps().any(|(step, _)| matches!(step, Step::Operand(k) if *k == i)) =>
                {
                    plan.saved.push(tensor);
                    Operand::Saved(plan.saved.len() - 1)
                }
                TensorOrScalar::Tensor(_) => Operand::Unread,
            });
        }
        if steps().any(|(step, _)| matches!(step, Step::Result)) {
            plan.saved.push(out);
            plan.inputs.out = Some(plan.saved.len() - 1);
        }
        plan
    }

    fn rule(&self) -> impl Fn(&Context<'_>, &Tensor) -> Result<Gradients> + Send + Sync + 'static {
        let (formula, inputs, numbers) =
            (self.formulas.formula(), self.inputs.clone(), self.numbers.clone());
        move |context, grad| {
            let wanted = |(input, &operand)| context.needs(input).then_some(operand);
            let wanted: SmallVec<[Option<usize>; 3]> =
                numbers.iter().enumerate().map(wanted).collect();
            evaluate(formula, &wanted, &inputs, context, grad)
        }
    }
}

/// Records an op of the table, if a gradient is wanted.
#[inline]
#[track_caller]
pub(crate) fn elementwise(
    op: &'static Op,
    operands: &[TensorOrScalar<'_>],
    out: Tensor,
) -> Result<Tensor> {
    let tracked = operands.iter().any(|operand| match operand {
        TensorOrScalar::Tensor(tensor) => tensor.requires_grad(),
        TensorOrScalar::Scalar(_) => false,
    });
    if !tracked || !out.dtype().is_float() {
        return Ok(out);
    }
    match op.gradients() {
        Some(gradients) => elementwise_as(gradients, operands, out),
        None => refuse(op.name(), &tensors(operands)).map(|()| out),
    }
}

/// [`elementwise`] with other gradients than the op's own.
#[cold]
#[track_caller]
pub(crate) fn elementwise_as(
    formulas: &'static Formulas,
    operands: &[TensorOrScalar<'_>],
    out: Tensor,
) -> Result<Tensor> {
    if !out.dtype().is_float() || !wanted(&tensors(operands)) {
        return Ok(out);
    }
    check_differentiable(formulas, operands)?;
    let plan = Plan::new(formulas, operands, &out);
    let rule = plan.rule();
    record(formulas.name(), out.clone(), &plan.tensors, &plan.saved, rule)
}

/// Refuses a gradient of an operand that the entry has no formula for.
#[track_caller]
fn check_differentiable(formulas: &'static Formulas, operands: &[TensorOrScalar<'_>]) -> Result<()> {
    for (i, operand) in operands.iter().enumerate() {
        if let TensorOrScalar::Tensor(tensor) = operand
            && formulas.formula().gradient(i).is_none()
        {
            refuse(formulas.name(), &[tensor])?;
        }
    }
    Ok(())
}

fn tensors<'a>(operands: &[TensorOrScalar<'a>]) -> SmallVec<[&'a Tensor; 4]> {
    let tensor = |operand: &TensorOrScalar<'a>| match operand {
        TensorOrScalar::Tensor(tensor) => Some(*tensor),
        TensorOrScalar::Scalar(_) => None,
    };
    operands.iter().filter_map(tensor).collect()
}

/// An op of the table that is about to change one of its operands, to be recorded once it has.
pub(crate) struct Change<'a> {
    name: &'static str,
    plan: Plan<'a>,
    /// The operand as it was, which is gone afterwards, and its places among what is saved.
    former: Option<(Tensor, SmallVec<[usize; 3]>)>,
}

/// To be asked before an op of the table runs into `a`, one of its operands; what comes back is for
/// [`record_change`]. It runs in between, and not in a closure, which would not know the line that called.
#[inline]
#[track_caller]
pub(crate) fn before_change<'a>(
    op: &'static Op,
    name: &'static str,
    a: &'a Tensor,
    operands: &[TensorOrScalar<'a>],
) -> Result<Option<Box<Change<'a>>>> {
    let tracked = operands.iter().any(|operand| match operand {
        TensorOrScalar::Tensor(tensor) => tensor.requires_grad(),
        TensorOrScalar::Scalar(_) => false,
    });
    if !tracked && !wanted_in_place(a, &[]) {
        return Ok(None);
    }
    Change::new(op, name, a, operands)
}

/// Records what [`before_change`] returned.
#[inline]
#[track_caller]
pub(crate) fn record_change(change: Option<Box<Change<'_>>>) -> Result<()> {
    change.map_or(Ok(()), |change| change.record())
}

impl<'a> Change<'a> {
    #[cold]
    #[track_caller]
    fn new(
        op: &'static Op,
        name: &'static str,
        a: &'a Tensor,
        operands: &[TensorOrScalar<'a>],
    ) -> Result<Option<Box<Self>>> {
        if !wanted_in_place(a, &tensors(operands)) {
            return Ok(None);
        }
        check_in_place(name, a)?;
        let Some(formulas) = op.gradients() else {
            return refuse(name, &tensors(operands)).map(|()| None);
        };
        check_differentiable(formulas, operands)?;
        let mut plan = Plan::new(formulas, operands, a);
        // What is changed comes first among the inputs of a node.
        let own = plan.tensors.iter().position(|tensor| tensor.is_same(a)).unwrap_or(0);
        plan.tensors.swap(0, own);
        plan.numbers.swap(0, own);
        let places: SmallVec<[usize; 3]> = (0..plan.saved.len())
            .filter(|&i| plan.saved[i].is_same(a) && plan.inputs.out != Some(i))
            .collect();
        let former = if places.is_empty() { None } else { Some((a.copy()?, places)) };
        Ok(Some(Box::new(Self { name, plan, former })))
    }

    #[cold]
    #[track_caller]
    fn record(self) -> Result<()> {
        let mut saved: SmallVec<[&Tensor; 3]> = self.plan.saved.iter().copied().collect();
        if let Some((former, places)) = &self.former {
            places.iter().for_each(|&i| saved[i] = former);
        }
        record_in_place(self.name, &self.plan.tensors, &saved, self.plan.rule())
    }
}
