//! Affine maps.

use std::borrow::Cow;

use smallvec::SmallVec;
use warpline_kernels::elementwise;
use warpline_kernels::matmul::{matmul, matmul_silu_mul};
use warpline_runtime::{Layout, Sizes, Target, View, broadcast};

use super::silu_mul;
use crate::amp::autocast_operands;
use crate::autograd::{Gradients, NodeInputs, OpBackward, record, saved, should_record};
use crate::exec::Exec;
use crate::methods::composite::signed;
use crate::{CallScope, Error, ErrorKind, IntoOptionalTensor, Result, Tensor};

/// `input @ weight.T + bias`, over the last dimension (`torch.nn.functional.linear`). `[.., in]`, a `weight` of
/// `[out, in]` and a `bias` of `[out]` give `[.., out]`. A `weight` of `[in]` gives a result without the last
/// dimension.
///
/// ```
/// # use warpline::{functional::linear, tensor};
/// let (weight, bias) = (tensor([[1f32, 2.0], [3.0, 4.0]], ())?, tensor([0.5f32, 0.0], ())?);
/// let t = linear(&tensor([[1f32, 1.0]], ())?, &weight, &bias)?;
/// assert_eq!(t.to_vec::<f32>()?, [3.5, 7.0]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::OperandDTypes`] if `input`, `weight` and `bias` have different dtypes.
/// [`ErrorKind::ShapeMismatch`] if `bias` does not broadcast to the result. Errors of [`Tensor::t`],
/// [`Tensor::matmul`] and [`Tensor::add`].
#[track_caller]
pub fn linear<'a>(
    input: &Tensor,
    weight: &Tensor,
    bias: impl IntoOptionalTensor<'a>,
) -> Result<Tensor> {
    let op = "linear";
    let _call = CallScope::enter(op);
    let bias = bias.into_optional();
    autocast_operands!(Low, Low, [input, weight; bias] => linear(input, weight, bias));
    if let Some(out) = linear_as_one_node(input, weight, bias)? {
        return Ok(out);
    }
    for (operands, other) in [("input and weight", Some(weight)), ("input and bias", bias)] {
        if let Some(other) = other.filter(|other| other.dtype() != input.dtype()) {
            let (first, second) = (input.dtype(), other.dtype());
            return Err(ErrorKind::OperandDTypes { operands, first, second }.of(op));
        }
    }
    let product = input.matmul(&weight.t()?)?;
    let Some(bias) = bias else { return Ok(product) };
    let (own, of) = (bias.size(), product.size());
    if !broadcast(own, of).is_ok_and(|sizes| *sizes == *of) {
        return Err(Error::shape(op, format!("a bias of {own:?} for a result of {of:?}")));
    }
    product.add(bias)
}

/// [`silu_mul`] of the halves of [`linear`]: the gate and the values of a feed-forward layer of Llama, whose two weights
/// are joined. `[.., in]` and a `weight` of `[2 * out, in]` give `[.., out]`.
///
/// At most sixteen rows of half-width floats on a GPU, as in decoding, take one launch if `in` is a multiple of eight and
/// no operand requires a gradient. Other inputs take two. Both ways give the same elements if the product alone uses the
/// same kernel. PyTorch has no such function; its counterpart is `silu(gate) * up` after
/// `gate, up = torch.nn.functional.linear(input, weight).chunk(2, -1)`.
///
/// ```
/// # use warpline::functional::{linear, linear_silu_mul, silu_mul};
/// # use warpline::tensor;
/// let (x, weight) = (tensor([[1f32, 2.0]], ())?, tensor([[1f32, 0.0], [0.0, 3.0]], ())?);
/// let (gate, up) = (tensor([[1f32]], ())?, tensor([[6f32]], ())?);
/// assert!(linear_silu_mul(&x, &weight)?.equal(&silu_mul(&gate, &up)?)?);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if `weight` is not a matrix with an even number of rows. Errors of [`linear`] and
/// [`silu_mul`].
#[track_caller]
pub fn linear_silu_mul(input: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let op = "linear_silu_mul";
    let _call = CallScope::enter(op);
    autocast_operands!(Low, Low, [input, weight] => linear_silu_mul(input, weight));
    let &[features, _] = weight.size() else { return Err(no_halves(op, weight)) };
    if !features.is_multiple_of(2) {
        return Err(no_halves(op, weight));
    }
    if input.is_cuda() && is_plain(input, weight, None) && !should_record(&[input, weight]) {
        let (out, is_computed) =
            multiply_rows(&input.exec()?, input, weight, features / 2, matmul_silu_mul)?;
        if is_computed {
            return Ok(out);
        }
    }
    let both = linear(input, weight, None)?;
    let half = features / 2;
    silu_mul(&both.narrow(-1, 0, half)?, &both.narrow(-1, half as isize, half)?)
}

