//! Applies elementwise ops to operands: tensors and numbers.

use std::borrow::Cow;

use smallvec::SmallVec;
use warpline_kernels::elementwise::{self as table, Arg, Backward, Op, OperandRule};
use warpline_runtime::{Layout, Sizes, Target, View, broadcast};

use super::promote::combine;
use crate::amp::{Policy, cast_operands, casts};
use crate::autograd::{elementwise, elementwise_as, finish_in_place, no_grad, prepare_in_place};
use crate::called::Called;
use crate::exec::check_together;
use crate::{CallScope, Category, DType, Error, ErrorKind, Result, Scalar, Tensor};

/// An operand of an op: a tensor or a number.
#[derive(Clone, Copy, Debug)]
pub enum TensorOrScalar<'a> {
    /// A tensor.
    Tensor(&'a Tensor),
    /// A number. The number changes the dtype of the result only if its category (bool, integer, float) is
    /// higher than that of the tensors.
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

/// An operand of a method: a tensor by reference, or a number.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an operand of an op",
    label = "expected a tensor by reference, as in `a.eq(&b)`, or a number"
)]
pub trait IntoOperand<'a> {
    /// Returns the operand.
    fn into_operand(self) -> TensorOrScalar<'a>;
}

#[diagnostic::do_not_recommend]
impl<'a, T: Into<TensorOrScalar<'a>>> IntoOperand<'a> for T {
    fn into_operand(self) -> TensorOrScalar<'a> {
        self.into()
    }
}

/// Applies an elementwise op and records its gradient. The op is an entry of [`table`](table::table), or of
/// another crate's [`elementwise_ops!`](warpline_kernels::elementwise_ops). If the op has a condition, as
/// `where_cond` does, the condition is the first operand.
///
/// ```
/// use warpline::{apply_elementwise, tensor};
/// use warpline_kernels::elementwise::ADD;
///
/// let x = tensor([1f32, 2.0], ())?;
/// let sum = apply_elementwise(&ADD, &[(&x).into(), 1.into()])?;
/// assert_eq!(sum.to_vec::<f32>()?, [2.0, 3.0]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if `operands` does not have as many elements as the op has inputs, or if no operand
/// is a tensor. [`ErrorKind::DTypeMismatch`] if a condition is not boolean. [`ErrorKind::CannotCast`] if an operand is
/// a float number and the op computes in integers. Otherwise the same as [`Tensor::add`].
#[track_caller]
pub fn apply_elementwise(op: &'static Op, operands: &[TensorOrScalar<'_>]) -> Result<Tensor> {
    apply(op, operands, common_dtype_of(op, operands))
}

/// Returns the dtype to which operands are promoted (`torch.result_type`). Numbers and tensors without
/// dimensions affect it only if their category (bool, integer, float) is higher.
pub(crate) fn common_dtype(operands: &[TensorOrScalar<'_>]) -> DType {
    let (mut full, mut single, mut number) = (None, None, None);
    for operand in operands {
        let (kind, dtype) = match operand {
            TensorOrScalar::Tensor(t) if t.dim() > 0 => (&mut full, t.dtype()),
            TensorOrScalar::Tensor(t) => (&mut single, t.dtype()),
            TensorOrScalar::Scalar(s) => (&mut number, s.default_dtype()),
        };
        *kind = Some(kind.map_or(dtype, |other: DType| other.promote(dtype)));
    }
    let kinds = [full, single, number].into_iter().flatten();
    kinds.rev().reduce(|low, high| combine(high, low)).unwrap_or(DType::F32)
}

/// Returns the dtype to which the operands of an op are promoted. A condition does not affect it.
pub(crate) fn common_dtype_of(op: &'static Op, operands: &[TensorOrScalar<'_>]) -> DType {
    common_dtype(operands.get(usize::from(op.is_condition(0))..).unwrap_or_default())
}

/// The checked operands of an op.
struct CheckedOperands<'a, 'o> {
    /// The operands. Tensors that count as numbers ([`counts_as_number`]) are replaced by their values.
    inputs: Cow<'o, [TensorOrScalar<'a>]>,
    /// The first of the tensors that are passed to the kernel.
    first: &'a Tensor,
    /// The sizes to which the tensors broadcast. `None` if all tensors have the same sizes.
    broadcast: Option<Sizes>,
    /// The dtype to which the operands are promoted.
    common: DType,
    result: DType,
    /// The tensor on whose device the op runs.
    main: &'a Tensor,
}

/// The layout of each operand that has to be broadcast. Empty in the common case without broadcasting,
/// because layouts are large.
type Layouts = Vec<Option<Layout>>;

