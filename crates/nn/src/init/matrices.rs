//! Initialisers of matrices and filters.

use warpline::{DType, IntoOptions, OrDefault, Result, Tensor, eye, randn, randperm, zeros};

use super::shape_error;

/// Fills a matrix with the identity.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if the tensor does not have two dimensions.
#[track_caller]
pub fn eye_(tensor: &Tensor) -> Result<&Tensor> {
    let &[rows, columns] = tensor.size() else {
        return Err(shape_error("eye_", "the identity is a matrix", tensor));
    };
    let identity = eye((rows, columns), (tensor.dtype(), tensor.device()))?;
    tensor.detach().copy_(&identity, ())?;
    Ok(tensor)
}

/// Fills the weight of a convolution, `[out, in, ..]`, so that it passes channels on unchanged: a one in the middle of
/// each filter `(i, i)`, zeros elsewhere.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if the tensor does not have three to five
/// dimensions.
#[track_caller]
pub fn dirac_(tensor: &Tensor) -> Result<&Tensor> {
    let sizes = tensor.size();
    if !(3..=5).contains(&sizes.len()) {
        return Err(shape_error("dirac_", "a filter has three to five dimensions", tensor));
    }
    let host = zeros(sizes, DType::F64)?;
    for channel in 0..sizes[0].min(sizes[1]) {
        let mut place = host.select(0, channel as isize)?.select(0, channel as isize)?;
        for size in &sizes[2..] {
            place = place.select(0, (size / 2) as isize)?;
        }
        place.fill_(1.0)?;
    }
    tensor.detach().copy_(&host, ())?;
    Ok(tensor)
}

/// Fills a matrix with a (semi-)orthogonal matrix times `gain`. A tensor with more than two dimensions is treated as a
/// matrix whose columns are all dimensions but the first, flattened. Default of `gain`: 1.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if the tensor has fewer than two dimensions;
/// errors of [`randn`].
#[track_caller]
pub fn orthogonal_(tensor: &Tensor, gain: impl IntoOptions<OrDefault<f64>>) -> Result<&Tensor> {
    let gain = gain.into_options().or(1.0);
    if tensor.dim() < 2 {
        return Err(shape_error("orthogonal_", "two dimensions or more are needed", tensor));
    }
    if tensor.numel() == 0 {
        return Ok(tensor);
    }
    let rows = tensor.size()[0];
    let columns = tensor.numel() / rows;
    let options = (tensor.dtype(), tensor.device());
    let drawn = randn([rows, columns], options)?;
    let drawn = if rows < columns { drawn.t()? } else { drawn };
    let mut vectors: Vec<Vec<f64>> = drawn
        .t()?
        .to(DType::F64)?
        .to_vec::<f64>()?
        .chunks(rows.max(columns))
        .map(<[f64]>::to_vec)
        .collect();
    orthonormalise(&mut vectors);
    let q = Tensor::from_vec(vectors.concat(), [rows.min(columns), rows.max(columns)], ())?;
    let q = if rows < columns { q } else { q.t()? };
    let q = q.reshape(tensor.size())?;
    tensor.detach().copy_(&q, ())?.mul_(gain)?;
    Ok(tensor)
}

/// Computes the Q of a QR decomposition whose R has a positive diagonal: subtracts from each vector its projections on
/// the vectors before it (Gram-Schmidt). Does so twice, because the first pass leaves rounding errors.
fn orthonormalise(vectors: &mut [Vec<f64>]) {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    for i in 0..vectors.len() {
        let (before, rest) = vectors.split_at_mut(i);
        let own = &mut rest[0];
        for _ in 0..2 {
            for other in before.iter() {
                let part = dot(own, other);
                own.iter_mut().zip(other).for_each(|(x, y)| *x -= part * y);
            }
        }
        let length = dot(own, own).sqrt();
        own.iter_mut().for_each(|x| *x /= length);
    }
}

/// Fills a matrix from the normal distribution with mean 0 and standard deviation `std`, then sets random elements of
/// each column to zero: the fraction `sparsity` of the rows, rounded up. Default of `std`: 0.01.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if the tensor does not have two dimensions;
/// errors of [`Tensor::normal_`].
#[track_caller]
pub fn sparse_(
    tensor: &Tensor,
    sparsity: f64,
    std: impl IntoOptions<OrDefault<f64>>,
) -> Result<&Tensor> {
    let std = std.into_options().or(0.01);
    let &[rows, columns] = tensor.size() else {
        return Err(shape_error("sparse_", "only matrices are supported", tensor));
    };
    let zeros = ((sparsity * rows as f64).ceil() as usize).min(rows);
    tensor.detach().normal_((0.0, std))?;
    let mut mask = vec![1f64; rows * columns];
    for column in 0..columns {
        for row in &randperm(rows, "cpu")?.to_vec::<i64>()?[..zeros] {
            mask[*row as usize * columns + column] = 0.0;
        }
    }
    let mask =
        Tensor::from_vec(mask, [rows, columns], ())?.to((tensor.dtype(), tensor.device()))?;
    tensor.detach().mul_(&mask)?;
    Ok(tensor)
}
