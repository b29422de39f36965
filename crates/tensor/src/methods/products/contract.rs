//! Sums of products of two tensors over shared dimensions.

use smallvec::SmallVec;

#[cfg(doc)]
use crate::ErrorKind;
use crate::amp::autocast_operands;
use crate::methods::composite::signed;
use crate::{CallScope, Error, Integer, IntoDims, IntoOptions, Result, Tensor};

/// The dimensions over which [`Tensor::tensordot`] sums: a number `n` for the last `n` dimensions of the first
/// tensor and the first `n` of the second, a tuple of the dimensions of each tensor, or `()` for 2.
#[derive(Clone, Debug)]
pub struct TensordotDims(Pairing);

#[derive(Clone, Debug)]
enum Pairing {
    Adjacent(isize),
    Listed(SmallVec<[isize; 6]>, SmallVec<[isize; 6]>),
}

impl From<()> for TensordotDims {
    fn from((): ()) -> Self {
        Self(Pairing::Adjacent(2))
    }
}

impl<I: Integer> From<I> for TensordotDims {
    fn from(dims: I) -> Self {
        Self(Pairing::Adjacent(dims.into_isize()))
    }
}

impl<A: IntoDims, B: IntoDims> From<(A, B)> for TensordotDims {
    fn from((own, others): (A, B)) -> Self {
        Self(Pairing::Listed(own.into_dims(), others.into_dims()))
    }
}

impl Tensor {
    /// The sum of products over pairs of dimensions, one of each tensor (`torch.tensordot`). The result has the
    /// remaining dimensions of this tensor, then those of `other`. If `dims` is a number `n`, the last `n`
    /// dimensions of this tensor are paired with the first `n` dimensions of `other`. `dims` may also be a
    /// tuple of two lists, the dimensions of each tensor, or `()`, which means 2.
    ///
    /// ```
    /// # use warpline::ones;
    /// let (a, b) = (ones([2, 3, 4], ())?, ones([3, 4, 5], ())?);
    /// assert_eq!(a.tensordot(&b, ())?.size(), [2, 5]);
    /// assert_eq!(a.tensordot(&b, ([1, 2], [0, 1]))?.i((0, 0))?.item::<f32>()?, 12.0);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] if paired dimensions differ in size. [`ErrorKind::InvalidArgument`] if a
    /// tensor has fewer than `n` dimensions, if a list contains a dimension twice, or if the lists differ in
    /// length. [`ErrorKind::DimOutOfRange`] if a tensor lacks a dimension. Errors of [`Tensor::matmul`].
    #[track_caller]
    pub fn tensordot(&self, other: &Tensor, dims: impl IntoOptions<TensordotDims>) -> Result<Self> {
        let _call = CallScope::enter("tensordot");
        match dims.into_options().0 {
            Pairing::Listed(own, others) => self.contracted(other, &own, &others),
            Pairing::Adjacent(dims) => {
                let least = self.dim().min(other.dim()) as isize;
                if !(0..=least).contains(&dims) {
                    let (own, others) = (self.dim(), other.dim());
                    let reason = format!(
                        "cannot contract {dims} dimensions of tensors with {own} and {others} \
                         dimensions"
                    );
                    return Err(Error::invalid("tensordot", reason));
                }
                let own: SmallVec<[isize; 6]> = (-dims..0).collect();
                let others: SmallVec<[isize; 6]> = (0..dims).collect();
                self.contracted(other, &own, &others)
            }
        }
    }

