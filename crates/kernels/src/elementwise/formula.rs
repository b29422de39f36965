//! Formulas of gradients.
//!
//! A formula is a list of steps, in which equal steps occur once. A leaf is the gradient of the
//! result, an operand, or the result. Other steps are constants, or depend on earlier steps: `Single`
//! rounds a step to `float32`, as PyTorch rounds some parameters, and `Apply` applies an entry of the
//! table. Code that runs entries can therefore run formulas, and the gradients of the entries give
//! second gradients. The first use of a [`Backward`] builds its formula.
//!
//! Entries write formulas with Rust's operators and the names of the table:
//!
//! ```text
//! gradients(g, out) { x: g * y * x.pow(y - 1.0), y: g * out * x.log() }
//! ```
//!
//! `g` is the gradient of the result, and `out` the result. An `Expr` is a number for each element,
//! a `Condition` a bool. A formula can name only its operands, `g` and `out`, so it cannot read a
//! tensor that was not saved. An operand without a formula is a parameter, with respect to which
//! the op is not differentiable.
//!
//! `CLAMP_MIN`, `CLAMP_MAX` and `HARDTANH` are `Backward`s without an entry. Their ops run the
//! entries of `maximum`, `minimum` and `clamp`, but have other gradients.

use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Neg, Sub};

use super::*;

/// Largest number of operands of an op.
pub const MAX_OPERANDS: usize = 4;

/// The gradients of an op's operands, as steps that share common subexpressions.
#[derive(Debug)]
pub struct Formula {
    steps: Vec<FormulaStep>,
    gradients: [Option<usize>; MAX_OPERANDS],
    /// Steps that are bools.
    conditions: Vec<usize>,
    /// Operands that are rounded if they are numbers.
    rounded: Vec<usize>,
    leaves: Vec<usize>,
    computed: Vec<usize>,
}

/// A step of a formula: a number or a bool for each element.
#[derive(Clone, Copy, Debug)]
pub enum FormulaStep {
    /// The gradient of the op's result.
    Gradient,
    /// The operand with this index.
    Operand(usize),
    /// The op's result.
    Result,
    /// A constant.
    Constant(f64),
    /// An earlier step, rounded to `float32`.
    Single(usize),
    /// An op applied to earlier steps, whose indices are the first [`Op::inputs`] numbers of the
    /// array.
    Apply(&'static Op, [usize; MAX_OPERANDS]),
}

impl FormulaStep {
    /// Returns the indices of the earlier steps that this step reads.
    #[must_use]
    pub fn reads(&self) -> &[usize] {
        match self {
            Self::Apply(op, steps) => &steps[..op.inputs()],
            Self::Single(step) => std::slice::from_ref(step),
            _ => &[],
        }
    }

    /// Returns whether this is the gradient of the result, an operand, or the result.
    pub(super) fn is_leaf(&self) -> bool {
        matches!(self, Self::Gradient | Self::Operand(_) | Self::Result)
    }

    fn same_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Gradient, Self::Gradient) | (Self::Result, Self::Result) => true,
            (Self::Operand(a), Self::Operand(b)) | (Self::Single(a), Self::Single(b)) => a == b,
            (Self::Constant(a), Self::Constant(b)) => a.to_bits() == b.to_bits(),
            (Self::Apply(op, a), Self::Apply(other, b)) => std::ptr::eq(*op, *other) && a == b,
            _ => false,
        }
    }
}

impl Formula {
    pub(super) fn new(build: fn(&mut Builder)) -> Self {
        // Building a formula may start another formula on this thread. `Outer` restores the outer
        // formula when the inner formula is built, even if `build` panics.
        let _outer = Outer(STEPS.take());
        let mut builder = Builder::default();
        build(&mut builder);
        let mut formula = Self {
            steps: STEPS.take(),
            gradients: builder.gradients,
            conditions: builder.conditions,
            rounded: builder.rounded,
            leaves: Vec::new(),
            computed: Vec::new(),
        };
        let uses = formula.uses(0..MAX_OPERANDS);
        let used = (0..formula.steps.len()).filter(|&k| uses[k] > 0);
        formula.leaves = used.filter(|&k| formula.steps[k].is_leaf()).collect();
        let computed =
            |k: &usize| formula.gradient(*k).is_some_and(|step| !formula.steps[step].is_leaf());
        formula.computed = (0..MAX_OPERANDS).filter(computed).collect();
        formula
    }

    /// Returns the indices of the leaves that gradients read.
    #[must_use]
    pub fn leaves(&self) -> &[usize] {
        &self.leaves
    }