impl<'a, 'o> CheckedOperands<'a, 'o> {
    // Inlined, because a function that returns this large struct would copy it.
    #[inline(always)]
    #[track_caller]
    fn new(op: &'static Op, operands: &'o [TensorOrScalar<'a>], common: DType) -> Result<Self> {
        check_no_bools(op, operands)?;
        let (compute, result) = op.dtypes(common)?;
        let tensors = || {
            operands.iter().enumerate().filter_map(|(k, operand)| match operand {
                TensorOrScalar::Tensor(tensor) => Some((k, *tensor)),
                TensorOrScalar::Scalar(_) => None,
            })
        };
        let Some((place, main)) = tensors().find(|(_, t)| t.is_cuda()).or_else(|| tensors().next())
        else {
            return Err(Error::invalid(op.name(), "needs a tensor among its operands"));
        };
        let mut inputs = Cow::Borrowed(operands);
        let (mut first, mut common_sizes) = (None::<&Tensor>, None::<Sizes>);
        for (k, operand) in operands.iter().enumerate() {
            let dtype = if op.is_condition(k) { DType::Bool } else { compute };
            match *operand {
                TensorOrScalar::Scalar(number) => {
                    check_divisor(op, k, number, dtype)?;
                    check_fits(op.name(), number, dtype)?;
                }
                TensorOrScalar::Tensor(t)
                    if counts_as_number(t, main, common, || {
                        k == 1 && op.has_rule(OperandRule::WideSecond)
                    }) =>
                {
                    // Convert as PyTorch does. An integer tensor wraps in a smaller dtype, whereas a number
                    // that does not fit would be an error. Kernels with two operands read a float without
                    // rounding it to the dtype; `lerp` and `addcmul` convert it first.
                    let converts = dtype.category() == Category::Int || operands.len() > 2;
                    let number =
                        if converts { t.in_dtype(dtype)?.to_scalar() } else { t.to_scalar() };
                    inputs.to_mut()[k] = TensorOrScalar::Scalar(number?);
                }
                TensorOrScalar::Tensor(t) => {
                    if k < place {
                        check_together(op.name(), t, main)?;
                    } else if k > place {
                        check_together(op.name(), main, t)?;
                    }
                    let sizes = common_sizes.as_deref().or_else(|| first.map(Tensor::size));
                    match sizes {
                        Some(sizes) if !sizes.iter().eq(t.size()) => {
                            common_sizes = Some(broadcast(sizes, t.size()).of(op.name())?);
                        }
                        _ => {}
                    }
                    first.get_or_insert(t);
                }
            }
        }
        let first = first.unwrap_or(main);
        Ok(Self { inputs, first, broadcast: common_sizes, common, result, main })
    }

    /// Returns the sizes of the result.
    fn sizes(&self) -> &[usize] {
        self.broadcast.as_deref().unwrap_or(self.first.size())
    }

    #[track_caller]
    fn layouts(&self, sizes: &[usize]) -> Result<Layouts> {
        if self.broadcast.is_none() && self.first.size().iter().eq(sizes) {
            return Ok(Layouts::new());
        }
        let layout = |input: &TensorOrScalar<'_>| match input {
            TensorOrScalar::Tensor(tensor) if *tensor.size() != *sizes => {
                tensor.layout().expand(sizes).map(Some)
            }
            _ => Ok(None),
        };
        self.inputs.iter().map(layout).collect()
    }

