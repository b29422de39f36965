//! Ops that compute each element of the result from the same element of their operands.
//!
//! An op is an entry of a table ([`table`]): name, dtypes, what CUDA computes, what the CPU computes.
//! Kernels (`cuda.rs`) and loops (`host.rs`) are the same for all.

mod activation;
mod arithmetic;
mod bitwise;
mod comparison;
mod cuda;
mod division;
mod exponential;
mod extremes;
mod functions;
mod gamma;
mod host;
mod integer;
mod logical;
mod real;
mod rounding;
mod select;
mod table;
#[cfg(test)]
mod tests;
mod trigonometric;

use std::panic::Location;

use bytemuck::{Pod, Zeroable};
use warpline_cuda_sys_safe::HostKernel;
use warpline_runtime::host::{HostElement, Number as _};
use warpline_runtime::module::Program;
use warpline_runtime::{Category, DType, Error, Result, Scalar, Target, View};
use warpline_runtime::{cuda_struct, dispatch, iter};

pub use activation::*;
pub use arithmetic::*;
pub use bitwise::*;
pub use comparison::*;
pub use division::*;
pub use exponential::*;
pub use extremes::*;
pub use gamma::*;
pub use logical::*;
pub use rounding::*;
pub use select::*;
pub use trigonometric::*;

/// The entries, a file after the other.
const FILES: &[&[&Op]] = &[
    activation::OPS,
    arithmetic::OPS,
    bitwise::OPS,
    comparison::OPS,
    division::OPS,
    exponential::OPS,
    extremes::OPS,
    gamma::OPS,
    logical::OPS,
    rounding::OPS,
    select::OPS,
    trigonometric::OPS,
];

/// Every op of the table.
pub fn table() -> impl Iterator<Item = &'static Op> {
    FILES.iter().copied().flatten().copied()
}

pub(crate) fn programs() -> impl Iterator<Item = &'static Program> {
    table().map(|op| &op.program)
}

/// An op's entry.
#[derive(Debug)]
pub struct Op {
    name: &'static str,
    inputs: &'static [Input],
    dtypes: DTypes,
    output: Output,
    /// CUDA's expression of the inputs, of one type `C` in which they are computed.
    cuda: &'static str,
    host: fn(DType) -> Option<[HostKernel; 2]>,
    program: Program,
}

/// What an input is called in CUDA's expression, and what its elements are.
#[derive(Clone, Copy, Debug)]
struct Input {
    name: &'static str,
    /// Of a condition; the others are of the dtype that is computed in.
    is_bool: bool,
}

/// The dtypes that an op is computed in: a range of [`DType::ALL`].
#[derive(Clone, Copy, Debug)]
struct DTypes {
    first: DType,
    last: DType,
    /// Whether integers and bools are computed in `f32`.
    converts: bool,
}

const ALL: DTypes = DTypes { first: DType::Bool, last: DType::F64, converts: false };
const NUMBERS: DTypes = DTypes { first: DType::U8, ..ALL };
const FLOATS: DTypes = DTypes { first: DType::F16, ..ALL };
/// Integers of any width.
const INTEGERS: DTypes = DTypes { first: DType::U8, last: DType::I64, converts: false };
/// Integers and bools.
const INTEGRAL: DTypes = DTypes { first: DType::Bool, ..INTEGERS };
/// Floats that are computed in as they are.
const WIDE_FLOATS: DTypes = DTypes { first: DType::F32, ..ALL };
/// Floats, which others are converted to.
const TO_FLOATS: DTypes = DTypes { converts: true, ..FLOATS };

impl DTypes {
    const fn variants(self) -> &'static [&'static str] {
        let (_, from) = DType::SUFFIXES.split_at(self.first as usize);
        from.split_at(self.last as usize - self.first as usize + 1).0
    }

    fn variant(self, dtype: DType) -> usize {
        dtype as usize - self.first as usize
    }
}

/// What the result's elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Output {
    /// Of the dtype that is computed in.
    Same,
    /// Bools. Numbers among the operands are rounded to the dtype first, as PyTorch compares.
    Bool,
}

