//! Products of matrices and vectors that say how many dimensions they take.

use std::panic::Location;

use crate::called::Called;
use crate::{Error, ErrorKind, Result, Scalar, Tensor};

#[track_caller]
fn check_dims(op: &'static str, tensors: &[(&Tensor, &str, usize)]) -> Result<()> {
    for (tensor, name, dims) in tensors {
        if tensor.dim() != *dims {
            return Err(Error::shape(
                op,
                format!("{name} must have {dims} dimensions, but it is of {:?}", tensor.size()),
            ));
        }
    }
    Ok(())
}

impl Tensor {
    /// The product of two matrices (`torch.mm`).
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] for anything but two dimensions; as [`Tensor::matmul`].
    #[track_caller]
    pub fn mm(&self, mat2: &Tensor) -> Result<Self> {
        check_dims("mm", &[(self, "the first", 2), (mat2, "the second", 2)])?;
        self.matmul(mat2).of("mm")
    }

    /// The products of as many pairs of matrices (`torch.bmm`).
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] for anything but three dimensions, and unless both have as many matrices; as
    /// [`Tensor::matmul`].
    #[track_caller]
    pub fn bmm(&self, mat2: &Tensor) -> Result<Self> {
        check_dims("bmm", &[(self, "the first", 3), (mat2, "the second", 3)])?;
        if self.size()[0] != mat2.size()[0] {
            return Err(Error::shape(
                "bmm",
                format!(
                    "expects as many matrices of both, but they are of {:?} and {:?}",
                    self.size(),
                    mat2.size()
                ),
            ));
        }
        self.matmul(mat2).of("bmm")
    }

    /// The product of a matrix and a vector (`torch.mv`).
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] for other dimensions; as [`Tensor::matmul`].
    #[track_caller]
    pub fn mv(&self, vec: &Tensor) -> Result<Self> {
        check_dims("mv", &[(self, "the matrix", 2), (vec, "the vector", 1)])?;
        self.matmul(vec).of("mv")
    }

    /// The dot product of two vectors (`torch.dot`).
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] for anything but one dimension; as [`Tensor::matmul`].
    #[track_caller]
    pub fn dot(&self, other: &Tensor) -> Result<Self> {
        check_dims("dot", &[(self, "the first", 1), (other, "the second", 1)])?;
        self.matmul(other).of("dot")
    }

    /// Each element of a vector times each of another (`torch.outer`).
    ///
    /// ```
    /// # use warpline::tensor;
    /// let t = tensor([1i64, 2], ())?.outer(&tensor([3i64, 4], ())?)?;
    /// assert_eq!(t.to_vec::<i64>()?, [3, 4, 6, 8]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] for anything but one dimension; as [`Tensor::mul`].
    #[doc(alias = "ger")]
    #[track_caller]
    pub fn outer(&self, vec2: &Tensor) -> Result<Self> {
        check_dims("outer", &[(self, "the first", 1), (vec2, "the second", 1)])?;
        self.unsqueeze(1)?.mul(vec2).of("outer")
    }

    /// `beta * self + alpha * mat1 @ mat2`, where this tensor is expanded to the product's sizes, and not read if
    /// `beta` is 0 (`torch.addmm`, which has 1 for both where nothing is said).
    ///
    /// ```
    /// # use warpline::{ones, tensor};
    /// let (bias, a) = (tensor([1f32, 2.0], ())?, ones([1, 3], ())?);
    /// assert_eq!(bias.addmm(&a, &ones([3, 2], ())?, 1, 2)?.to_vec::<f32>()?, [7.0, 8.0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::mm`]; [`ErrorKind::ExpandMismatch`]; [`ErrorKind::InvalidArgument`] for floats as `alpha` or `beta`
    /// of integers.
    #[track_caller]
    pub fn addmm(
        &self,
        mat1: &Tensor,
        mat2: &Tensor,
        beta: impl Into<Scalar>,
        alpha: impl Into<Scalar>,
    ) -> Result<Self> {
        let product = mat1.mm(mat2).of("addmm")?;
        self.add_product(product, beta.into(), alpha.into()).of("addmm")
    }

    /// `beta * self + alpha * batch1 @ batch2` of as many matrices; otherwise as [`Tensor::addmm`]
    /// (`torch.baddbmm`).
    ///
    /// # Errors
    /// As [`Tensor::bmm`] and [`Tensor::addmm`].
    #[track_caller]
    pub fn baddbmm(
        &self,
        batch1: &Tensor,
        batch2: &Tensor,
        beta: impl Into<Scalar>,
        alpha: impl Into<Scalar>,
    ) -> Result<Self> {
        let product = batch1.bmm(batch2).of("baddbmm")?;
        self.add_product(product, beta.into(), alpha.into()).of("baddbmm")
    }

    /// `beta * self + alpha * mat @ vec`; otherwise as [`Tensor::addmm`] (`torch.addmv`).
    ///
    /// # Errors
    /// As [`Tensor::mv`] and [`Tensor::addmm`].
    #[track_caller]
    pub fn addmv(
        &self,
        mat: &Tensor,
        vec: &Tensor,
        beta: impl Into<Scalar>,
        alpha: impl Into<Scalar>,
    ) -> Result<Self> {
        let product = mat.mv(vec).of("addmv")?;
        self.add_product(product, beta.into(), alpha.into()).of("addmv")
    }

    /// [`Tensor::addmm`] in place: this tensor is of the product's sizes.
    ///
    /// # Errors
    /// As [`Tensor::addmm`] and [`Tensor::add_`].
    #[track_caller]
    pub fn addmm_(
        &self,
        mat1: &Tensor,
        mat2: &Tensor,
        beta: impl Into<Scalar>,
        alpha: impl Into<Scalar>,
    ) -> Result<&Self> {
        let product = mat1.mm(mat2).of("addmm_")?;
        self.add_product_(product, beta.into(), alpha.into()).of("addmm_")
    }

    /// [`Tensor::baddbmm`] in place: this tensor is of the products' sizes.
    ///
    /// # Errors
    /// As [`Tensor::baddbmm`] and [`Tensor::add_`].
    #[track_caller]
    pub fn baddbmm_(
        &self,
        batch1: &Tensor,
        batch2: &Tensor,
        beta: impl Into<Scalar>,
        alpha: impl Into<Scalar>,
    ) -> Result<&Self> {
        let product = batch1.bmm(batch2).of("baddbmm_")?;
        self.add_product_(product, beta.into(), alpha.into()).of("baddbmm_")
    }

    /// [`Tensor::addmv`] in place: this tensor is of the product's sizes.
    ///
    /// # Errors
    /// As [`Tensor::addmv`] and [`Tensor::add_`].
    #[track_caller]
    pub fn addmv_(
        &self,
        mat: &Tensor,
        vec: &Tensor,
        beta: impl Into<Scalar>,
        alpha: impl Into<Scalar>,
    ) -> Result<&Self> {
        let product = mat.mv(vec).of("addmv_")?;
        self.add_product_(product, beta.into(), alpha.into()).of("addmv_")
    }

    #[track_caller]
    fn add_product_(&self, product: Tensor, beta: Scalar, alpha: Scalar) -> Result<&Self> {
        if self.size() != product.size() {
            let (location, op) = (Location::caller(), "addmm_");
            let reason = format!("a product of {:?} into {:?}", product.size(), self.size());
            return Err(Error::shape(op, reason).at(location));
        }
        self.check_product(&product, beta, alpha)?;
        let product = if alpha.to_f64() == 1.0 { product } else { product.mul(alpha)? };
        if beta.to_f64() == 0.0 {
            return self.copy_(&product, false);
        }
        if beta.to_f64() != 1.0 {
            self.mul_(beta)?;
        }
        self.add_(&product)
    }

    #[track_caller]
    fn add_product(&self, product: Tensor, beta: Scalar, alpha: Scalar) -> Result<Self> {
        self.layout().expand(product.size())?;
        self.check_product(&product, beta, alpha)?;
        let product = if alpha.to_f64() == 1.0 { product } else { product.mul(alpha)? };
        if beta.to_f64() == 0.0 {
            return Ok(product);
        }
        let scaled = if beta.to_f64() == 1.0 { self.clone() } else { self.mul(beta)? };
        scaled.add(&product)
    }

    /// Refuses other dtypes than the product's, and floats that products of integers are to be multiplied by.
    #[track_caller]
    fn check_product(&self, product: &Tensor, beta: Scalar, alpha: Scalar) -> Result<()> {
        if self.dtype() != product.dtype() {
            return Err(ErrorKind::OperandDTypes { first: self.dtype(), second: product.dtype() }
                .of("addmm"));
        }
        if alpha.category() > product.dtype().category()
            || beta.category() > product.dtype().category()
        {
            let reason =
                format!("for a result of {}, alpha and beta must not be floats", product.dtype());
            return Err(Error::invalid("addmm", reason));
        }
        Ok(())
    }

    /// The sum of a matrix's diagonal, of integers as `int64` (`torch.trace`).
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] for anything but two dimensions; as [`Tensor::sum`].
    #[track_caller]
    pub fn trace(&self) -> Result<Self> {
        check_dims("trace", &[(self, "the matrix", 2)])?;
        self.diagonal(0, 0, 1)?.sum(()).of("trace")
    }

    /// The Kronecker product: each element times the whole other tensor (`torch.kron`).
    ///
    /// ```
    /// # use warpline::tensor;
    /// let t = tensor([1i64, 10], ())?.kron(&tensor([1i64, 2], ())?)?;
    /// assert_eq!(t.to_vec::<i64>()?, [1, 2, 10, 20]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::mul`].
    #[track_caller]
    pub fn kron(&self, other: &Tensor) -> Result<Self> {
        let dims = self.dim().max(other.dim());
        let size =
            |t: &Tensor, d: usize| (d + t.dim()).checked_sub(dims).map_or(1, |d| t.size()[d]);
        let (mut left, mut right, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
        for d in 0..dims {
            let (a, b) = (size(self, d), size(other, d));
            left.extend([a, 1]);
            right.extend([1, b]);
            sizes.push(a.saturating_mul(b));
        }
        let product = self.reshape(&left).of("kron")?.mul(&other.reshape(&right).of("kron")?);
        product.of("kron")?.reshape(&sizes).of("kron")
    }
}
