//! From an entry of the table of ops to its node.

use smallvec::SmallVec;
use warpline_kernels::elementwise::Op;

use super::{activation, arithmetic, functions, select};
use crate::autograd::{
    Context, Gradients, check_in_place, record, record_in_place, refuse, wanted, wanted_in_place,
};
use crate::{Result, Scalar, Tensor, TensorOrScalar};

/// Operand 0, as a bit of what a derivative uses.
pub(super) const X: u8 = 1;
/// Operand 1.
pub(super) const Y: u8 = 2;
/// Operand 2.
pub(super) const Z: u8 = 4;
/// The result.
pub(super) const OUT: u8 = 8;

/// An op's derivatives.
pub(super) struct Derivative {
    /// What the one for each operand uses.
    pub(super) uses: [u8; 4],
    /// The gradient of an operand, by its number.
    pub(super) rule: fn(&Terms<'_>, &Tensor, usize) -> Result<Tensor>,
}

/// What a derivative is computed of.
pub(super) struct Terms<'a> {
    context: &'a Context<'a>,
    operands: &'a [Operand],
    out: Option<usize>,
}

/// Where an operand is to be found in a backward pass.
#[derive(Clone, Copy)]
enum Operand {
    Number(Scalar),
    /// Its place among the saved tensors, if it was saved.
    Tensor(Option<usize>),
}

impl Terms<'_> {
    /// An operand that is a tensor; a number as a tensor without dimensions.
    pub(super) fn tensor(&self, operand: usize, like: &Tensor) -> Result<Tensor> {
        match self.operands.get(operand) {
            Some(Operand::Number(number)) => like.new_full((), *number, ()),
            Some(Operand::Tensor(Some(saved))) => self.context.saved(*saved),
            _ => self.context.saved(usize::MAX),
        }
    }

    pub(super) fn x(&self, like: &Tensor) -> Result<Tensor> {
        self.tensor(0, like)
    }

    pub(super) fn y(&self, like: &Tensor) -> Result<Tensor> {
        self.tensor(1, like)
    }

    pub(super) fn out(&self) -> Result<Tensor> {
        self.context.saved(self.out.unwrap_or(usize::MAX))
    }

    /// An operand that is a number in each of the op's calls.
    pub(super) fn number(&self, operand: usize) -> f64 {
        match self.operands.get(operand) {
            Some(Operand::Number(number)) => number.to_f64(),
            _ => 0.0,
        }
    }

    /// `grad * operand`, of a number without a tensor of it.
    pub(super) fn times(&self, grad: &Tensor, operand: usize) -> Result<Tensor> {
        match self.operands.get(operand) {
            Some(Operand::Number(number)) => grad.mul(*number),
            _ => grad.mul(&self.tensor(operand, grad)?),
        }
    }

    /// `grad / operand`, likewise.
    pub(super) fn over(&self, grad: &Tensor, operand: usize) -> Result<Tensor> {
        match self.operands.get(operand) {
            Some(Operand::Number(number)) => grad.div(*number),
            _ => grad.div(&self.tensor(operand, grad)?),
        }
    }
}

fn derivative(op: &str) -> Option<Derivative> {
    arithmetic::derivative(op)
        .or_else(|| functions::derivative(op))
        .or_else(|| activation::derivative(op))
        .or_else(|| select::derivative(op))
}

