//! Elementwise ops of any number of operands, tensors and numbers.

use std::panic::Location;

use smallvec::SmallVec;
use warpline_kernels::elementwise::{self as table, Arg, Op};
use warpline_runtime::{Layout, Sizes, View, broadcast};

use super::ops::{TensorOrScalar, broadcast_error, check_fits, in_step};
use super::promote::combine;
use crate::autograd::{elementwise, finish_in_place, prepare_in_place};
use crate::called::Called;
use crate::exec::check_together;
use crate::{Category, DType, Error, Result, Scalar, Tensor};

/// The dtype in which operands meet: tensors without dimensions and numbers count only if their
/// category is higher (`torch.result_type`).
pub(super) fn common_dtype(operands: &[TensorOrScalar<'_>]) -> DType {
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

/// The dtype in which the operands of an op meet. A condition does not count.
pub(crate) fn common_dtype_of(op: &'static Op, operands: &[TensorOrScalar<'_>]) -> DType {
    common_dtype(&operands[usize::from(op.is_condition(0))..])
}

/// Operands as an op takes them.
struct Operands<'a> {
    inputs: SmallVec<[Input<'a>; 4]>,
    /// Of all together.
    sizes: Sizes,
    /// The dtype in which they meet, and that of the result.
    common: DType,
    result: DType,
    /// Says where the op runs.
    main: &'a Tensor,
}

enum Input<'a> {
    Tensor(&'a Tensor),
    Number(Scalar),
}

/// How each input lies once it is broadcast; numbers do not.
type Layouts = SmallVec<[Option<Layout>; 4]>;

impl<'a> Operands<'a> {
    /// What meets in `common`.
    #[track_caller]
    fn new(op: &'static Op, operands: &[TensorOrScalar<'a>], common: DType) -> Result<Self> {
        let (compute, result) = op.dtypes(common)?;
        let tensors = || {
            operands.iter().filter_map(|operand| match operand {
                TensorOrScalar::Tensor(tensor) => Some(*tensor),
                TensorOrScalar::Scalar(_) => None,
            })
        };
        let Some(main) = tensors().find(|t| t.is_cuda()).or_else(|| tensors().next()) else {
            return Err(Error::invalid(op.name(), "needs a tensor among its operands".into()));
        };
        let mut inputs = SmallVec::new();
        let mut sizes = Sizes::new();
        for (k, operand) in operands.iter().enumerate() {
            let dtype = if op.is_condition(k) { DType::Bool } else { compute };
            inputs.push(match *operand {
                TensorOrScalar::Scalar(number) => {
                    check_fits(op.name(), number, dtype)?;
                    Input::Number(number)
                }
                // As in PyTorch, a CPU tensor without dimensions counts as a number beside a GPU's.
                TensorOrScalar::Tensor(t)
                    if main.is_cuda()
                        && !t.is_cuda()
                        && t.dim() == 0
                        && t.storage().runtime().same_as(main.storage().runtime()) =>
                {
                    Input::Number(t.in_dtype(dtype)?.to_scalar()?)
                }
                TensorOrScalar::Tensor(t) => {
                    check_together(op.name(), main, t)?;
                    sizes = broadcast(&sizes, t.size()).of(op.name())?;
                    Input::Tensor(t)
                }
            });
        }
        Ok(Self { inputs, sizes, common, result, main })
    }

    #[track_caller]
    fn layouts(&self, sizes: &[usize]) -> Result<Layouts> {
        let layout = |input: &Input<'_>| match input {
            Input::Tensor(tensor) => tensor.layout().expand(sizes).map(Some),
            Input::Number(_) => Ok(None),
        };
        self.inputs.iter().map(layout).collect()
    }

    #[track_caller]
    fn run(&self, op: &'static Op, layouts: &Layouts, out: &Tensor) -> Result<()> {
        let args = self.inputs.iter().zip(layouts).map(|operand| match operand {
            (Input::Tensor(tensor), Some(layout)) => {
                Arg::Tensor(View { layout, ..tensor.as_view() })
            }
            (Input::Tensor(tensor), None) => Arg::Tensor(tensor.as_view()),
            (Input::Number(number), _) => Arg::Number(*number),
        });
        let args: SmallVec<[Arg<'_>; 4]> = args.collect();
        table::apply(out.exec()?.target(), op, self.common, &args, out.as_view())
    }
}

/// The op of operands that meet in `common`, into a new tensor.
#[track_caller]
pub(crate) fn apply(
    op: &'static Op,
    operands: &[TensorOrScalar<'_>],
    common: DType,
) -> Result<Tensor> {
    let inputs = Operands::new(op, operands, common)?;
    let layouts = inputs.layouts(&inputs.sizes)?;
    let tensors: SmallVec<[&Layout; 4]> = layouts.iter().flatten().collect();
    let out = inputs.main.exec()?.empty_for(&tensors, inputs.result).of(op.name())?;
    inputs.run(op, &layouts, &out)?;
    elementwise(op, operands, out)
}

/// The same into `a`, which may be one of the operands.
#[track_caller]
pub(super) fn apply_in_place(
    op: &'static Op,
    name: &'static str,
    a: &Tensor,
    operands: &[TensorOrScalar<'_>],
    common: DType,
) -> Result<()> {
    let (_, result) = op.dtypes(common)?;
    if result.category() > a.dtype().category() {
        return Err(Error::CannotCast {
            location: Location::caller(),
            op: name,
            from: result,
            to: a.dtype(),
        });
    }
    a.as_view().check_writable(name)?;
    for operand in operands {
        if let TensorOrScalar::Tensor(b) = operand
            && broadcast(a.size(), b.size()).of(name)?[..] != *a.size()
        {
            return Err(broadcast_error(a, b).of(name));
        }
    }
    let inputs = Operands::new(op, operands, common).of(name)?;
    check_together(name, a, inputs.main)?;
    // Elements in step may be overwritten; any other overlap goes through a copy.
    let in_step = inputs.inputs.iter().all(|input| match input {
        Input::Tensor(b) => in_step(a, b),
        Input::Number(_) => true,
    });
    let record = prepare_in_place(op, name, a, operands)?;
    if in_step {
        inputs.run(op, &inputs.layouts(a.size())?, a)?;
    } else {
        let out = a.exec()?.empty(a.size(), inputs.result).of(name)?;
        inputs.run(op, &inputs.layouts(a.size())?, &out)?;
        a.overwrite(&out, false)?;
    }
    finish_in_place(record)
}

/// A number as `fill_` would write it: floats lose their fraction among integers.
pub(super) fn as_filled(number: Scalar, dtype: DType) -> Scalar {
    match dtype.category() {
        Category::Bool => Scalar::Bool(number.to_bool()),
        Category::Int => Scalar::Int(number.to_i64()),
        Category::Float => number,
    }
}
