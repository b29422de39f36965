//! Cells: single steps of recurrent networks.

use warpline::{Error, Result, Tensor, TensorOptions};

use super::{CellKind, CellWeights};
use crate::called::Called;
use crate::{Forward, Module, input_device};

/// Checks device and shape of an input, and the shapes of its states, which the ops would otherwise broadcast.
#[track_caller]
fn check(op: &'static str, weights: &CellWeights, x: &Tensor, states: &[&Tensor]) -> Result<()> {
    input_device::check(op, x, "weight_ih", &weights.ih)?;
    if !matches!(x.dim(), 1 | 2) {
        let reason = format!("expects [batch, in] or [in], not {:?}", x.size());
        return Err(Error::invalid(op, reason));
    }
    let mut sizes = x.size().to_vec();
    sizes[x.dim() - 1] = weights.hh.size()[1];
    match states.iter().find(|state| state.size() != &sizes[..]) {
        Some(state) => {
            let reason = format!("expects a state of shape {sizes:?}, not {:?}", state.size());
            Err(Error::invalid(op, reason))
        }
        None => Ok(()),
    }
}

macro_rules! cells {
    ($($doc:literal $name:ident $kind:ident;)*) => {$(
        #[doc = concat!($doc, " (`torch.nn.", stringify!($name), "`). Inputs are `[batch, in]` or `[in]`, ")]
        #[doc = "states `[batch, hidden]` or `[hidden]`."]
        #[derive(Clone, Debug, Module)]
        pub struct $name {
            #[module(name = "")]
            weights: CellWeights,
        }

        impl $name {
            /// Creates a cell with biases. Parameters are drawn uniformly from ±1/√`hidden`.
            ///
            /// # Errors
            /// Errors of [`warpline::empty`] and [`Tensor::uniform_`].
            #[track_caller]
            pub fn new(inputs: usize, hidden: usize, options: impl Into<TensorOptions>) -> Result<Self> {
                let weights = CellWeights::new(CellKind::$kind, inputs, hidden, true, &options.into());
                Ok(Self { weights: weights.of(stringify!($name))? })
            }

            /// Returns a zero hidden state for `x`, on the device of `x`, whichever device is current.
            ///
            /// # Errors
            /// The same as [`Tensor::new_zeros`].
            #[track_caller]
            pub fn initial_hidden(&self, x: &Tensor) -> Result<Tensor> {
                self.weights.zeros(x)
            }
        }
    )*};
}

cells! {
    "An Elman cell, `tanh(W x + b + U h + c)`" RNNCell Tanh;
    "A long short-term memory (LSTM) cell" LSTMCell Lstm;
    "A gated recurrent unit (GRU) cell" GRUCell Gru;
}

macro_rules! forward {
    ($name:ident $kind:ident) => {
        impl $name {
            /// Returns the next hidden state.
            ///
            /// # Errors
            /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `x` does not have one or two
            /// dimensions, or `hidden` does not fit it;
            /// [`ErrorKind::DeviceMismatch`](warpline::ErrorKind::DeviceMismatch) if `x` is on a device that cannot
            /// access the parameters; errors of [`warpline::functional::linear()`].
            #[track_caller]
            pub fn forward(&self, x: &Tensor, hidden: &Tensor) -> Result<Tensor> {
                let op = stringify!($name);
                check(op, &self.weights, x, &[hidden])?;
                let gates = self.weights.input_gates(x).of(op)?;
                Ok(CellKind::$kind.step(&self.weights, &gates, (hidden, None)).of(op)?.0)
            }
        }

        /// Takes the pair of input and hidden state.
        impl Forward<(Tensor, Tensor)> for $name {
            type Output = Tensor;

            #[track_caller]
            fn forward(&self, (x, hidden): (Tensor, Tensor)) -> Result<Tensor> {
                self.forward(&x, &hidden)
            }
        }
    };
}

forward!(RNNCell Tanh);
forward!(GRUCell Gru);

impl LSTMCell {
    /// Returns the next hidden state and cell state.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `x` does not have one or two dimensions,
    /// or a state does not fit it; [`ErrorKind::DeviceMismatch`](warpline::ErrorKind::DeviceMismatch) if `x` is on a
    /// device that cannot access the parameters; errors of [`warpline::functional::linear()`].
    #[track_caller]
    pub fn forward(
        &self,
        x: &Tensor,
        (hidden, cell): (&Tensor, &Tensor),
    ) -> Result<(Tensor, Tensor)> {
        let op = "LSTMCell";
        check(op, &self.weights, x, &[hidden, cell])?;
        let gates = self.weights.input_gates(x).of(op)?;
        let (hidden, next) =
            CellKind::Lstm.step(&self.weights, &gates, (hidden, Some(cell))).of(op)?;
        // An LSTM step always returns a cell state.
        Ok((hidden, next.unwrap_or_else(|| cell.clone())))
    }
}

/// Takes the input, and the pair of hidden state and cell state.
impl Forward<(Tensor, (Tensor, Tensor))> for LSTMCell {
    type Output = (Tensor, Tensor);

    #[track_caller]
    fn forward(&self, (x, (hidden, cell)): (Tensor, (Tensor, Tensor))) -> Result<Self::Output> {
        self.forward(&x, (&hidden, &cell))
    }
}
