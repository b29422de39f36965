//! A recurrent cell.

use warpline::{Result, Tensor, TensorOptions};

use crate::{Forward, Linear, Module};

/// `tanh(W x + b + U h + c)` (`torch.nn.RNNCell`): input `[batch, in]`, hidden `[batch, hidden]`.
#[derive(Clone, Debug, Module)]
pub struct RnnCell {
    input: Linear,
    hidden: Linear,
}

impl RnnCell {
    /// Parameters as [`Linear`]'s.
    ///
    /// # Errors
    /// When the memory cannot be had.
    #[track_caller]
    pub fn new(inputs: usize, hidden: usize, options: impl Into<TensorOptions>) -> Result<Self> {
        let options = options.into();
        Ok(Self {
            input: Linear::new(inputs, hidden, &options)?,
            hidden: Linear::new(hidden, hidden, &options)?,
        })
    }

    /// A zero hidden state for `x`: made on the input's device, whatever the current device is.
    ///
    /// # Errors
    /// When the memory cannot be had.
    #[track_caller]
    pub fn initial_hidden(&self, x: &Tensor) -> Result<Tensor> {
        let batch = x.size().first().copied().unwrap_or(1);
        x.new_zeros([batch, self.hidden.weight.size()[0]], ())
    }

    /// The next hidden state.
    ///
    /// # Errors
    /// When shapes or devices do not fit.
    #[track_caller]
    pub fn forward(&self, x: &Tensor, hidden: &Tensor) -> Result<Tensor> {
        self.input.forward(x)?.add(&self.hidden.forward(hidden)?)?.tanh()
    }
}

/// Of the input and the hidden state.
impl Forward<(Tensor, Tensor)> for RnnCell {
    type Output = Tensor;

    #[track_caller]
    fn forward(&self, (x, hidden): (Tensor, Tensor)) -> Result<Tensor> {
        self.forward(&x, &hidden)
    }
}
