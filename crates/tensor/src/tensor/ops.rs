//! Arithmetic and comparisons, with operators.

use std::panic::Location;

use warpline_kernels::elementwise::{self as table, Arg, Op};
use warpline_runtime::{View, broadcast};

use super::promote::{result_type, result_type_scalar};
use crate::autograd::{elementwise, finish_in_place, no_grad, prepare_in_place};
use crate::called::Called;
use crate::exec::check_together;
use crate::{Category, DType, Error, Result, Scalar, Tensor};

/// The other operand of a binary op: a tensor or a number.
#[derive(Clone, Copy, Debug)]
pub enum TensorOrScalar<'a> {
    /// A tensor.
    Tensor(&'a Tensor),
    /// A number, which changes the tensor's dtype only if its category is higher.
    Scalar(Scalar),
}

impl<'a> From<&'a Tensor> for TensorOrScalar<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self::Tensor(tensor)
    }
}

impl<S: Into<Scalar>> From<S> for TensorOrScalar<'_> {
    fn from(number: S) -> Self {
        Self::Scalar(number.into())
    }
}

/// `a op b` of two tensors, into a new one.
#[track_caller]
pub(crate) fn tensors(op: &'static Op, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    elementwise(op, &[a.into(), b.into()], of_tensors(op, a, b)?)
}

#[track_caller]
fn of_tensors(op: &'static Op, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let common = result_type(a, b);
    check_bool_sub(op, a.dtype() == DType::Bool || b.dtype() == DType::Bool)?;
    if a.is_cuda() != b.is_cuda() && a.storage().runtime().same_as(b.storage().runtime()) {
        // As in PyTorch, a CPU tensor without dimensions counts as a number beside a GPU's tensor.
        if !b.is_cuda() && b.dim() == 0 {
            return with_scalar(op, a, number_of(b, op, common)?, common, false);
        }
        if !a.is_cuda() && a.dim() == 0 {
            return with_scalar(op, b, number_of(a, op, common)?, common, true);
        }
    }
    check_together(op.name(), a, b)?;
    if is_unrounded(op, a, b, common) {
        return with_scalar(op, a, b.to_scalar()?, common, false);
    }
    let (_, result) = op.dtypes(common)?;
    let exec = a.exec()?;
    if a.size() == b.size() {
        let out = exec.empty_for(&[a.layout(), b.layout()], result).of(op.name())?;
        let args = [a.as_view().into(), b.as_view().into()];
        table::apply(exec.target(), op, common, &args, out.as_view())?;
        return Ok(out);
    }
    let sizes = broadcast(a.size(), b.size()).of(op.name())?;
    let (layout_a, layout_b) = (a.layout().expand(&sizes)?, b.layout().expand(&sizes)?);
    let out = exec.empty_for(&[&layout_a, &layout_b], result).of(op.name())?;
    let a = View { layout: &layout_a, ..a.as_view() };
    let b = View { layout: &layout_b, ..b.as_view() };
    table::apply(exec.target(), op, common, &[a.into(), b.into()], out.as_view())?;
    Ok(out)
}

/// Whether `b` of `a op b` on the CPU is a tensor without dimensions that is not rounded to the halves of `a`. PyTorch's CPU
/// kernels of `mul` and `div` read such an operand in `f32`; other ops round it first.
fn is_unrounded(op: &'static Op, a: &Tensor, b: &Tensor, common: DType) -> bool {
    let halves = matches!(common, DType::F16 | DType::BF16);
    halves
        && a.dim() > 0
        && b.dim() == 0
        && !b.is_cuda()
        && [table::MUL.name(), table::DIV.name()].contains(&op.name())
}

/// The element of a CPU tensor without dimensions. It counts as a number, but wraps in a smaller
/// integer dtype as other tensors do, where a number would be refused.
#[track_caller]
fn number_of(tensor: &Tensor, op: &'static Op, common: DType) -> Result<Scalar> {
    let (compute, _) = op.dtypes(common)?;
    if compute.category() == Category::Int {
        return tensor.in_dtype(compute)?.to_scalar();
    }
    tensor.to_scalar()
}

/// `a op number`, or `number op a` if `reversed`, of operands that meet in `common`.
#[track_caller]
fn with_scalar(
    op: &'static Op,
    a: &Tensor,
    number: Scalar,
    common: DType,
    reversed: bool,
) -> Result<Tensor> {
    let (compute, result) = op.dtypes(common)?;
    check_fits(op.name(), number, compute)?;
    let exec = a.exec()?;
    let out = exec.empty_for(&[a.layout()], result).of(op.name())?;
    let (a, number) = (Arg::from(a.as_view()), Arg::from(number));
    let args = if reversed { [number, a] } else { [a, number] };
    table::apply(exec.target(), op, common, &args, out.as_view())?;
    Ok(out)
}

