//! One step of a recurrent network.

use warpline::{Error, Result, Tensor, TensorOptions};

use super::{Kind, Weights};
use crate::called::Called;
use crate::{Forward, Module, place};

/// Refuses what is no input of a step, and states that are none for it: of other sizes they would be broadcast.
#[track_caller]
fn check(op: &'static str, weights: &Weights, x: &Tensor, states: &[&Tensor]) -> Result<()> {
    place::check(op, x, "weight_ih", &weights.ih)?;
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
        #[doc = concat!($doc, " (`torch.nn.", stringify!($name), "`): input `[batch, in]`, hidden `[batch, hidden]`.")]
        #[derive(Clone, Debug, Module)]
        pub struct $name {
            #[module(name = "")]
            weights: Weights,
        }

        impl $name {
            /// Parameters drawn uniformly from ±1/√`hidden`.
            ///
            /// # Errors
            /// When the memory cannot be had.
            #[track_caller]
            pub fn new(inputs: usize, hidden: usize, options: impl Into<TensorOptions>) -> Result<Self> {
                let weights = Weights::new(Kind::$kind, inputs, hidden, true, &options.into());
                Ok(Self { weights: weights.of(stringify!($name))? })
            }

            /// A zero hidden state for `x`: made on the input's device, whatever the current device is.
            ///
            /// # Errors
            /// When the memory cannot be had.
            #[track_caller]
            pub fn initial_hidden(&self, x: &Tensor) -> Result<Tensor> {
                self.weights.zeros(x)
            }
        }
    )*};
}

cells! {
    "`tanh(W x + b + U h + c)`" RNNCell Tanh;
    "A long short-term memory" LSTMCell Lstm;
    "A gated recurrent unit" GRUCell Gru;
}

macro_rules! forward {
    ($name:ident $kind:ident) => {
        impl $name {
            /// The next hidden state.
            ///
            /// # Errors
            /// When shapes or devices do not fit.
            #[track_caller]
            pub fn forward(&self, x: &Tensor, hidden: &Tensor) -> Result<Tensor> {
                let op = stringify!($name);
                check(op, &self.weights, x, &[hidden])?;
                let gates = self.weights.of_input(x).of(op)?;
                Ok(Kind::$kind.step(&self.weights, &gates, (hidden, None)).of(op)?.0)
            }
        }

        /// Of the input and the hidden state.
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
    /// The next hidden state and cell, of those before.
    ///
    /// # Errors
    /// When shapes or devices do not fit.
    #[track_caller]
    pub fn forward(
        &self,
        x: &Tensor,
        (hidden, cell): (&Tensor, &Tensor),
    ) -> Result<(Tensor, Tensor)> {
        let op = "LSTMCell";
        check(op, &self.weights, x, &[hidden, cell])?;
        let gates = self.weights.of_input(x).of(op)?;
        let (hidden, next) = Kind::Lstm.step(&self.weights, &gates, (hidden, Some(cell))).of(op)?;
        // An LSTM's step has one.
        Ok((hidden, next.unwrap_or_else(|| cell.clone())))
    }
}

/// Of the input, the hidden state and the cell.
impl Forward<(Tensor, (Tensor, Tensor))> for LSTMCell {
    type Output = (Tensor, Tensor);

    #[track_caller]
    fn forward(&self, (x, (hidden, cell)): (Tensor, (Tensor, Tensor))) -> Result<Self::Output> {
        self.forward(&x, (&hidden, &cell))
    }
}