/// An operand: a tensor, or a number, which costs neither memory nor a second launch.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// A tensor, with the result's sizes; expand it to broadcast it.
    Tensor(View<'a>),
    /// A number.
    Number(Scalar),
}

impl<'a> From<View<'a>> for Arg<'a> {
    fn from(view: View<'a>) -> Self {
        Self::Tensor(view)
    }
}

impl From<Scalar> for Arg<'_> {
    fn from(number: Scalar) -> Self {
        Self::Number(number)
    }
}

/// A number as a kernel takes it: floats take `f`, others `i`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
struct Number {
    f: f64,
    i: i64,
}

cuda_struct!(Number { f, i });

impl Number {
    /// As an op on `dtype` takes it.
    fn new(value: Scalar, dtype: DType, rounded: bool) -> Self {
        let value = dispatch!(dtype, all T => {
            let value = <T as HostElement>::Compute::from_scalar(value);
            if rounded { T::put(value).get().to_scalar() } else { value.to_scalar() }
        });
        match value {
            // A float for integers has been refused before; what is left means true or false.
            Scalar::Float(f) => Self { f, i: i64::from(f != 0.0) },
            other => Self { f: other.to_f64(), i: other.to_i64() },
        }
    }
}

/// The kernels' arguments besides the operands: which of `N` inputs are numbers, by bits, and those.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Numbers<const N: usize> {
    which: u64,
    number: [Number; N],
}

cuda_struct!(Numbers<N> { which, number });

// SAFETY: all fields are numbers, so zeros are valid.
unsafe impl<const N: usize> Zeroable for Numbers<N> {}
// SAFETY: `repr(C)` with 64-bit fields only: no padding, every bit pattern is valid.
unsafe impl<const N: usize> Pod for Numbers<N> {}

impl Op {
    /// PyTorch's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Whether an operand is a condition: bools, whatever the others are.
    #[must_use]
    pub fn is_condition(&self, operand: usize) -> bool {
        self.inputs.get(operand).is_some_and(|input| input.is_bool)
    }

    /// How many operands it has.
    #[must_use]
    pub const fn inputs(&self) -> usize {
        self.inputs.len()
    }

    /// The dtype that operands are converted to, and the result's, for operands that meet in
    /// `common` ([`DType::promote`], [`Scalar::result_type`]).
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] where PyTorch has no such op of the dtype.
    pub fn dtypes(&self, common: DType) -> Result<(DType, DType)> {
        let compute = if (self.dtypes.first..=self.dtypes.last).contains(&common) {
            common
        } else if self.dtypes.converts {
            DType::F32
        } else {
            return Err(Error::UnsupportedDType { op: self.name, dtype: common });
        };
        Ok((compute, if self.output == Output::Bool { DType::Bool } else { compute }))
    }

    /// Elements that a thread takes at a time: 16 bytes, but of the narrowest fewer where that takes long.
    fn vector(&self, dtype: DType) -> usize {
        let most = if self.inputs.len() == 1 && dtype.size() == 1 { 4 } else { 8 };
        iter::vector_width(dtype.size()).min(most)
    }
}

/// `out = op(a)`. `a` has the first dtype of [`Op::dtypes`], `out` the second; they have the same
/// sizes. `out` may be `a` itself.
///
/// # Errors
/// [`Error::DTypeMismatch`], [`Error::UnsupportedDType`], [`Error::ShapeMismatch`],
/// [`Error::OverlappingWrite`], [`Error::OverlappingOperands`], and what a launch can fail with;
/// [`Error::InvalidArgument`] where the op has another number of operands.
#[track_caller]
pub fn unary(target: Target<'_>, op: &'static Op, a: View<'_>, out: View<'_>) -> Result<()> {
    run::<1, 2>(target, op, [a.into()], out, Location::caller())
}

