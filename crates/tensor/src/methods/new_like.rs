//! Methods that create tensors like a given tensor. By default, `new_*` methods use its dtype and device;
//! `*_like` methods also use its sizes.

use super::factories::tensor_in;
use super::tensor_data::TensorData;
use crate::exec::{self, empty_in};
use crate::{CallScope, IntoShape, Result, Scalar, Tensor, TensorOptions};

impl Tensor {
    /// Returns the options `asked`, with this tensor's dtype and device as defaults.
    fn options(&self, asked: impl Into<TensorOptions>) -> TensorOptions {
        asked.into().or(self.dtype(), self.device())
    }

    /// Makes a tensor with the sizes `sizes` and uninitialized elements (`torch.Tensor.new_empty`). Default:
    /// this tensor's dtype and device.
    ///
    /// # Errors
    /// The same as [`crate::empty()`].
    #[track_caller]
    pub fn new_empty(
        &self,
        sizes: impl IntoShape,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        let _call = CallScope::enter("new_empty");
        exec::empty(
            self.storage().runtime(),
            &sizes.into_shape(),
            &self.options(options),
            self.dtype(),
        )
    }

    /// Makes a tensor with the sizes `sizes` and one value everywhere (`torch.Tensor.new_full`). Default: this
    /// tensor's dtype and device.
    ///
    /// # Errors
    /// The same as [`crate::full`].
    #[track_caller]
    pub fn new_full(
        &self,
        sizes: impl IntoShape,
        value: impl Into<Scalar>,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        let _call = CallScope::enter("new_full");
        let out = self.new_empty(sizes, options)?;
        out.fill_(value)?;
        Ok(out)
    }

    /// Makes a tensor of zeros with the sizes `sizes` (`torch.Tensor.new_zeros`). Default: this tensor's dtype
    /// and device.
    ///
    /// # Errors
    /// The same as [`crate::zeros`].
    #[track_caller]
    pub fn new_zeros(
        &self,
        sizes: impl IntoShape,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        let _call = CallScope::enter("new_zeros");
        self.new_full(sizes, 0, options)
    }

    /// Makes a tensor of ones with the sizes `sizes` (`torch.Tensor.new_ones`). Default: this tensor's dtype
    /// and device.
    ///
    /// # Errors
    /// The same as [`crate::ones`].
    #[track_caller]
    pub fn new_ones(
        &self,
        sizes: impl IntoShape,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        let _call = CallScope::enter("new_ones");
        self.new_full(sizes, 1, options)
    }

    /// Makes a tensor from numbers (`torch.Tensor.new_tensor`). Default: this tensor's dtype and device.
    ///
    /// # Errors
    /// The same as [`crate::tensor()`].
    #[track_caller]
    pub fn new_tensor(
        &self,
        data: impl TensorData,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        let _call = CallScope::enter("new_tensor");
        tensor_in(self.storage().runtime(), data, &self.options(options))
    }

    /// Makes a tensor with uninitialized elements and this tensor's sizes (`torch.empty_like`). Default: this
    /// tensor's dtype, device and order of dimensions in memory.
    ///
    /// # Errors
    /// The same as [`crate::empty()`].
    #[track_caller]
    pub fn empty_like(&self, options: impl Into<TensorOptions>) -> Result<Self> {
        let _call = CallScope::enter("empty_like");
        let options = self.options(options);
        let layout = self.layout_in(options.requested_memory_format())?;
        empty_in(self.storage().runtime(), layout, &options, self.dtype())
    }

    /// Makes a tensor with one value everywhere and this tensor's sizes (`torch.full_like`). Default: this
    /// tensor's dtype and device.
    ///
    /// # Errors
    /// The same as [`crate::full`].
    #[track_caller]
    pub fn full_like(
        &self,
        value: impl Into<Scalar>,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        let _call = CallScope::enter("full_like");
        let out = self.empty_like(options)?;
        out.fill_(value)?;
        Ok(out)
    }

    /// Makes a tensor of zeros with this tensor's sizes (`torch.zeros_like`). Default: this tensor's dtype and
    /// device.
    ///
    /// # Errors
    /// The same as [`crate::zeros`].
    #[track_caller]
    pub fn zeros_like(&self, options: impl Into<TensorOptions>) -> Result<Self> {
        let _call = CallScope::enter("zeros_like");
        self.full_like(0, options)
    }

    /// Makes a tensor of ones with this tensor's sizes (`torch.ones_like`). Default: this tensor's dtype and
    /// device.
    ///
    /// # Errors
    /// The same as [`crate::ones`].
    #[track_caller]
    pub fn ones_like(&self, options: impl Into<TensorOptions>) -> Result<Self> {
        let _call = CallScope::enter("ones_like");
        self.full_like(1, options)
    }

    /// Makes a tensor of random values, uniform in `[0, 1)`, with this tensor's sizes (`torch.rand_like`).
    /// Default: this tensor's dtype and device.
    ///
    /// # Errors
    /// The same as [`crate::rand`].
    #[track_caller]
    pub fn rand_like(&self, options: impl Into<TensorOptions>) -> Result<Self> {
        let _call = CallScope::enter("rand_like");
        let out = self.empty_like(options)?;
        out.uniform_(())?;
        Ok(out)
    }

    /// Makes a tensor of random values from the standard normal distribution, with this tensor's sizes
    /// (`torch.randn_like`). Default: this tensor's dtype and device.
    ///
    /// # Errors
    /// The same as [`crate::rand`].
    #[track_caller]
    pub fn randn_like(&self, options: impl Into<TensorOptions>) -> Result<Self> {
        let _call = CallScope::enter("randn_like");
        let out = self.empty_like(options)?;
        out.normal_(())?;
        Ok(out)
    }
}