    #[track_caller]
    fn contracted(&self, other: &Tensor, own: &[isize], others: &[isize]) -> Result<Self> {
        let this = self;
        autocast_operands!(Widest, Keep, [this, other] => this.contracted(other, own, others));
        if own.len() != others.len() {
            let reason = format!("{own:?} and {others:?} differ in length");
            return Err(Error::invalid("tensordot", reason));
        }
        let (free_a, summed_a) = free_and_summed(self, own)?;
        let (free_b, summed_b) = free_and_summed(other, others)?;
        let size = |t: &Tensor, d: &isize| t.size()[*d as usize];
        for (a, b) in summed_a.iter().zip(&summed_b) {
            if size(self, a) != size(other, b) {
                return Err(Error::shape(
                    "tensordot",
                    format!(
                        "contracted dimensions must have the same size, but dimension {a} has size {} and dimension {b} has size {}",
                        size(self, a),
                        size(other, b)
                    ),
                ));
            }
        }
        let sizes: Vec<usize> = (free_a.iter().map(|d| size(self, d)))
            .chain(free_b.iter().map(|d| size(other, d)))
            .collect();
        let rows: usize = free_a.iter().map(|d| size(self, d)).product();
        let columns: usize = free_b.iter().map(|d| size(other, d)).product();
        let inner: usize = summed_a.iter().map(|d| size(self, d)).product();
        let a = self.permute([free_a, summed_a].concat())?.reshape([rows, inner])?;
        let b = other.permute([summed_b, free_b].concat())?.reshape([inner, columns])?;
        a.matmul(&b)?.reshape(signed(&sizes))
    }
}

/// Returns the remaining dimensions, and the dimensions to sum over. Fails if a dimension is named twice.
#[track_caller]
fn free_and_summed(tensor: &Tensor, dims: &[isize]) -> Result<(Vec<isize>, Vec<isize>)> {
    let mut summed = Vec::new();
    for &dim in dims {
        let d = tensor.layout().dim(dim)? as isize;
        if summed.contains(&d) || tensor.dim() == 0 {
            let reason = format!("dim {d} appears several times in {dims:?}");
            return Err(Error::invalid("tensordot", reason));
        }
        summed.push(d);
    }
    let free = (0..tensor.dim() as isize).filter(|d| !summed.contains(d)).collect();
    Ok((free, summed))
}

/// Multiplies two tensors with the same number of dimensions, with broadcasting, and sums over the dimensions `summed`.
/// The result keeps the summed dimensions, with size 1.
#[track_caller]
pub(super) fn sum_of_products(a: &Tensor, b: &Tensor, summed: &[usize]) -> Result<Tensor> {
    let (mut a, mut b) = (a.clone(), b.clone());
    let mut inner = Vec::new();
    for &d in summed {
        match (a.size()[d] != 1, b.size()[d] != 1) {
            (true, true) => inner.push(d),
            (true, false) => a = a.sum_keepdim(d as isize)?.to(a.dtype())?,
            (false, true) => b = b.sum_keepdim(d as isize)?.to(b.dtype())?,
            (false, false) => {}
        }
    }
    if inner.is_empty() {
        return a.mul(&b);
    }
    // Dimensions of both tensors are a batch, dimensions of `a` alone are rows, and all other dimensions are
    // columns.
    let (mut batch, mut rows, mut columns) = (Vec::new(), Vec::new(), Vec::new());
    for d in (0..a.dim()).filter(|d| !inner.contains(d)) {
        match (a.size()[d] != 1, b.size()[d] != 1) {
            (true, true) => batch.push(d),
            (true, false) => rows.push(d),
            _ => columns.push(d),
        }
    }
    let sizes =
        |t: &Tensor, dims: &[usize]| -> Vec<usize> { dims.iter().map(|&d| t.size()[d]).collect() };
    let count = |sizes: &[usize]| sizes.iter().product::<usize>();
    let order = |parts: [&[usize]; 4]| signed(&parts.concat());
    let (batches, m, k, n) = (
        count(&sizes(&a, &batch)),
        count(&sizes(&a, &rows)),
        count(&sizes(&a, &inner)),
        count(&sizes(&b, &columns)),
    );
    let left = a.permute(order([&batch, &rows, &inner, &columns]))?;
    let right = b.permute(order([&batch, &inner, &columns, &rows]))?;
    let product = if batch.is_empty() {
        left.reshape([m, k])?.matmul(&right.reshape([k, n])?)?
    } else {
        left.reshape([batches, m, k])?.matmul(&right.reshape([batches, k, n])?)?
    };
    let ones = vec![1; inner.len()];
    let apart = [sizes(&a, &batch), sizes(&a, &rows), ones, sizes(&b, &columns)].concat();
    // Move each dimension back to its original position.
    let places = order([&batch, &rows, &inner, &columns]);
    let mut back = vec![0; places.len()];
    for (i, &d) in places.iter().enumerate() {
        back[d as usize] = i as isize;
    }
    product.reshape(&apart)?.permute(back)
}
