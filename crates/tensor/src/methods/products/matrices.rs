//! Products of matrices and vectors with a fixed number of dimensions, Kronecker products, and the trace.

use crate::amp::{autocast_operands, keep_operands};
use crate::called::Called;
use crate::functional::options::options;
use crate::{CallScope, Error, ErrorKind, IntoOptions, Result, Scalar, Tensor};

options! {
    /// Options of [`Tensor::addmm`], [`Tensor::addmv`] and [`Tensor::baddbmm`], and of these ops in place.
    #[derive(Clone, Copy, Debug)]
    AddmmOptions [] [] {
        /// Sets the factor of the tensor to which the product is added. Default: 1.
        beta: Scalar = Scalar::Int(1), impl Into<Scalar> => Into::into;
        /// Sets the factor of the product. Default: 1.
        alpha: Scalar = Scalar::Int(1), impl Into<Scalar> => Into::into;
    }
}

#[track_caller]
fn check_dims(op: &'static str, tensors: &[(&Tensor, &str, usize)]) -> Result<()> {
    for (tensor, name, dims) in tensors {
        if tensor.dim() != *dims {
            return Err(Error::shape(
                op,
                format!("{name} must have {dims} dimensions, but has sizes {:?}", tensor.size()),
            ));
        }
    }
    Ok(())
}

