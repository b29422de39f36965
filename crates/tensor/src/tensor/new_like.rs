//! Tensors made after the model of another: `new_*` keep its dtype and device, `*_like` its
//! sizes too, each unless asked otherwise.

use super::data::TensorData;
use super::factories::tensor_in;
use crate::exec::{self, empty_in};
use crate::{Result, Scalar, Tensor, TensorOptions};

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
    pub fn new_empty(&self, sizes: &[usize], options: impl Into<TensorOptions>) -> Result<Self> {
        exec::empty(self.storage().runtime(), sizes, &self.options(options), self.dtype())
    }

    /// One value everywhere, of `sizes`, on this tensor's device and of its dtype.
    ///
    /// # Errors
    /// As [`crate::empty()`].
    #[track_caller]
    pub fn new_full(
        &self,
        sizes: &[usize],
        value: impl Into<Scalar>,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        let out = self.new_empty(sizes, options)?;
        out.fill_(value)?;
        Ok(out)
    }

    /// Zeros of `sizes`, on this tensor's device and of its dtype.
    ///
    /// # Errors
    /// As [`crate::empty()`].
    #[track_caller]
    pub fn new_zeros(&self, sizes: &[usize], options: impl Into<TensorOptions>) -> Result<Self> {
        self.new_full(sizes, 0, options)
    }

    /// Ones of `sizes`, on this tensor's device and of its dtype.
    ///
    /// # Errors
    /// As [`crate::empty()`].
    #[track_caller]
    pub fn new_ones(&self, sizes: &[usize], options: impl Into<TensorOptions>) -> Result<Self> {
        self.new_full(sizes, 1, options)
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
        tensor_in(self.storage().runtime(), data, &self.options(options))
    }

    /// Elements not set, with this tensor's sizes, dtype, device and order of dimensions in memory.
    ///
    /// # Errors
    /// As [`crate::empty()`].
    #[track_caller]
    pub fn empty_like(&self, options: impl Into<TensorOptions>) -> Result<Self> {
        let options = self.options(options);
        let layout = self.layout_in(options.requested_memory_format())?;
        empty_in(self.storage().runtime(), layout, &options, self.dtype())
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
        let out = self.empty_like(options)?;
        out.fill_(value)?;
        Ok(out)
    }

    /// Zeros with this tensor's sizes, dtype and device.
    ///
    /// # Errors
    /// As [`crate::empty()`].
    #[track_caller]
    pub fn zeros_like(&self, options: impl Into<TensorOptions>) -> Result<Self> {
        self.full_like(0, options)
    }

    /// Ones with this tensor's sizes, dtype and device.
    ///
    /// # Errors
    /// As [`crate::empty()`].
    #[track_caller]
    pub fn ones_like(&self, options: impl Into<TensorOptions>) -> Result<Self> {
        self.full_like(1, options)
    }

    /// Uniform in `[0, 1)`, with this tensor's sizes, dtype and device.
    ///
    /// # Errors
    /// As [`crate::rand`].
    #[track_caller]
    pub fn rand_like(&self, options: impl Into<TensorOptions>) -> Result<Self> {
        let out = self.empty_like(options)?;
        out.uniform_(0.0, 1.0)?;
        Ok(out)
    }

    /// Standard normal, with this tensor's sizes, dtype and device.
    ///
    /// # Errors
    /// As [`crate::rand`].
    #[track_caller]
    pub fn randn_like(&self, options: impl Into<TensorOptions>) -> Result<Self> {
        let out = self.empty_like(options)?;
        out.normal_(0.0, 1.0)?;
        Ok(out)
    }
}