#[track_caller]
pub(super) fn apply(op: &'static Op, a: &Tensor, b: TensorOrScalar<'_>) -> Result<Tensor> {
    match b {
        TensorOrScalar::Tensor(b) => tensors(op, a, b),
        TensorOrScalar::Scalar(b) => scalar_op(op, a, b, false),
    }
}

#[track_caller]
pub(super) fn scalar_op(op: &'static Op, a: &Tensor, b: Scalar, reversed: bool) -> Result<Tensor> {
    let is_bool = a.dtype() == DType::Bool || b.category() == Category::Bool;
    check_bool_sub(op, is_bool)?;
    if !reversed {
        check_number(op, b, result_type_scalar(a, b))?;
    }
    let out = with_scalar(op, a, b, result_type_scalar(a, b), reversed)?;
    let operands = if reversed { [b.into(), a.into()] } else { [a.into(), b.into()] };
    elementwise(op, &operands, out)
}

#[track_caller]
fn check_bool_sub(op: &'static Op, is_bool: bool) -> Result<()> {
    if op.name() == table::SUB.name() && is_bool {
        return Err(Error::UnsupportedDType {
            location: Location::caller(),
            op: "sub",
            dtype: DType::Bool,
        });
    }
    Ok(())
}

/// Refuses a number that an op on integers has no result for.
#[track_caller]
fn check_number(op: &'static Op, number: Scalar, common: DType) -> Result<()> {
    if common.is_float() {
        return Ok(());
    }
    let divides = [&table::FLOOR_DIVIDE, &table::DIV_TRUNC, &table::REMAINDER, &table::FMOD];
    if number.to_i64() == 0 && divides.iter().any(|d| d.name() == op.name()) {
        return Err(Error::invalid(op.name(), "integers cannot be divided by zero".into()));
    }
    if number.to_i64() < 0 && op.name() == table::POW.name() {
        let reason = "integers to negative integer powers are not allowed; convert them to floats";
        return Err(Error::invalid(op.name(), reason.into()));
    }
    Ok(())
}

/// Refuses an integer that an integer dtype cannot hold. Negative ones wrap in unsigned dtypes
/// down to the largest value's negative, as in PyTorch.
#[track_caller]
pub(super) fn check_fits(op: &'static str, number: Scalar, dtype: DType) -> Result<()> {
    let Scalar::Int(v) = number else { return Ok(()) };
    let range = match dtype {
        DType::U8 => -255..=255,
        DType::I8 => i64::from(i8::MIN)..=i8::MAX.into(),
        DType::I16 => i64::from(i16::MIN)..=i16::MAX.into(),
        DType::I32 => i64::from(i32::MIN)..=i32::MAX.into(),
        _ => return Ok(()),
    };
    if range.contains(&v) {
        return Ok(());
    }
    Err(Error::invalid(
        op,
        format!("the value {v} cannot be converted to {dtype} without overflow"),
    ))
}

/// Whether elements of `b` may be overwritten with those of `a`: each is the same in both, or none is.
/// Any other overlap goes through a copy.
pub(super) fn in_step(a: &Tensor, b: &Tensor) -> bool {
    !a.storage().same_as(b.storage()) || (a.layout() == b.layout() && a.dtype() == b.dtype())
}

/// `a op= b`.
#[track_caller]
fn in_place(op: &'static Op, name: &'static str, a: &Tensor, b: TensorOrScalar<'_>) -> Result<()> {
    let record = prepare_in_place(op, name, a, &[a.into(), b])?;
    into_first(op, name, a, b)?;
    finish_in_place(record)
}