    #[inline]
    #[track_caller]
    fn run(
        &self,
        op: &'static Op,
        target: Target<'_>,
        layouts: &Layouts,
        out: &Tensor,
    ) -> Result<()> {
        let mut args: SmallVec<[Arg<'_>; 4]> = SmallVec::new();
        for (k, input) in self.inputs.iter().enumerate() {
            args.push(match input {
                TensorOrScalar::Tensor(tensor) => {
                    let layout = layout_of(tensor, layouts, k);
                    Arg::Tensor(View { layout, ..tensor.as_view() })
                }
                TensorOrScalar::Scalar(number) => Arg::Number(*number),
            });
        }
        table::apply(target, op, self.common, &args, out.as_view())
    }
}

/// Returns the layout of operand `k`.
fn layout_of<'a>(tensor: &'a Tensor, layouts: &'a Layouts, k: usize) -> &'a Layout {
    layouts.get(k).and_then(Option::as_ref).unwrap_or(tensor.layout())
}

/// Returns the result of `$call` from the calling function if autocast applies to the op, as `autocast_operands!` does.
/// `$call` then uses the converted operands.
macro_rules! autocast_elementwise {
    ($op:ident, [$operands:ident, $common:ident] => $call:expr) => {
        if casts()
            && let Some(policy) = region_policy($op, $operands)
            && let Some((cast, _closed)) =
                cast_operands([policy, Policy::Keep], &tensors_of($operands))?
        {
            let is_cast = cast.iter().any(Option::is_some);
            let with = $operands.iter().zip(&cast).map(|(operand, cast)| match cast {
                Some(cast) => TensorOrScalar::Tensor(cast),
                None => *operand,
            });
            let $operands = &*with.collect::<SmallVec<[TensorOrScalar<'_>; 4]>>();
            let $common = if is_cast { common_dtype_of($op, $operands) } else { $common };
            return $call;
        }
    };
}

/// Returns an op's policy on GPUs. A number divided by a tensor has the policy of the reciprocal. `None` if the op keeps
/// its operands.
fn region_policy(op: &Op, operands: &[TensorOrScalar<'_>]) -> Option<Policy> {
    let policy = match operands {
        [TensorOrScalar::Scalar(_), _] if std::ptr::eq(op, &table::DIV) => {
            table::RECIPROCAL.autocast()
        }
        _ => op.autocast(),
    };
    (policy != Policy::Keep).then_some(policy)
}

fn tensors_of<'a>(operands: &[TensorOrScalar<'a>]) -> SmallVec<[Option<&'a Tensor>; 4]> {
    let tensor = |operand: &TensorOrScalar<'a>| match *operand {
        TensorOrScalar::Tensor(tensor) => Some(tensor),
        TensorOrScalar::Scalar(_) => None,
    };
    operands.iter().map(tensor).collect()
}