    /// Returns whether a leaf is a boolean operand.
    #[must_use]
    pub fn is_condition(&self, leaf: usize) -> bool {
        self.conditions.contains(&leaf)
    }

    /// Returns whether a leaf is an operand for which a number is rounded to the dtype of the
    /// elements.
    #[must_use]
    pub fn is_rounded(&self, leaf: usize) -> bool {
        self.rounded.contains(&leaf)
    }

    /// Returns the operands whose gradients are computed. The gradients of all others are leaves or
    /// do not exist.
    #[must_use]
    pub fn computed(&self) -> &[usize] {
        &self.computed
    }

    /// Returns the operands that have a gradient.
    pub(super) fn differentiable(&self) -> impl Iterator<Item = usize> {
        (0..MAX_OPERANDS).filter(|&operand| self.gradient(operand).is_some())
    }

    /// Returns the number of launches that compute the gradients of `operands` one op at a time. A
    /// constant gradient takes one launch.
    #[must_use]
    pub fn launches(&self, operands: impl IntoIterator<Item = usize> + Clone) -> usize {
        let uses = self.uses(operands.clone());
        let constant = |k: usize| operands.clone().into_iter().any(|o| self.gradient(o) == Some(k));
        let launches = self.steps.iter().enumerate().filter(|(k, step)| match step {
            FormulaStep::Gradient | FormulaStep::Operand(_) | FormulaStep::Result => false,
            FormulaStep::Constant(_) => constant(*k),
            FormulaStep::Single(_) | FormulaStep::Apply(..) => uses[*k] > 0,
        });
        launches.count()
    }

    /// Returns all steps. Each step reads only earlier steps.
    #[must_use]
    pub fn steps(&self) -> &[FormulaStep] {
        &self.steps
    }

    /// Returns the index of the step that is the gradient of an operand. `None` for conditions, and
    /// for parameters that callers pass as numbers.
    #[must_use]
    pub fn gradient(&self, operand: usize) -> Option<usize> {
        self.gradients.get(operand).copied().flatten()
    }

    /// Counts the uses of each step in the gradients of `operands`. A step with count 0 need not be
    /// computed, and a leaf with count 0 need not be saved.
    #[must_use]
    pub fn uses(&self, operands: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let mut uses = vec![0; self.steps.len()];
        operands.into_iter().filter_map(|k| self.gradient(k)).for_each(|step| uses[step] += 1);
        for (k, step) in self.steps.iter().enumerate().rev() {
            if uses[k] > 0 {
                step.reads().iter().for_each(|&read| uses[read] += 1);
            }
        }
        uses
    }
}

thread_local! {
    /// Steps of the formula that this thread is building.
    static STEPS: RefCell<Vec<FormulaStep>> = const { RefCell::new(Vec::new()) };
}

/// Steps of an outer formula, which are restored after an inner formula is built.
struct Outer(Vec<FormulaStep>);

impl Drop for Outer {
    fn drop(&mut self) {
        STEPS.set(std::mem::take(&mut self.0));
    }
}

/// Adds a step unless an equal step exists. Returns its index.
fn push(step: FormulaStep) -> usize {
    STEPS.with_borrow_mut(|steps| {
        steps.iter().position(|other| other.same_as(&step)).unwrap_or_else(|| {
            steps.push(step);
            steps.len() - 1
        })
    })
}

fn apply<const N: usize>(op: &'static Op, operands: [usize; N]) -> usize {
    let mut steps = [0; MAX_OPERANDS];
    steps[..N].copy_from_slice(&operands);
    push(FormulaStep::Apply(op, steps))
}

/// Builds the formula of an entry. Declare the operands in order, then set the gradients.
#[derive(Debug, Default)]
pub struct Builder {
    operands: usize,
    conditions: Vec<usize>,
    rounded: Vec<usize>,
    gradients: [Option<usize>; MAX_OPERANDS],
}

impl Builder {
    /// Declares the next operand, a number.
    pub fn operand(&mut self) -> Expr {
        self.operands += 1;
        Expr(push(FormulaStep::Operand(self.operands - 1)))
    }

    /// Declares the next operand, a condition.
    pub fn condition(&mut self) -> Condition {
        let step = self.operand().0;
        self.conditions.push(step);
        Condition(step)
    }

    /// Rounds an operand, if it is a number, to the dtype of the elements, as in PyTorch's
    /// comparisons of half-width floats. Otherwise formulas read numbers unrounded.
    pub fn round(&mut self, operand: Expr) {
        self.rounded.push(operand.0);
    }

