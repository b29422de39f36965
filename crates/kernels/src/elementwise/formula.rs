//! Formulas of gradients.
//!
//! A formula is a list of steps, each of which applies an entry of the table to earlier steps. Its inputs are the op's
//! operands, the op's result, and the gradient of that result. So whatever runs the entries runs the formulas, and the
//! gradients of the entries are the second gradients.
//!
//! Formulas are written beside the values of their ops, with the operators of Rust and the names of the table:
//!
//! ```text
//! gradients(g, out) { x: g * y * x.pow(y - 1.0), y: g * out * x.log() }
//! ```

use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Neg, Sub};
use std::sync::OnceLock;

use super::*;

/// Most operands of an op.
pub const MAX_OPERANDS: usize = 4;

/// The gradients of an op of floats.
#[derive(Debug)]
pub struct Gradients {
    name: &'static str,
    write: fn(&mut Writer),
    formula: OnceLock<Formula>,
}

impl Gradients {
    pub(super) const fn new(name: &'static str, write: fn(&mut Writer)) -> Self {
        Self { name, write, formula: OnceLock::new() }
    }

    /// Name of the op.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The steps that compute them, written on first use.
    pub fn formula(&self) -> &Formula {
        self.formula.get_or_init(|| {
            let former = STEPS.take();
            let mut writer = Writer::default();
            (self.write)(&mut writer);
            Formula { steps: STEPS.replace(former), gradients: writer.gradients }
        })
    }
}

/// The gradients of an op as steps.
#[derive(Debug)]
pub struct Formula {
    steps: Vec<Step>,
    gradients: [Option<usize>; MAX_OPERANDS],
}

/// One number, or condition, for each element.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// The gradient of the op's result.
    Gradient,
    /// The op's operand of this number.
    Operand(usize),
    /// The op's result.
    Result,
    /// A constant.
    Constant(f64),
    /// A number operand, rounded to `float32`.
    Single(usize),
    /// An op of earlier steps, as many as the op has operands.
    Apply(&'static Op, [usize; MAX_OPERANDS]),
}

impl Step {
    /// The earlier steps that this step reads.
    #[must_use]
    pub fn reads(&self) -> &[usize] {
        match self {
            Self::Apply(op, steps) => &steps[..op.inputs()],
            Self::Single(step) => std::slice::from_ref(step),
            _ => &[],
        }
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
    /// All steps. Each reads earlier ones only.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The step that is the gradient of an operand. Conditions and numbers that are always constant have none.
    #[must_use]
    pub fn gradient(&self, operand: usize) -> Option<usize> {
        self.gradients.get(operand).copied().flatten()
    }

    /// For each step, how many other steps and results read it on the way to these operands' gradients.
    #[must_use]
    pub fn readers(&self, operands: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let mut readers = vec![0; self.steps.len()];
        operands.into_iter().filter_map(|k| self.gradient(k)).for_each(|step| readers[step] += 1);
        for (k, step) in self.steps.iter().enumerate().rev() {
            if readers[k] > 0 {
                step.reads().iter().for_each(|&read| readers[read] += 1);
            }
        }
        readers
    }
}

thread_local! {
    /// The steps of the formula that this thread writes.
    static STEPS: RefCell<Vec<Step>> = const { RefCell::new(Vec::new()) };
}

/// Adds a step, unless there is an equal one. Returns its number.
fn push(step: Step) -> usize {
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
    push(Step::Apply(op, steps))
}

/// Collects what an entry says of its gradients.
#[derive(Debug, Default)]
pub(super) struct Writer {
    operands: usize,
    gradients: [Option<usize>; MAX_OPERANDS],
}

impl Writer {
    /// The next operand, a number.
    pub(super) fn number(&mut self) -> Number {
        self.operands += 1;
        Number(push(Step::Operand(self.operands - 1)))
    }

    /// The next operand, a condition.
    pub(super) fn truth(&mut self) -> Truth {
        Truth(self.number().0)
    }