#[track_caller]
fn into_first(
    op: &'static Op,
    name: &'static str,
    a: &Tensor,
    b: TensorOrScalar<'_>,
) -> Result<()> {
    let common = match b {
        TensorOrScalar::Tensor(b) => result_type(a, b),
        TensorOrScalar::Scalar(b) => result_type_scalar(a, b),
    };
    let (compute, result) = op.dtypes(common)?;
    if result.category() > a.dtype().category() {
        return Err(Error::CannotCast {
            location: Location::caller(),
            op: name,
            from: result,
            to: a.dtype(),
        });
    }
    a.as_view().check_writable(name)?;
    if let TensorOrScalar::Tensor(b) = b
        && b.is_cuda()
    {
        // The CPU tensor that counts as a number beside a GPU's cannot be the one written to.
        check_together(name, a, b)?;
    }
    match b {
        TensorOrScalar::Scalar(number) => {
            let is_bool = a.dtype() == DType::Bool || number.category() == Category::Bool;
            check_bool_sub(op, is_bool)?;
            check_number(op, number, compute)?;
            check_fits(name, number, compute)?;
            let exec = a.exec()?;
            let args = [a.as_view().into(), number.into()];
            return table::apply(exec.target(), op, common, &args, a.as_view());
        }
        TensorOrScalar::Tensor(b)
            if in_step(a, b) && a.is_cuda() == b.is_cuda() && !is_unrounded(op, a, b, common) =>
        {
            check_bool_sub(op, a.dtype() == DType::Bool || b.dtype() == DType::Bool)?;
            check_together(name, a, b)?;
            let Ok(layout) = b.layout().expand(a.size()) else {
                return Err(broadcast_error(a, b).of(name));
            };
            let exec = a.exec()?;
            let args = [a.as_view().into(), View { layout: &layout, ..b.as_view() }.into()];
            return table::apply(exec.target(), op, common, &args, a.as_view());
        }
        TensorOrScalar::Tensor(_) => {}
    }
    if let TensorOrScalar::Tensor(b) = b {
        match broadcast(a.size(), b.size()) {
            Ok(sizes) if sizes[..] == *a.size() => {}
            _ => return Err(broadcast_error(a, b).of(name)),
        }
    }
    let result = no_grad(|| apply(op, a, b))?;
    a.overwrite(&result, false)?;
    Ok(())
}

#[track_caller]
pub(super) fn broadcast_error(a: &Tensor, b: &Tensor) -> Error {
    match broadcast(a.size(), b.size()) {
        Err(error) => error,
        Ok(sizes) => Error::ShapeMismatch {
            location: Location::caller(),
            op: "in-place",
            reason: format!(
                "output with shape {:?} doesn't match the broadcast shape {:?}",
                a.size(),
                &sizes[..]
            ),
        },
    }
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident $op:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`Error::BroadcastMismatch`], [`Error::DeviceMismatch`], and what the launch fails
            /// with.
            #[track_caller]
            pub fn $name<'a>(&self, other: impl Into<TensorOrScalar<'a>>) -> Result<Self> {
                apply(&table::$op, self, other.into()).of(stringify!($name))
            }
        )*}

        /// The methods by name.
        pub(super) const METHODS: &[(&str, super::by_name::Binary)] =
            &[$((stringify!($name), |a, b| a.$name(b))),*];
    };
}

methods! {
    /// `self + other`.
    add ADD;
    /// `self - other`; not for bools.
    sub SUB;
    /// `self * other`.
    mul MUL;
    /// `self / other`, a float for integers too.
    div DIV;
    /// The larger of each two elements; NaN if either is.
    maximum MAXIMUM;
    /// The smaller of each two elements; NaN if either is.
    minimum MINIMUM;
    /// Where `self == other`, as bools.
    eq EQ;
    /// Where `self != other`, as bools.
    ne NE;
    /// Where `self < other`, as bools.
    lt LT;
    /// Where `self <= other`, as bools.
    le LE;
    /// Where `self > other`, as bools.
    gt GT;
    /// Where `self >= other`, as bools.
    ge GE;
    /// What [`Tensor::floor_divide`] leaves: of the divisor's sign; not for bools. An integer's by a
    /// tensor's zero is the dividend.
    remainder REMAINDER;
    /// What a quotient that is rounded towards zero leaves: of the dividend's sign; not for bools. An
    /// integer's by a tensor's zero is the dividend.
    fmod FMOD;
    /// The quotient, rounded down; not for bools. Of an integer by a tensor's zero all bits are set.
    floor_divide FLOOR_DIVIDE;
    /// The angle of the point with `self` as ordinate and `other` as abscissa.
    atan2 ATAN2;
    /// The root of the sum of both squares. Floats only.
    hypot HYPOT;
    /// With the sign of `other`.
    copysign COPYSIGN;
    /// The next number towards `other`. `float32` and `float64` only.
    nextafter NEXTAFTER;
    /// `self * log(other)`, 0 where `self` is, unless `other` is NaN.
    xlogy XLOGY;
    /// `log(exp(self) + exp(other))`. Floats only.
    logaddexp LOGADDEXP;
    /// `log2(2 ** self + 2 ** other)`. Floats only.
    logaddexp2 LOGADDEXP2;
    /// 0 below zero, 1 above, `other` at zero.
    heaviside HEAVISIDE;
    /// Whether both are other than zero.
    logical_and LOGICAL_AND;
    /// Whether any is other than zero.
    logical_or LOGICAL_OR;
    /// Whether one is other than zero.
    logical_xor LOGICAL_XOR;
    /// The bits that both have; integers and bools only.
    bitwise_and BITWISE_AND;
    /// The bits that any has; integers and bools only.
    bitwise_or BITWISE_OR;
    /// The bits that one has; integers and bools only.
    bitwise_xor BITWISE_XOR;
    /// Shifted left by `other` bits; 0 of a count that is negative or too large. Integers only.
    bitwise_left_shift LEFT_SHIFT;
    /// Shifted right by `other` bits, its sign filling up; so all of it where the count is negative or too
    /// large. Integers only.
    bitwise_right_shift RIGHT_SHIFT;
    /// The greatest common divisor. Integers only.
    gcd GCD;
    /// The least common multiple. Integers only.
    lcm LCM;
}