impl Tensor {
    /// The product of two matrices (`torch.mm`).
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] if a tensor is not a matrix. Otherwise the same as [`Tensor::matmul`].
    #[track_caller]
    pub fn mm(&self, mat2: &Tensor) -> Result<Self> {
        let _call = CallScope::enter("mm");
        check_dims("mm", &[(self, "the first operand", 2), (mat2, "the second operand", 2)])?;
        self.matmul(mat2)
    }

    /// The products of pairs of matrices (`torch.bmm`): `[batch, n, k]` and `[batch, k, m]` give
    /// `[batch, n, m]`.
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] if a tensor does not have three dimensions, or the batches differ in size.
    /// Otherwise the same as [`Tensor::matmul`].
    #[track_caller]
    pub fn bmm(&self, mat2: &Tensor) -> Result<Self> {
        let _call = CallScope::enter("bmm");
        check_dims("bmm", &[(self, "the first operand", 3), (mat2, "the second operand", 3)])?;
        if self.size()[0] != mat2.size()[0] {
            return Err(Error::shape(
                "bmm",
                format!(
                    "both operands must have the same number of matrices, but their shapes are {:?} and {:?}",
                    self.size(),
                    mat2.size()
                ),
            ));
        }
        self.matmul(mat2)
    }

    /// The product of a matrix and a vector (`torch.mv`).
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] if the operands are not a matrix and a vector. Otherwise the same as
    /// [`Tensor::matmul`].
    #[track_caller]
    pub fn mv(&self, vec: &Tensor) -> Result<Self> {
        let _call = CallScope::enter("mv");
        let this = self;
        autocast_operands!(Low, KeepAll, [this, vec] => this.mv(vec));
        check_dims("mv", &[(self, "the matrix", 2), (vec, "the vector", 1)])?;
        self.matmul(vec)
    }

    /// The dot product of two vectors (`torch.dot`).
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] if an operand is not a vector. Otherwise the same as [`Tensor::matmul`].
    #[track_caller]
    pub fn dot(&self, other: &Tensor) -> Result<Self> {
        let _call = CallScope::enter("dot");
        let this = self;
        autocast_operands!(Widest, KeepAll, [this, other] => this.dot(other));
        check_dims("dot", &[(self, "the first operand", 1), (other, "the second operand", 1)])?;
        self.matmul(other)
    }

    /// The outer product: each element of this vector times each element of `vec2` (`torch.outer`).
    ///
    /// ```
    /// # use warpline::tensor;
    /// let t = tensor([1i64, 2], ())?.outer(&tensor([3i64, 4], ())?)?;
    /// assert_eq!(t.to_vec::<i64>()?, [3, 4, 6, 8]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] if an operand is not a vector. Otherwise the same as [`Tensor::mul`].
    #[doc(alias = "ger")]
    #[track_caller]
    pub fn outer(&self, vec2: &Tensor) -> Result<Self> {
        let _call = CallScope::enter("outer");
        check_dims("outer", &[(self, "the first operand", 1), (vec2, "the second operand", 1)])?;
        self.unsqueeze(1)?.mul(vec2)
    }

    /// `beta * self + alpha * mat1 @ mat2` (`torch.addmm`). This tensor is expanded to the sizes of the
    /// product. If `beta` is 0, the elements of this tensor are not read. Default of `beta` and `alpha`: 1.
    ///
    /// ```
    /// # use warpline::{AddmmOptions, ones, tensor};
    /// let (bias, a) = (tensor([1f32, 2.0], ())?, ones([1, 3], ())?);
    /// assert_eq!(bias.addmm(&a, &ones([3, 2], ())?, AddmmOptions::new().alpha(2))?.to_vec::<f32>()?, [7.0, 8.0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`Tensor::mm`]. [`ErrorKind::ExpandMismatch`] if this tensor does not expand to the
    /// product's sizes. [`ErrorKind::OperandDTypes`] if this tensor has a different dtype than the matrices.
    /// [`ErrorKind::InvalidArgument`] if `alpha` or `beta` is a float and the matrices have an integer dtype.
    #[track_caller]
    pub fn addmm(
        &self,
        mat1: &Tensor,
        mat2: &Tensor,
        options: impl IntoOptions<AddmmOptions>,
    ) -> Result<Self> {
        let _call = CallScope::enter("addmm");
        let (this, options) = (self, options.into_options());
        autocast_operands!(Low, Low, [this, mat1, mat2] => this.addmm(mat1, mat2, options));
        let product = mat1.mm(mat2)?;
        self.add_product(product, options)
    }

    /// `beta * self + alpha * batch1 @ batch2` for batches of matrices (`torch.baddbmm`). Otherwise the same as
    /// [`Tensor::addmm`].
    ///
    /// # Errors
    /// The same as [`Tensor::bmm`] and [`Tensor::addmm`].
    #[track_caller]
    pub fn baddbmm(
        &self,
        batch1: &Tensor,
        batch2: &Tensor,
        options: impl IntoOptions<AddmmOptions>,
    ) -> Result<Self> {
        let _call = CallScope::enter("baddbmm");
        let (this, options) = (self, options.into_options());
        autocast_operands!(Low, Low, [this, batch1, batch2] => this.baddbmm(batch1, batch2, options));
        let product = batch1.bmm(batch2)?;
        self.add_product(product, options)
    }

    /// `beta * self + alpha * mat @ vec` (`torch.addmv`). Otherwise the same as [`Tensor::addmm`].
    ///
    /// # Errors
    /// The same as [`Tensor::mv`] and [`Tensor::addmm`].
    #[track_caller]
    pub fn addmv(
        &self,
        mat: &Tensor,
        vec: &Tensor,
        options: impl IntoOptions<AddmmOptions>,
    ) -> Result<Self> {
        let _call = CallScope::enter("addmv");
        let (this, options) = (self, options.into_options());
        autocast_operands!(Low, KeepAll, [this, mat, vec] => this.addmv(mat, vec, options));
        let product = mat.mv(vec)?;
        self.add_product(product, options)
    }

    /// [`Tensor::addmm`] in place. This tensor must have the sizes of the product.
    ///
    /// # Errors
    /// The same as [`Tensor::addmm`] and [`Tensor::add_`]. [`ErrorKind::ShapeMismatch`] if the sizes of this
    /// tensor differ from those of the product.
    #[track_caller]
    pub fn addmm_(
        &self,
        mat1: &Tensor,
        mat2: &Tensor,
        options: impl IntoOptions<AddmmOptions>,
    ) -> Result<&Self> {
        let _call = CallScope::enter("addmm_");
        let _region = keep_operands();
        let options = options.into_options();
        let product = mat1.mm(mat2)?;
        self.add_product_(product, options)
    }

    /// [`Tensor::baddbmm`] in place. This tensor must have the sizes of the products.
    ///
    /// # Errors
    /// The same as [`Tensor::bmm`] and [`Tensor::addmm_`].
    #[track_caller]
    pub fn baddbmm_(
        &self,
        batch1: &Tensor,
        batch2: &Tensor,
        options: impl IntoOptions<AddmmOptions>,
    ) -> Result<&Self> {
        let _call = CallScope::enter("baddbmm_");
        let _region = keep_operands();
        let options = options.into_options();
        let product = batch1.bmm(batch2)?;
        self.add_product_(product, options)
    }

    /// [`Tensor::addmv`] in place. This tensor must have the sizes of the product.
    ///
    /// # Errors
    /// The same as [`Tensor::mv`] and [`Tensor::addmm_`].
    #[track_caller]
    pub fn addmv_(
        &self,
        mat: &Tensor,
        vec: &Tensor,
        options: impl IntoOptions<AddmmOptions>,
    ) -> Result<&Self> {
        let _call = CallScope::enter("addmv_");
        let _region = keep_operands();
        let options = options.into_options();
        let product = mat.mv(vec)?;
        self.add_product_(product, options)
    }

    #[track_caller]
    fn add_product_(&self, product: Tensor, options: AddmmOptions) -> Result<&Self> {
        let AddmmOptions { beta, alpha } = options;
        if self.size() != product.size() {
            let reason = format!(
                "a product of shape {:?} cannot be added to a tensor of shape {:?}",
                product.size(),
                self.size()
            );
            return Err(Error::shape("addmm_", reason));
        }
        self.check_product(&product, beta, alpha)?;
        let product = if alpha.to_f64() == 1.0 { product } else { product.mul(alpha)? };
        if beta.to_f64() == 0.0 {
            return self.copy_(&product, ());
        }
        if beta.to_f64() != 1.0 {
            self.mul_(beta)?;
        }
        self.add_(&product)
    }

    #[track_caller]
    fn add_product(&self, product: Tensor, options: AddmmOptions) -> Result<Self> {
        let AddmmOptions { beta, alpha } = options;
        self.layout().expand(product.size())?;
        self.check_product(&product, beta, alpha)?;
        let product = if alpha.to_f64() == 1.0 { product } else { product.mul(alpha)? };
        if beta.to_f64() == 0.0 {
            return Ok(product);
        }
        let scaled = if beta.to_f64() == 1.0 { self.clone() } else { self.mul(beta)? };
        scaled.add(&product)
    }

    /// Fails if this tensor has a different dtype than the product, or if `alpha` or `beta` is a float and the
    /// product has an integer dtype.
    #[track_caller]
    fn check_product(&self, product: &Tensor, beta: Scalar, alpha: Scalar) -> Result<()> {
        if self.dtype() != product.dtype() {
            let operands = "the tensor and the matrices";
            let (first, second) = (self.dtype(), product.dtype());
            return Err(ErrorKind::OperandDTypes { operands, first, second }.of("addmm"));
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

    /// The sum of a matrix's diagonal (`torch.trace`). Integers and bools give `int64`.
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] if the tensor is not a matrix. Otherwise the same as [`Tensor::sum`].
    #[track_caller]
    pub fn trace(&self) -> Result<Self> {
        let _call = CallScope::enter("trace");
        let this = self;
        autocast_operands!(Keep, F32, [this] => this.trace());
        check_dims("trace", &[(self, "the matrix", 2)])?;
        self.diagonal(())?.sum(())
    }

    /// The Kronecker product (`torch.kron`): each element of this tensor becomes a block, the product of the element
    /// and all of `other`.
    ///
    /// ```
    /// # use warpline::tensor;
    /// let t = tensor([1i64, 10], ())?.kron(&tensor([1i64, 2], ())?)?;
    /// assert_eq!(t.to_vec::<i64>()?, [1, 2, 10, 20]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`Tensor::mul`].
    #[track_caller]
    pub fn kron(&self, other: &Tensor) -> Result<Self> {
        let _call = CallScope::enter("kron");
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
        let product = self.reshape(&left)?.mul(&other.reshape(&right)?);
        product.of("kron")?.reshape(&sizes)
    }
}