    /// The gradient of the result.
    pub(super) fn gradient(&self) -> Number {
        Number(push(Step::Gradient))
    }

    /// The result.
    pub(super) fn result(&self) -> Number {
        Number(push(Step::Result))
    }

    /// States the gradient of an operand.
    pub(super) fn set(&mut self, operand: Number, gradient: impl Into<Number>) {
        let step = STEPS.with_borrow(|steps| steps[operand.0]);
        if let Step::Operand(k) = step {
            self.gradients[k] = Some(gradient.into().0);
        }
    }
}

/// A number of each element.
#[derive(Clone, Copy, Debug)]
pub(super) struct Number(usize);

/// A condition of each element.
#[derive(Clone, Copy, Debug)]
pub(super) struct Truth(usize);

impl From<f64> for Number {
    fn from(constant: f64) -> Self {
        Self(push(Step::Constant(constant)))
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident;)*) => {$(
        impl<T: Into<Number>> $trait<T> for Number {
            type Output = Number;

            fn $method(self, other: T) -> Number {
                Number(apply(&$op, [self.0, other.into().0]))
            }
        }

        impl $trait<Number> for f64 {
            type Output = Number;

            fn $method(self, other: Number) -> Number {
                Number::from(self).$method(other)
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

impl Neg for Number {
    type Output = Self;

    fn neg(self) -> Self {
        Self(apply(&NEG, [self.0]))
    }
}

macro_rules! functions {
    ($($name:ident($($other:ident),*) $op:ident $result:ident;)*) => {
        /// The functions of the table that formulas use.
        impl Number {$(
            pub(super) fn $name(self, $($other: impl Into<Number>),*) -> $result {
                $result(apply(&$op, [self.0, $($other.into().0),*]))
            }
        )*}
    };
}

functions! {
    abs() ABS Number;
    sign() SIGN Number;
    square() SQUARE Number;
    reciprocal() RECIPROCAL Number;
    rsqrt() RSQRT Number;
    exp() EXP Number;
    exp2() EXP2 Number;
    log() LOG Number;
    sin() SIN Number;
    cos() COS Number;
    sinh() SINH Number;
    cosh() COSH Number;
    tanh() TANH Number;
    sigmoid() SIGMOID Number;
    softplus(beta, threshold) SOFTPLUS Number;
    digamma() DIGAMMA Number;
    pow(y) POW Number;
    floor_divide(y) FLOOR_DIVIDE Number;
    div_trunc(y) DIV_TRUNC Number;
    relu_backward(y) RELU_BACKWARD Number;
    sigmoid_backward(y) SIGMOID_BACKWARD Number;
    tanh_backward(y) TANH_BACKWARD Number;
    silu_backward(x) SILU_BACKWARD Number;
    gelu_backward(x) GELU_BACKWARD Number;
    gelu_tanh_backward(x) GELU_TANH_BACKWARD Number;
    eq(y) EQ Truth;
    lt(y) LT Truth;
    le(y) LE Truth;
    gt(y) GT Truth;
    ge(y) GE Truth;
    isnan() ISNAN Truth;
    isfinite() ISFINITE Truth;
}

impl Number {
    /// A number operand, rounded to `float32`.
    pub(super) fn single(self) -> Self {
        Self(push(Step::Single(self.0)))
    }
}

impl Truth {
    pub(super) fn and(self, other: Self) -> Self {
        Self(apply(&LOGICAL_AND, [self.0, other.0]))
    }

    pub(super) fn or(self, other: Self) -> Self {
        Self(apply(&LOGICAL_OR, [self.0, other.0]))
    }

    /// `yes` where the condition holds, else `no`.
    pub(super) fn select(self, yes: impl Into<Number>, no: impl Into<Number>) -> Number {
        Number(apply(&WHERE, [self.0, yes.into().0, no.into().0]))
    }
}