/// The tensors of an op, what to save of it, and its rule.
struct Plan<'a> {
    tensors: SmallVec<[&'a Tensor; 3]>,
    saved: SmallVec<[&'a Tensor; 3]>,
    operands: SmallVec<[Operand; 4]>,
    /// The operands that are tensors, in their order.
    numbers: SmallVec<[usize; 3]>,
    out: Option<usize>,
    rule: fn(&Terms<'_>, &Tensor, usize) -> Result<Tensor>,
}

impl<'a> Plan<'a> {
    fn new(derivative: &Derivative, operands: &[TensorOrScalar<'a>], out: &'a Tensor) -> Self {
        let mut plan = Self {
            tensors: SmallVec::new(),
            saved: SmallVec::new(),
            operands: SmallVec::new(),
            numbers: SmallVec::new(),
            out: None,
            rule: derivative.rule,
        };
        let mut uses = 0;
        for (i, operand) in operands.iter().enumerate() {
            if let TensorOrScalar::Tensor(tensor) = operand {
                plan.tensors.push(tensor);
                plan.numbers.push(i);
                if tensor.requires_grad() {
                    uses |= derivative.uses[i];
                }
            }
        }
        for (i, operand) in operands.iter().enumerate() {
            plan.operands.push(match operand {
                TensorOrScalar::Scalar(number) => Operand::Number(*number),
                TensorOrScalar::Tensor(tensor) if uses & (1 << i) != 0 => {
                    plan.saved.push(tensor);
                    Operand::Tensor(Some(plan.saved.len() - 1))
                }
                TensorOrScalar::Tensor(_) => Operand::Tensor(None),
            });
        }
        if uses & OUT != 0 {
            plan.saved.push(out);
            plan.out = Some(plan.saved.len() - 1);
        }
        plan
    }

    fn rule(&self) -> impl Fn(&Context<'_>, &Tensor) -> Result<Gradients> + Send + Sync + 'static {
        let (operands, numbers) = (self.operands.clone(), self.numbers.clone());
        let (out, rule) = (self.out, self.rule);
        move |context, grad| {
            let terms = Terms { context, operands: &operands, out };
            let one = |(input, &operand): (usize, &usize)| {
                context.needs(input).then(|| rule(&terms, grad, operand)).transpose()
            };
            numbers.iter().enumerate().map(one).collect()
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
    let tensors = operands.iter().any(|operand| match operand {
        TensorOrScalar::Tensor(tensor) => tensor.requires_grad(),
        TensorOrScalar::Scalar(_) => false,
    });
    if !tensors || !out.dtype().is_float() {
        return Ok(out);
    }
    elementwise_as(op.name(), operands, out)
}

/// [`elementwise`] by the derivative of another name than the op's.
#[cold]
#[track_caller]
pub(crate) fn elementwise_as(
    op: &'static str,
    operands: &[TensorOrScalar<'_>],
    out: Tensor,
) -> Result<Tensor> {
    let tensors = tensors(operands);
    if !wanted(&tensors) {
        return Ok(out);
    }
    let Some(derivative) = derivative(op) else {
        refuse(op, &tensors)?;
        return Ok(out);
    };
    let plan = Plan::new(&derivative, operands, &out);
    let rule = plan.rule();
    record(op, out.clone(), &plan.tensors, &plan.saved, rule)
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
        let Some(derivative) = derivative(op.name()) else {
            return refuse(name, &tensors(operands)).map(|()| None);
        };
        let mut plan = Plan::new(&derivative, operands, a);
        // What is changed comes first among the inputs of a node.
        let own = plan.tensors.iter().position(|tensor| tensor.is_same(a)).unwrap_or(0);
        plan.tensors.swap(0, own);
        plan.numbers.swap(0, own);
        let places: SmallVec<[usize; 3]> = (0..plan.saved.len())
            .filter(|&i| plan.saved[i].is_same(a) && plan.out != Some(i))
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

/// A derivative of an op with one operand.
macro_rules! rules {
    ($($($name:literal)|+ [$($uses:expr),*] |$terms:pat_param, $grad:pat_param, $operand:pat_param| $body:expr;)*) => {
        pub(super) fn derivative(op: &str) -> Option<Derivative> {
            let mut uses = [0; 4];
            let rule: fn(&Terms<'_>, &Tensor, usize) -> Result<Tensor> = match op {
                $($($name)|+ => {
                    let given: &[u8] = &[$($uses),*];
                    uses[..given.len()].copy_from_slice(given);
                    |$terms, $grad, $operand| $body
                })*
                _ => return None,
            };
            Some(Derivative { uses, rule })
        }
    };
}

pub(super) use rules;
