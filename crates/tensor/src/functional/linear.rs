//! Affine maps.

use crate::called::Called;
use crate::tensor::composite::signed;
use crate::{Result, Tensor};

/// `input @ weight.T + bias`, of the last dimension (`torch.nn.functional.linear`). `weight` has a row for each feature of
/// the result; as a vector it is one row, and the feature's dimension is not there.
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
/// As [`Tensor::matmul`] and [`Tensor::add`].
#[track_caller]
pub fn linear<'a>(
    input: &Tensor,
    weight: &Tensor,
    bias: impl Into<Option<&'a Tensor>>,
) -> Result<Tensor> {
    let op = "linear";
    let product = match (input.size(), weight.size()) {
        // All rows meet the same matrix: one product of matrices.
        (&[.., width], &[features, own]) if input.dim() > 2 && width == own => {
            let rows = input.size()[..input.dim() - 1].iter().product::<usize>();
            let product = input.reshape([rows, width]).of(op)?.matmul(&weight.t()?).of(op)?;
            let mut sizes = signed(input.size());
            sizes[input.dim() - 1] = features as isize;
            product.reshape(&sizes).of(op)?
        }
        _ => input.matmul(&weight.t().of(op)?).of(op)?,
    };
    match bias.into() {
        None => Ok(product),
        Some(bias) => product.add(bias).of(op),
    }
}
