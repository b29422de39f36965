//! `out = a op b`, where one side may be a number.

mod cpu;
#[cfg(test)]
mod tests;

use std::panic::Location;

use bytemuck::{Pod, Zeroable};

use warpline_runtime::dispatch;
use warpline_runtime::iter::{Kernel, Op, run, vector_width};
use warpline_runtime::module;
use warpline_runtime::{Category, DType, Error, KernelSet, Result, Scalar, Target, View};

/// What is computed from two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum BinaryOp {
    /// `torch.add`; on bool, `or`.
    Add,
    /// `torch.sub`; not on bool.
    Sub,
    /// `torch.mul`; on bool, `and`.
    Mul,
    /// `torch.div`, true division: on floats, which integers are converted to first.
    Div,
    /// `torch.maximum`: NaN if either is.
    Maximum,
    /// `torch.minimum`: NaN if either is.
    Minimum,
    /// `torch.eq`.
    Eq,
    /// `torch.ne`.
    Ne,
    /// `torch.lt`.
    Lt,
    /// `torch.le`.
    Le,
    /// `torch.gt`.
    Gt,
    /// `torch.ge`.
    Ge,
}

impl BinaryOp {
    /// Every op.
    pub const ALL: [Self; 12] = [
        Self::Add,
        Self::Sub,
        Self::Mul,
        Self::Div,
        Self::Maximum,
        Self::Minimum,
        Self::Eq,
        Self::Ne,
        Self::Lt,
        Self::Le,
        Self::Gt,
        Self::Ge,
    ];

    /// PyTorch's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Sub => "sub",
            Self::Mul => "mul",
            Self::Div => "div",
            Self::Maximum => "maximum",
            Self::Minimum => "minimum",
            Self::Eq => "eq",
            Self::Ne => "ne",
            Self::Lt => "lt",
            Self::Le => "le",
            Self::Gt => "gt",
            Self::Ge => "ge",
        }
    }

    /// Whether the result is bool.
    #[must_use]
    pub const fn is_comparison(self) -> bool {
        matches!(self, Self::Eq | Self::Ne | Self::Lt | Self::Le | Self::Gt | Self::Ge)
    }

    /// The dtype that operands are converted to, and the result's, for operands that meet in
    /// `common` ([`DType::promote`], [`Scalar::result_type`]).
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for `sub` of bools.
    pub fn dtypes(self, common: DType) -> Result<(DType, DType)> {
        match self {
            Self::Sub if common == DType::Bool => {
                Err(Error::UnsupportedDType { op: self.name(), dtype: common })
            }
            Self::Div if !common.is_float() => Ok((DType::F32, DType::F32)),
            _ if self.is_comparison() => Ok((common, DType::Bool)),
            _ => Ok((common, common)),
        }
    }
}

/// The kernels' arguments besides the operands.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Args {
    op: u32,
    /// Whether the scalar is the left operand.
    reversed: u32,
    number: Number,
}

/// A scalar operand: floats take `f`, rounded as the op wants it, others `i`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Number {
    pub(crate) f: f64,
    pub(crate) i: i64,
}

impl From<Scalar> for Number {
    fn from(value: Scalar) -> Self {
        match value {
            // A float for integers has been converted before; what is left means true or false.
            Scalar::Float(f) => Self { f, i: i64::from(f != 0.0) },
            other => Self { f: other.to_f64(), i: other.to_i64() },
        }
    }
}

static INT: KernelSet = KernelSet::new(module!("binary_int"), 48, |i| name(&INTS, i));
static FLOAT: KernelSet = KernelSet::new(module!("binary_float"), 32, |i| name(&FLOATS, i));

const INTS: [DType; 6] = [DType::Bool, DType::U8, DType::I8, DType::I16, DType::I32, DType::I64];
const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// Of each dtype: arithmetic, then comparison; of each: two tensors, then with a scalar.
fn name(dtypes: &[DType], index: usize) -> String {
    let dtype = dtypes[index / 8];
    let kind = if index / 4 % 2 == 1 { "comparison" } else { "arithmetic" };
    let scalar = if index / 2 % 2 == 1 { "_scalar" } else { "" };
    let space = if index % 2 == 1 { "strided" } else { "flat" };
    format!("{kind}{scalar}_{}_{space}", dtype.suffix())
}