#[cold]
#[track_caller]
fn no_halves(op: &'static str, weight: &Tensor) -> Error {
    let reason =
        format!("the weight must be a matrix with an even number of rows, not {:?}", weight.size());
    Error::invalid(op, reason)
}

/// `x1 @ weight[o] @ x2 + bias[o]` for each output `o` (`torch.nn.functional.bilinear`). `[.., in1]`, `[.., in2]`, a
/// `weight` of `[out, in1, in2]` and a `bias` of `[out]` give `[.., out]`.
///
/// ```
/// # use warpline::{functional::bilinear, tensor};
/// let (x1, x2) = (tensor([[1f32, 2.0]], ())?, tensor([[3f32, 4.0]], ())?);
/// let weight = tensor([[[1f32, 0.0], [0.0, 1.0]]], ())?;
/// assert_eq!(bilinear(&x1, &x2, &weight, None)?.to_vec::<f32>()?, [11.0]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::ShapeMismatch`] if the leading sizes of the inputs differ, or the last sizes are not those of `weight`.
/// Errors of [`Tensor::matmul`] and [`Tensor::add`].
#[track_caller]
pub fn bilinear<'a>(
    input1: &Tensor,
    input2: &Tensor,
    weight: &Tensor,
    bias: impl IntoOptionalTensor<'a>,
) -> Result<Tensor> {
    let op = "bilinear";
    let _call = CallScope::enter(op);
    let bias = bias.into_optional();
    autocast_operands!(Widest, KeepAll, [input1, input2, weight; bias] =>
        bilinear(input1, input2, weight, bias));
    let fits = match (input1.size(), input2.size(), weight.size()) {
        ([batch1 @ .., in1], [batch2 @ .., in2], [_, of1, of2]) => {
            (batch1, in1, in2) == (batch2, of1, of2)
        }
        _ => false,
    };
    if !fits {
        let (x1, x2, w) = (input1.size(), input2.size(), weight.size());
        return Err(Error::shape(op, format!("inputs of {x1:?} and {x2:?} for a weight of {w:?}")));
    }
    // [.., 1, 1, in1] @ [out, in1, in2] is [.., out, 1, in2].
    let rows = input1.unsqueeze(-2)?.unsqueeze(-2)?.matmul(weight)?;
    let y = rows.matmul(&input2.unsqueeze(-2)?.unsqueeze(-1)?)?.squeeze(-1)?.squeeze(-1)?;
    match bias {
        Some(bias) => y.add(bias),
        None => Ok(y),
    }
}

/// Computes the result as one node of the graph, which replaces the nodes of a transpose, a product, an addition and
/// two views. Returns `None` if [`is_plain`] is false.
#[track_caller]
fn linear_as_one_node(
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    if !is_plain(input, weight, bias) {
        return Ok(None);
    }
    let (features, exec) = (weight.size()[0], input.exec()?);
    let (out, ()) = multiply_rows(&exec, input, weight, features, matmul)?;
    if let Some(bias) = bias {
        let rows_of_bias = bias.layout().expand(out.size())?;
        let operands = [out.as_view().into(), view(bias, &rows_of_bias).into()];
        elementwise::apply(
            exec.target(),
            &elementwise::ADD,
            input.dtype(),
            &operands,
            out.as_view(),
        )?;
    }
    // The bias comes first, as in PyTorch's `addmm`. The order of inputs decides the order in which gradients
    // are added.
    let inputs: SmallVec<[&Tensor; 3]> = bias.into_iter().chain([input, weight]).collect();
    if !should_record(&inputs) {
        return Ok(Some(out));
    }
    let saved = Affine {
        input: weight.requires_grad().then(|| input.clone()),
        weight: input.requires_grad().then(|| weight.clone()),
        rows: rows(input),
        features,
    };
    // The name of the last node that PyTorch records for the same operands.
    let name = match (input.dim(), bias) {
        (2, None) => "mm",
        (2, Some(_)) => "addmm",
        (_, None) => "unsafe_view",
        (_, Some(_)) => "view",
    };
    Ok(Some(record(name, out, &inputs, saved)?))
}