/// `out = op(a, b)`, where `a` or `b` may be a number; otherwise as [`unary`]. As in PyTorch,
/// arithmetic on half-width floats takes a number in `f32`, while comparisons round it to the tensor's
/// dtype first.
///
/// # Errors
/// As [`unary`]; [`Error::CannotCast`] for a float number among integers.
#[track_caller]
pub fn binary<'a>(
    target: Target<'_>,
    op: &'static Op,
    a: impl Into<Arg<'a>>,
    b: impl Into<Arg<'a>>,
    out: View<'a>,
) -> Result<()> {
    run::<2, 3>(target, op, [a.into(), b.into()], out, Location::caller())
}

/// `out` is the op of one to four operands; otherwise as [`binary`].
///
/// # Errors
/// As [`binary`].
#[track_caller]
pub fn nary(target: Target<'_>, op: &'static Op, args: &[Arg<'_>], out: View<'_>) -> Result<()> {
    let location = Location::caller();
    match *args {
        [a] => run::<1, 2>(target, op, [a], out, location),
        [a, b] => run::<2, 3>(target, op, [a, b], out, location),
        [a, b, c] => run::<3, 4>(target, op, [a, b, c], out, location),
        [a, b, c, d] => run::<4, 5>(target, op, [a, b, c, d], out, location),
        _ => Err(Error::invalid(op.name, format!("takes 1 to 4 operands, not {}", args.len()))),
    }
}

/// Runs an op of `I` inputs, with the result `N` operands.
fn run<const I: usize, const N: usize>(
    target: Target<'_>,
    op: &'static Op,
    args: [Arg<'_>; I],
    out: View<'_>,
    location: &'static Location<'static>,
) -> Result<()> {
    if op.inputs.len() != I {
        let reason = format!("takes {} operands, not {I}", op.inputs.len());
        return Err(Error::invalid(op.name, reason));
    }
    let dtype = check(op, &args, out)?;
    let mut numbers = Numbers { which: 0, number: [Number::default(); I] };
    let mut views = [out; N];
    for (k, arg) in args.into_iter().enumerate() {
        match arg {
            Arg::Tensor(view) => views[k] = view,
            Arg::Number(value) => {
                let dtype = if op.inputs[k].is_bool { DType::Bool } else { dtype };
                numbers.which |= 1 << k;
                numbers.number[k] = Number::new(value, dtype, op.output == Output::Bool);
            }
        }
    }
    let host = (op.host)(dtype).ok_or(Error::UnsupportedDType { op: op.name, dtype })?;
    let described = iter::Op {
        name: op.name,
        program: (&op.program, op.dtypes.variant(dtype)),
        host,
        vector: op.vector(dtype),
        location,
    };
    // SAFETY: kernels and loops are those of the dtypes just checked; inputs that are numbers are not
    // touched, and are said so.
    unsafe { iter::run_some(target, &described, views, numbers.which, numbers) }
}

/// The dtype that the op is computed in.
fn check(op: &Op, args: &[Arg<'_>], out: View<'_>) -> Result<DType> {
    let mismatch = |expected, actual| Err(Error::DTypeMismatch { op: op.name, expected, actual });
    let mut dtype = None;
    for (input, arg) in op.inputs.iter().zip(args) {
        let Arg::Tensor(view) = arg else { continue };
        if input.is_bool {
            if view.dtype != DType::Bool {
                return mismatch(DType::Bool, view.dtype);
            }
            continue;
        }
        let expected = *dtype.get_or_insert(view.dtype);
        if view.dtype != expected {
            return mismatch(expected, view.dtype);
        }
    }
    // Where all are numbers, the result says it.
    let dtype = match dtype {
        Some(dtype) => dtype,
        None if op.output == Output::Same => out.dtype,
        None => return Err(Error::invalid(op.name, "needs a tensor among its operands".into())),
    };
    let (compute, result) = op.dtypes(dtype)?;
    if compute != dtype {
        return Err(Error::UnsupportedDType { op: op.name, dtype });
    }
    if out.dtype != result {
        return mismatch(result, out.dtype);
    }
    for (input, arg) in op.inputs.iter().zip(args) {
        if let Arg::Number(value) = arg
            && value.category() == Category::Float
            && !dtype.is_float()
            && !input.is_bool
        {
            return Err(Error::CannotCast { op: op.name, from: DType::F32, to: dtype });
        }
    }
    Ok(dtype)
}
