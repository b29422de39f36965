//! Cells: single steps of recurrent networks.

use warpline::__Called as _;
use warpline::{CallScope, Error, IntoOptionalTensor, IntoOptions, Result, Tensor};

use super::super::options::parameter_options;
use super::{CellKind, CellWeights, IntoStates};
use crate::init::Nonlinearity;
use crate::{Forward, Module, input_device};

parameter_options! {
    /// Options of [`RNNCell`], [`LSTMCell`] and [`GRUCell`].
    RecurrentCellOptions [] [] {
        /// Sets whether the cell adds biases. Default: `true`.
        bias: bool = true, bool;
        /// Sets the activation of an [`RNNCell`], `Tanh` or `ReLU`. The activations of the other cells are fixed.
        /// Default: `Tanh`.
        nonlinearity: Option<Nonlinearity> = None, Nonlinearity => Some;
    }
}

/// Checks device and shape of an input, and the shapes of its states, because the ops would broadcast states of other
/// shapes.
#[track_caller]
fn check(op: &'static str, weights: &CellWeights, x: &Tensor, states: &[&Tensor]) -> Result<()> {
    input_device::check(op, x, "weight_ih", &weights.ih)?;
    let inputs = weights.ih.size()[1];
    if !matches!(x.dim(), 1 | 2) || x.size()[x.dim() - 1] != inputs {
        let reason = format!(
            "expects an input of shape [batch, {inputs}] or [{inputs}], not {:?}",
            x.size()
        );
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
        #[module(extra_repr = Self::describe)]
        pub struct $name {
            #[module(name = "")]
            weights: CellWeights,
            #[module(skip)]
            kind: CellKind,
        }

        impl $name {
            /// Creates a cell of `inputs` input features and `hidden` hidden features. Parameters are drawn uniformly
            /// from ±1/√`hidden`.
            ///
            /// # Errors
            /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `nonlinearity` is
            /// set for an LSTM or GRU cell or is neither tanh nor ReLU for an RNN cell; errors of [`warpline::empty`] and
            /// [`Tensor::uniform_`].
            #[track_caller]
            pub fn new(
                inputs: usize,
                hidden: usize,
                options: impl IntoOptions<RecurrentCellOptions>,
            ) -> Result<Self> {
                let op = stringify!($name);
                let RecurrentCellOptions { bias, nonlinearity, tensor } = options.into_options();
                let kind = CellKind::$kind.with_nonlinearity(op, nonlinearity)?;
                let weights = CellWeights::new(kind, inputs, hidden, bias, &tensor).of(op)?;
                Ok(Self { weights, kind })
            }

            /// Returns a zero hidden state for `x`, on the device of `x`, even if another device is current.
            ///
            /// # Errors
            /// The same as [`Tensor::new_zeros`].
            #[track_caller]
            pub fn initial_hidden(&self, x: &Tensor) -> Result<Tensor> {
                self.weights.zeros(x)
            }

            fn describe(&self) -> String {
                let nonlinearity = match self.kind {
                    CellKind::ReLU => ", nonlinearity=relu",
                    _ => "",
                };
                self.weights.describe() + nonlinearity
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
    ($name:ident) => {
        impl $name {
            /// Returns the next hidden state. Default for `hidden`: zeros.
            ///
            /// # Errors
            /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `x` does not have one or two
            /// dimensions with a last size of `in`, or if `hidden` is not `[batch, hidden]` or, without a batch,
            /// `[hidden]`; [`ErrorKind::DeviceMismatch`](warpline::ErrorKind::DeviceMismatch) if `x` is on a device
            /// that cannot access the parameters; errors of [`warpline::functional::linear()`].
            #[track_caller]
            pub fn forward<'a>(
                &self,
                x: &Tensor,
                hidden: impl IntoOptionalTensor<'a>,
            ) -> Result<Tensor> {
                let (op, hidden) = (stringify!($name), hidden.into_optional());
                let _call = CallScope::enter(op);
                check(op, &self.weights, x, hidden.as_slice())?;
                let hidden = match hidden {
                    Some(hidden) => hidden,
                    None => &self.weights.zeros(x)?,
                };
                let gates = self.weights.input_gates(x)?;
                Ok(self.kind.step(self.weights.of_hidden(), &gates, (hidden, None))?.0)
            }
        }

        impl Forward<Tensor> for $name {
            type Output = Tensor;

            #[track_caller]
            fn forward(&self, x: Tensor) -> Result<Tensor> {
                self.forward(&x, None)
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

forward!(RNNCell);
forward!(GRUCell);

impl LSTMCell {
    /// Returns the next hidden state and cell state. `states` are the current hidden state and cell state. Default:
    /// zeros.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `x` does not have one or two dimensions
    /// with a last size of `in`, or if a state is not `[batch, hidden]` or, without a batch, `[hidden]`;
    /// [`ErrorKind::DeviceMismatch`](warpline::ErrorKind::DeviceMismatch) if `x` is on a device that cannot access the
    /// parameters; errors of [`warpline::functional::linear()`].
    #[track_caller]
    pub fn forward<'a>(&self, x: &Tensor, states: impl IntoStates<'a>) -> Result<(Tensor, Tensor)> {
        let op = "LSTMCell";
        let _call = CallScope::enter(op);
        let zeros;
        let (hidden, cell) = match states.into_states() {
            Some((hidden, cell)) => {
                check(op, &self.weights, x, &[hidden, cell])?;
                (hidden, cell)
            }
            None => {
                check(op, &self.weights, x, &[])?;
                zeros = self.weights.zeros(x)?;
                (&zeros, &zeros)
            }
        };
        let gates = self.weights.input_gates(x)?;
        let (hidden, next) =
            self.kind.step(self.weights.of_hidden(), &gates, (hidden, Some(cell)))?;
        // An LSTM step always returns a cell state.
        Ok((hidden, next.unwrap_or_else(|| cell.clone())))
    }
}

impl Forward<Tensor> for LSTMCell {
    type Output = (Tensor, Tensor);

    #[track_caller]
    fn forward(&self, x: Tensor) -> Result<Self::Output> {
        self.forward(&x, None)
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