fn describe(op: BinaryOp, dtype: DType, scalar: bool, location: &'static Location<'static>) -> Op {
    let (set, dtypes) =
        if dtype.is_float() { (&FLOAT, FLOATS.as_slice()) } else { (&INT, INTS.as_slice()) };
    let place = dtypes.iter().position(|&d| d == dtype).unwrap_or_default();
    let first = place * 8 + usize::from(op.is_comparison()) * 4 + usize::from(scalar) * 2;
    let [flat, strided] = dispatch!(dtype, all T => cpu::kernels::<T>(scalar));
    Op {
        name: op.name(),
        set,
        flat: Kernel { index: first, host: flat },
        strided: Kernel { index: first + 1, host: strided },
        vector: vector_width(dtype.size()),
        location,
    }
}

fn check(op: BinaryOp, operands: &[View<'_>], out: &View<'_>) -> Result<DType> {
    let dtype = operands[0].dtype;
    for operand in &operands[1..] {
        if operand.dtype != dtype {
            let (expected, actual) = (dtype, operand.dtype);
            return Err(Error::DTypeMismatch { op: op.name(), expected, actual });
        }
    }
    let (compute, result) = op.dtypes(dtype)?;
    if compute != dtype {
        return Err(Error::UnsupportedDType { op: op.name(), dtype });
    }
    if out.dtype != result {
        return Err(Error::DTypeMismatch { op: op.name(), expected: result, actual: out.dtype });
    }
    Ok(dtype)
}

/// `out = a op b`. All have the same sizes; expand operands to broadcast them. `a` and `b` have the
/// first dtype of [`BinaryOp::dtypes`], `out` the second. `out` may be `a` or `b` itself.
///
/// # Errors
/// [`Error::DTypeMismatch`], [`Error::UnsupportedDType`], [`Error::ShapeMismatch`],
/// [`Error::OverlappingWrite`], [`Error::OverlappingOperands`], and what a launch can fail with.
#[track_caller]
pub fn binary(
    target: Target<'_>,
    op: BinaryOp,
    a: View<'_>,
    b: View<'_>,
    out: View<'_>,
) -> Result<()> {
    let dtype = check(op, &[a, b], &out)?;
    let described = describe(op, dtype, false, Location::caller());
    let args = Args { op: op as u32, reversed: 0, number: Number::default() };
    // SAFETY: the kernels and CPU implementations are those of the dtype just checked.
    unsafe { run(target, &described, [a, b, out], args) }
}

/// `out = a op b` with a number, which costs neither memory nor a second launch. The dtypes are as
/// for [`binary`], with [`Scalar::result_type`] for the common one.
///
/// As in PyTorch, arithmetic on half-width floats takes the number in `f32`, while comparisons
/// round it to the tensor's dtype first.
///
/// # Errors
/// As [`binary`].
#[track_caller]
pub fn binary_scalar(
    target: Target<'_>,
    op: BinaryOp,
    a: View<'_>,
    b: Scalar,
    out: View<'_>,
) -> Result<()> {
    with_scalar(target, op, a, b, false, out, Location::caller())
}

/// `out = a op b` with the number on the left, such as `1 - b`.
///
/// # Errors
/// As [`binary`].
#[track_caller]
pub fn scalar_binary(
    target: Target<'_>,
    op: BinaryOp,
    a: Scalar,
    b: View<'_>,
    out: View<'_>,
) -> Result<()> {
    with_scalar(target, op, b, a, true, out, Location::caller())
}

fn with_scalar(
    target: Target<'_>,
    op: BinaryOp,
    tensor: View<'_>,
    scalar: Scalar,
    reversed: bool,
    out: View<'_>,
    location: &'static Location<'static>,
) -> Result<()> {
    let dtype = check(op, &[tensor], &out)?;
    if scalar.category() == Category::Float && !dtype.is_float() {
        return Err(Error::CannotCast { op: op.name(), from: DType::F32, to: dtype });
    }
    let number = dispatch!(dtype, all T => cpu::rounded::<T>(scalar, op.is_comparison()));
    let described = describe(op, dtype, true, location);
    let args = Args { op: op as u32, reversed: reversed.into(), number: number.into() };
    // SAFETY: the kernels and CPU implementations are those of the dtype just checked.
    unsafe { run(target, &described, [tensor, out], args) }
}