macro_rules! in_place_methods {
    ($($(#[$doc:meta])* $name:ident $op:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`Error::CannotCast`] when the result's category is above this tensor's, otherwise
            /// as without the underscore.
            #[track_caller]
            pub fn $name<'a>(&self, other: impl Into<TensorOrScalar<'a>>) -> Result<&Self> {
                in_place(&table::$op, stringify!($name), self, other.into())?;
                Ok(self)
            }
        )*}
    };
}

in_place_methods! {
    /// Adds `other` to each element.
    add_ ADD;
    /// Subtracts `other` from each element; not for bools.
    sub_ SUB;
    /// Multiplies each element by `other`.
    mul_ MUL;
    /// Divides each element by `other`.
    div_ DIV;
    /// Raises each element to a power; not for bools.
    pow_ POW;
    /// [`Tensor::remainder`] in place.
    remainder_ REMAINDER;
    /// [`Tensor::fmod`] in place.
    fmod_ FMOD;
    /// [`Tensor::floor_divide`] in place.
    floor_divide_ FLOOR_DIVIDE;
    /// [`Tensor::atan2`] in place.
    atan2_ ATAN2;
    /// [`Tensor::hypot`] in place.
    hypot_ HYPOT;
    /// [`Tensor::copysign`] in place.
    copysign_ COPYSIGN;
    /// [`Tensor::nextafter`] in place.
    nextafter_ NEXTAFTER;
    /// [`Tensor::xlogy`] in place.
    xlogy_ XLOGY;
    /// [`Tensor::heaviside`] in place.
    heaviside_ HEAVISIDE;
    /// [`Tensor::eq`] in place, as 0 and 1 of this dtype.
    eq_ EQ;
    /// [`Tensor::ne`] in place, as 0 and 1 of this dtype.
    ne_ NE;
    /// [`Tensor::lt`] in place, as 0 and 1 of this dtype.
    lt_ LT;
    /// [`Tensor::le`] in place, as 0 and 1 of this dtype.
    le_ LE;
    /// [`Tensor::gt`] in place, as 0 and 1 of this dtype.
    gt_ GT;
    /// [`Tensor::ge`] in place, as 0 and 1 of this dtype.
    ge_ GE;
    /// [`Tensor::logical_and`] in place, as 0 and 1 of this dtype.
    logical_and_ LOGICAL_AND;
    /// [`Tensor::logical_or`] in place, as 0 and 1 of this dtype.
    logical_or_ LOGICAL_OR;
    /// [`Tensor::logical_xor`] in place, as 0 and 1 of this dtype.
    logical_xor_ LOGICAL_XOR;
    /// [`Tensor::bitwise_and`] in place.
    bitwise_and_ BITWISE_AND;
    /// [`Tensor::bitwise_or`] in place.
    bitwise_or_ BITWISE_OR;
    /// [`Tensor::bitwise_xor`] in place.
    bitwise_xor_ BITWISE_XOR;
    /// [`Tensor::bitwise_left_shift`] in place.
    bitwise_left_shift_ LEFT_SHIFT;
    /// [`Tensor::bitwise_right_shift`] in place.
    bitwise_right_shift_ RIGHT_SHIFT;
    /// [`Tensor::gcd`] in place.
    gcd_ GCD;
    /// [`Tensor::lcm`] in place.
    lcm_ LCM;
}