/// Applies an op to operands promoted to `common`. The result is a new tensor.
#[track_caller]
pub(crate) fn apply(
    op: &'static Op,
    operands: &[TensorOrScalar<'_>],
    common: DType,
) -> Result<Tensor> {
    autocast_elementwise!(op, [operands, common] => apply(op, operands, common));
    let inputs = CheckedOperands::new(op, operands, common)?;
    let layouts = inputs.layouts(inputs.sizes())?;
    let mut tensors: SmallVec<[&Layout; 4]> = SmallVec::new();
    for (k, input) in inputs.inputs.iter().enumerate() {
        if let TensorOrScalar::Tensor(tensor) = input {
            tensors.push(layout_of(tensor, &layouts, k));
        }
    }
    let exec = inputs.main.exec()?;
    let out = exec.empty_for(&tensors, inputs.result).of(op.name())?;
    inputs.run(op, exec.target(), &layouts, &out)?;
    elementwise(op, operands, out)
}

/// Applies an op to operands promoted to `common`. Writes the result to `a`, which may be one of the
/// operands.
#[track_caller]
pub(super) fn apply_in_place(
    op: &'static Op,
    name: &'static str,
    a: &Tensor,
    operands: &[TensorOrScalar<'_>],
    common: DType,
) -> Result<()> {
    apply_in_place_as(op, op.backward(), name, a, operands, common)
}

/// Computes the values of `op` like [`apply`], and records the gradients of `backward`.
#[track_caller]
pub(super) fn apply_as(
    op: &'static Op,
    backward: &'static Backward,
    operands: &[TensorOrScalar<'_>],
    common: DType,
) -> Result<Tensor> {
    autocast_elementwise!(op, [operands, common] => apply_as(op, backward, operands, common));
    let out = no_grad(|| apply(op, operands, common)).of(backward.name())?;
    elementwise_as(backward, operands, out)
}

/// Computes the values of `op` like [`apply_in_place`], and records the gradients of `backward`.
#[track_caller]
pub(super) fn apply_in_place_as(
    op: &'static Op,
    backward: Option<&'static Backward>,
    name: &'static str,
    a: &Tensor,
    operands: &[TensorOrScalar<'_>],
    common: DType,
) -> Result<()> {
    let _call = CallScope::enter(name);
    let (_, result) = op.dtypes(common)?;
    if result.category() > a.dtype().category() {
        return Err(ErrorKind::CannotCast { from: result, to: a.dtype() }.of(name));
    }
    a.as_view().check_writable(name)?;
    for operand in operands {
        if let TensorOrScalar::Tensor(b) = operand
            && *a.size() != *b.size()
            && broadcast(a.size(), b.size())?[..] != *a.size()
        {
            return Err(broadcast_error(a, b));
        }
    }
    let inputs = CheckedOperands::new(op, operands, common)?;
    if !std::ptr::eq(a, inputs.main) {
        check_together(name, a, inputs.main)?;
    }
    // The kernel may write to `a` directly if each operand is `a` itself or does not share its storage.
    // Otherwise it writes to a temporary result.
    let may_overwrite = inputs.inputs.iter().all(|input| match input {
        TensorOrScalar::Tensor(b) => may_overwrite(a, b),
        TensorOrScalar::Scalar(_) => true,
    });
    let record = prepare_in_place(backward, name, a, operands)?;
    let (exec, layouts) = (a.exec()?, inputs.layouts(a.size())?);
    if may_overwrite {
        inputs.run(op, exec.target(), &layouts, a)?;
    } else {
        let out = exec.empty(a.size(), inputs.result)?;
        inputs.run(op, exec.target(), &layouts, &out)?;
        a.overwrite(&out, false)?;
    }
    finish_in_place(record)
}

/// Returns whether a tensor without dimensions is passed to the kernel as a number. This is the case for a CPU
/// tensor among GPU tensors, as in PyTorch. If all tensors are on the CPU, it is the case among half-width
/// floats with dimensions, if the op reads the tensor in `float32` (`is_wide`).
#[inline]
pub(crate) fn counts_as_number(
    t: &Tensor,
    main: &Tensor,
    common: DType,
    is_wide: impl FnOnce() -> bool,
) -> bool {
    if t.dim() > 0 || t.is_cuda() || !t.storage().runtime().same_as(main.storage().runtime()) {
        return false;
    }
    main.is_cuda() || main.dim() > 0 && matches!(common, DType::F16 | DType::BF16) && is_wide()
}

/// Fails if an op with [`OperandRule::RefusesBools`] has boolean operands.
#[track_caller]
fn check_no_bools(op: &'static Op, operands: &[TensorOrScalar<'_>]) -> Result<()> {
    let is_bool = |operand: &TensorOrScalar<'_>| match operand {
        TensorOrScalar::Tensor(tensor) => tensor.dtype() == DType::Bool,
        TensorOrScalar::Scalar(number) => number.category() == Category::Bool,
    };
    if op.has_rule(OperandRule::RefusesBools) && operands.iter().any(is_bool) {
        return Err(ErrorKind::UnsupportedDType { dtype: DType::Bool }.of(op.name()));
    }
    Ok(())
}

/// Fails if operand `k` is a divisor of integers that is 0, or an exponent of integers that is negative.
#[track_caller]
fn check_divisor(op: &'static Op, k: usize, number: Scalar, compute: DType) -> Result<()> {
    if k != 1 || compute.is_float() {
        return Ok(());
    }
    if number.to_i64() == 0 && op.has_rule(OperandRule::DividesIntegers) {
        return Err(Error::invalid(op.name(), "integers cannot be divided by zero"));
    }
    if number.to_i64() < 0 && op.has_rule(OperandRule::RaisesIntegers) {
        let reason = "integers to negative integer powers are not allowed; convert them to floats";
        return Err(Error::invalid(op.name(), reason));
    }
    Ok(())
}

/// Fails if an integer dtype cannot represent an integer. For `uint8`, negative numbers down to -255 wrap, as
/// in PyTorch.
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

/// Returns whether a kernel may overwrite `a` while it reads `b`: either their storages differ, or each element
/// of `b` is the element of `a` with the same index.
fn may_overwrite(a: &Tensor, b: &Tensor) -> bool {
    !a.storage().same_as(b.storage()) || (a.layout() == b.layout() && a.dtype() == b.dtype())
}

#[track_caller]
fn broadcast_error(a: &Tensor, b: &Tensor) -> Error {
    match broadcast(a.size(), b.size()) {
        Err(error) => error,
        Ok(sizes) => Error::shape(
            "in-place",
            format!(
                "output with shape {:?} doesn't match the broadcast shape {:?}",
                a.size(),
                &sizes[..]
            ),
        ),
    }
}

/// Rounds a number to a dtype.
pub(crate) fn rounded(number: Scalar, dtype: DType) -> Scalar {
    let single = number.to_f64() as f32;
    match dtype {
        DType::F16 => Scalar::Float(half::f16::from_f32(single).into()),
        DType::BF16 => Scalar::Float(half::bf16::from_f32(single).into()),
        DType::F32 => Scalar::Float(single.into()),
        other => as_filled(number, other),
    }
}

/// Converts a number as `fill_` does. Truncates a float for an integer dtype.
pub(super) fn as_filled(number: Scalar, dtype: DType) -> Scalar {
    match dtype.category() {
        Category::Bool => Scalar::Bool(number.to_bool()),
        Category::Int => Scalar::Int(number.to_i64()),
        Category::Float => number,
    }
}