/// Returns whether the weight is a matrix, the input has at least two dimensions, the sizes fit, and all operands have
/// the same float dtype and device.
fn is_plain(input: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> bool {
    let (&[_, .., width], &[features, own]) = (input.size(), weight.size()) else { return false };
    let alike = |t: &Tensor| {
        t.dtype() == input.dtype()
            && t.device() == input.device()
            && t.storage().runtime().same_as(input.storage().runtime())
    };
    input.dtype().is_float()
        && width == own
        && alike(weight)
        && bias.is_none_or(|bias| alike(bias) && bias.size() == [features])
}

/// Returns the number of rows of a tensor with at least one dimension, as a matrix.
fn rows(input: &Tensor) -> usize {
    input.size()[..input.dim() - 1].iter().product()
}

/// Computes a tensor with rows of `features` elements from the input as a matrix of rows and the transposed weight, with
/// `multiply`, a product of matrices. Also returns the result of `multiply`.
#[track_caller]
fn multiply_rows<R>(
    exec: &Exec<'_>,
    input: &Tensor,
    weight: &Tensor,
    features: usize,
    multiply: impl FnOnce(Target<'_>, View<'_>, View<'_>, View<'_>) -> Result<R>,
) -> Result<(Tensor, R)> {
    let (rows, last) = (rows(input), input.dim() - 1);
    let mut sizes: Sizes = input.size().into();
    let width = std::mem::replace(&mut sizes[last], features);
    let out = exec.empty(&sizes, input.dtype())?;
    let (x, matrix) = match input.layout().view(&[rows, width]) {
        Some(matrix) => (Cow::Borrowed(input), matrix),
        None => (Cow::Owned(input.detach().contiguous()?), Layout::contiguous(&[rows, width])?),
    };
    let (columns, product) =
        (weight.layout().transpose(0, 1)?, Layout::contiguous(&[rows, features])?);
    let (x, columns) = (view(&x, &matrix), view(weight, &columns));
    let result = multiply(exec.target(), x, columns, view(&out, &product))?;
    Ok((out, result))
}

/// Returns the elements of a tensor at the positions of another layout.
fn view<'a>(tensor: &'a Tensor, layout: &'a Layout) -> View<'a> {
    View { layout, ..tensor.as_view() }
}

saved! {
    struct Affine {
        /// Present if the weight requires a gradient.
        input: Option<Tensor>,
        /// Present if the input requires a gradient.
        weight: Option<Tensor>,
        rows: usize,
        features: usize,
    }
}

impl OpBackward for Affine {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        // The bias, if any, is the first input of the node.
        let biased = inputs.len() > 2;
        let grad = grad.reshape([self.rows, self.features])?;
        let of_input = |weight: &Tensor| {
            let x = grad.matmul(weight)?;
            let sizes = inputs.sizes(usize::from(biased));
            if sizes.len() == 2 { Ok(x) } else { x.reshape(signed(sizes)) }
        };
        let of_weight = |input: &Tensor| {
            let width = input.size()[input.dim() - 1];
            grad.t()?.matmul(&input.reshape([self.rows, width])?)
        };
        let of_input = self.weight.as_ref().map(of_input).transpose()?;
        let of_weight = self.input.as_ref().map(of_weight).transpose()?;
        let mut grads = Gradients::new();
        if biased {
            grads.push(inputs.gradient(0, || grad.sum(0))?);
        }
        grads.extend([of_input, of_weight]);
        Ok(grads)
    }
}
