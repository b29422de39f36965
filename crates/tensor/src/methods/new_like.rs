//! Tensors made after the model of another: `new_*` keep its dtype and device, `*_like` its
//! sizes too, each unless asked otherwise.

use super::data::TensorData;
use super::factories::tensor_in;
use crate::called::Called;
use crate::exec::{self, empty_in};
use crate::{IntoShape, Result, Scalar, Tensor, TensorOptions};

impl Tensor {
    /// The options with this tensor's dtype and device where they leave those open.
    fn options(&self, asked: impl Into<TensorOptions>) -> TensorOptions {
        asked.into().or(self.dtype(), self.device())
    }

    /// Elements not set, of `sizes`, on this tensor's device and of its dtype.
    ///
    /// # Errors
    /// As [`crate::empty()`].
    #[track_caller]
    pub fn new_empty(
        &self,
        sizes: impl IntoShape,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        exec::empty(
            self.storage().runtime(),
            &sizes.into_shape(),
            &self.options(options),
            self.dtype(),
        )
        .of("new_empty")
    }

    /// One value everywhere, of `sizes`, on this tensor's device and of its dtype.
    ///
    /// # Errors
    /// As [`crate::empty()`].
    #[track_caller]
    pub fn new_full(
        &self,
        sizes: impl IntoShape,
        value: impl Into<Scalar>,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        let out = self.new_empty(sizes, options).of("new_full")?;
        out.fill_(value).of("new_full")?;
        Ok(out)
    }

    /// Zeros of `sizes`, on this tensor's device and of its dtype.
    ///
    /// # Errors
    /// As [`crate::empty()`].
    #[track_caller]
    pub fn new_zeros(
        &self,
        sizes: impl IntoShape,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        self.new_full(sizes, 0, options).of("new_zeros")
    }

    /// Ones of `sizes`, on this tensor's device and of its dtype.
    ///
    /// # Errors
    /// As [`crate::empty()`].
    #[track_caller]
    pub fn new_ones(
        &self,
        sizes: impl IntoShape,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        self.new_full(sizes, 1, options).of("new_ones")
    }

    /// The given numbers, on this tensor's device and of its dtype.
    ///
    /// # Errors
    /// As [`crate::tensor()`].
    #[track_caller]
    pub fn new_tensor(
        &self,
        data: impl TensorData,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        tensor_in(self.storage().runtime(), data, &self.options(options)).of("new_tensor")
    }

    /// Elements not set, with this tensor's sizes, dtype, device and order of dimensions in memory.
    ///
    /// # Errors
    /// As [`crate::empty()`].
    #[track_caller]
    pub fn empty_like(&self, options: impl Into<TensorOptions>) -> Result<Self> {
        let options = self.options(options);
        let layout = self.layout_in(options.requested_memory_format()).of("empty_like")?;
        empty_in(self.storage().runtime(), layout, &options, self.dtype()).of("empty_like")
    }

    /// One value everywhere, with this tensor's sizes, dtype and device.
    ///
    /// # Errors
    /// As [`crate::empty()`].
    #[track_caller]
    pub fn full_like(
        &self,
        value: impl Into<Scalar>,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        let out = self.empty_like(options).of("full_like")?;
        out.fill_(value).of("full_like")?;
        Ok(out)
    }

    /// Zeros with this tensor's sizes, dtype and device.
    ///
    /// # Errors
    /// As [`crate::empty()`].
    #[track_caller]
    pub fn zeros_like(&self, options: impl Into<TensorOptions>) -> Result<Self> {
        self.full_like(0, options).of("zeros_like")
    }

    /// Ones with this tensor's sizes, dtype and device.
    ///
    /// # Errors
    /// As [`crate::empty()`].
    #[track_caller]
    pub fn ones_like(&self, options: impl Into<TensorOptions>) -> Result<Self> {
        self.full_like(1, options).of("ones_like")
    }

    /// Uniform in `[0, 1)`, with this tensor's sizes, dtype and device.
    ///
    /// # Errors
    /// As [`crate::rand`].
    #[track_caller]
    pub fn rand_like(&self, options: impl Into<TensorOptions>) -> Result<Self> {
        let out = self.empty_like(options).of("rand_like")?;
        out.uniform_(0.0, 1.0).of("rand_like")?;
        Ok(out)
    }

    /// Standard normal, with this tensor's sizes, dtype and device.
    ///
    /// # Errors
    /// As [`crate::rand`].
    #[track_caller]
    pub fn randn_like(&self, options: impl Into<TensorOptions>) -> Result<Self> {
        let out = self.empty_like(options).of("randn_like")?;
        out.normal_(0.0, 1.0).of("randn_like")?;
        Ok(out)
    }
}