    /// Returns the gradient of the result.
    pub fn gradient(&self) -> Expr {
        Expr(push(FormulaStep::Gradient))
    }

    /// Returns the result.
    pub fn result(&self) -> Expr {
        Expr(push(FormulaStep::Result))
    }

    /// Sets the gradient of an operand.
    pub fn set(&mut self, operand: Expr, gradient: impl Into<Expr>) {
        // Operands are declared first, so the index of an operand is also the index of its step.
        assert!(
            operand.0 < self.operands,
            "each gradient must have the name of an operand, and no operand may be called `g` or `out`"
        );
        let former = self.gradients[operand.0].replace(gradient.into().0);
        assert!(former.is_none(), "an operand has one gradient");
    }
}

/// A numeric expression, evaluated for each element. Holds the index of its step.
#[derive(Clone, Copy, Debug)]
pub struct Expr(usize);

/// A boolean expression, evaluated for each element: the index of its step.
#[derive(Clone, Copy, Debug)]
pub struct Condition(usize);

impl From<f64> for Expr {
    fn from(constant: f64) -> Self {
        Self(push(FormulaStep::Constant(constant)))
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident;)*) => {$(
        impl<T: Into<Expr>> $trait<T> for Expr {
            type Output = Expr;

            fn $method(self, other: T) -> Expr {
                Expr(apply(&$op, [self.0, other.into().0]))
            }
        }

        impl $trait<Expr> for f64 {
            type Output = Expr;

            fn $method(self, other: Expr) -> Expr {
                Expr::from(self).$method(other)
            }
        }
    )*};
}

operators! {
    Add add ADD;
    Sub sub SUB;
    Mul mul MUL;
    Div div DIV;
}

impl Neg for Expr {
    type Output = Self;

    fn neg(self) -> Self {
        Self(apply(&NEG, [self.0]))
    }
}

macro_rules! functions {
    ($($name:ident($($other:ident),*) $op:ident $result:ident;)*) => {
        /// Ops that formulas use.
        impl Expr {$(
            #[doc = concat!("Applies [`", stringify!($op), "`].")]
            #[must_use]
            pub fn $name(self, $($other: impl Into<Expr>),*) -> $result {
                $result(apply(&$op, [self.0, $($other.into().0),*]))
            }
        )*}
    };
}

functions! {
    abs() ABS Expr;
    sign() SIGN Expr;
    square() SQUARE Expr;
    reciprocal() RECIPROCAL Expr;
    sqrt() SQRT Expr;
    rsqrt() RSQRT Expr;
    exp() EXP Expr;
    exp2() EXP2 Expr;
    log() LOG Expr;
    sin() SIN Expr;
    cos() COS Expr;
    sinh() SINH Expr;
    cosh() COSH Expr;
    tanh() TANH Expr;
    sigmoid() SIGMOID Expr;
    silu() SILU Expr;
    softplus(beta, threshold) SOFTPLUS Expr;
    digamma() DIGAMMA Expr;
    pow(y) POW Expr;
    xlogy(y) XLOGY Expr;
    floor_divide(y) FLOOR_DIVIDE Expr;
    div_trunc(y) DIV_TRUNC Expr;
    relu_backward(y) RELU_BACKWARD Expr;
    sigmoid_backward(y) SIGMOID_BACKWARD Expr;
    tanh_backward(y) TANH_BACKWARD Expr;
    silu_backward(x) SILU_BACKWARD Expr;
    gelu_backward(x) GELU_BACKWARD Expr;
    gelu_tanh_backward(x) GELU_TANH_BACKWARD Expr;
    eq(y) EQ Condition;
    lt(y) LT Condition;
    le(y) LE Condition;
    gt(y) GT Condition;
    ge(y) GE Condition;
    isfinite() ISFINITE Condition;
}

impl Expr {
    /// Rounds to `float32`.
    pub fn single(self) -> Self {
        Self(push(FormulaStep::Single(self.0)))
    }
}

impl Condition {
    /// Holds where both conditions hold.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(apply(&LOGICAL_AND, [self.0, other.0]))
    }

    /// Holds where at least one of the conditions holds.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(apply(&LOGICAL_OR, [self.0, other.0]))
    }

    /// Selects `yes` where the condition holds, else `no`.
    pub fn select(self, yes: impl Into<Expr>, no: impl Into<Expr>) -> Expr {
        Expr(apply(&WHERE, [self.0, yes.into().0, no.into().0]))
    }
}
