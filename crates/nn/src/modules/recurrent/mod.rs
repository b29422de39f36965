//! Recurrent networks.

mod cells;
mod stacked;

pub use cells::{GRUCell, LSTMCell, RNNCell, RecurrentCellOptions};
pub use stacked::{GRU, LSTM, RNN, RecurrentOptions};

use std::borrow::Borrow;

use warpline::functional::linear;
use warpline::{Error, Result, Tensor, TensorOptions};

use super::linear::uniform;
use super::repr::size;
use crate::init::Nonlinearity;
use crate::{Module, Parameter, Visitor, VisitorMut};

/// The initial states of an LSTM: `None` for zeros, or the hidden state and the cell state, as `(&h, &c)`, as a
/// reference to the pair that a forward pass returned, or as an `Option` of one of the two.
///
/// ```
/// use warpline_nn::LSTMCell;
///
/// let (cell, x) = (LSTMCell::new(2, 3, ())?, warpline::ones([1, 2], ())?);
/// let states = cell.forward(&x, None)?;
/// let (h, c) = cell.forward(&x, &states)?;
/// let (h, c) = cell.forward(&x, (&h, &c))?;
/// assert_eq!((h.size(), c.size()), (&[1, 3][..], &[1, 3][..]));
/// # Ok::<(), warpline::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a pair of states",
    label = "expected `(&h, &c)`, a reference to a pair of tensors, or `None`"
)]
pub trait IntoStates<'a> {
    /// Returns the hidden state and the cell state. `None`: zeros.
    fn into_states(self) -> Option<(&'a Tensor, &'a Tensor)>;
}

impl<'a> IntoStates<'a> for Option<(&'a Tensor, &'a Tensor)> {
    fn into_states(self) -> Option<(&'a Tensor, &'a Tensor)> {
        self
    }
}

impl<'a, H: Borrow<Tensor>, C: Borrow<Tensor>> IntoStates<'a> for (&'a H, &'a C) {
    fn into_states(self) -> Option<(&'a Tensor, &'a Tensor)> {
        Some((self.0.borrow(), self.1.borrow()))
    }
}

impl<'a, H: Borrow<Tensor>, C: Borrow<Tensor>> IntoStates<'a> for &'a (H, C) {
    fn into_states(self) -> Option<(&'a Tensor, &'a Tensor)> {
        Some((self.0.borrow(), self.1.borrow()))
    }
}

impl<'a, H: Borrow<Tensor>, C: Borrow<Tensor>> IntoStates<'a> for &'a Option<(H, C)> {
    fn into_states(self) -> Option<(&'a Tensor, &'a Tensor)> {
        self.as_ref().and_then(IntoStates::into_states)
    }
}

/// The update rule of the hidden state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CellKind {
    Tanh,
    ReLU,
    Lstm,
    Gru,
}

impl CellKind {
    /// Returns the kind with the given activation, or the kind itself for `None`. Fails for an activation other than
    /// tanh and ReLU, and for any activation if the kind is not that of an Elman network.
    #[track_caller]
    fn with_nonlinearity(
        self,
        op: &'static str,
        nonlinearity: Option<Nonlinearity>,
    ) -> Result<Self> {
        match (self, nonlinearity) {
            (kind, None) => Ok(kind),
            (Self::Tanh, Some(Nonlinearity::Tanh)) => Ok(Self::Tanh),
            (Self::Tanh, Some(Nonlinearity::ReLU)) => Ok(Self::ReLU),
            (Self::Tanh, Some(other)) => {
                let reason = format!("nonlinearity must be Tanh or ReLU, not {other:?}");
                Err(Error::invalid(op, reason))
            }
            _ => Err(Error::invalid(op, format!("{op} has no nonlinearity to choose"))),
        }
    }

    /// Number of weight rows per hidden feature.
    fn gates(self) -> usize {
        match self {
            Self::Tanh | Self::ReLU => 1,
            Self::Lstm => 4,
            Self::Gru => 3,
        }
    }

    /// Returns the next hidden state and, for an LSTM, the next cell state. `weight` and `bias` are those of the hidden
    /// state, and `input` is the input's contribution to the gates.
    #[track_caller]
    fn step(
        self,
        (weight, bias): (&Tensor, Option<&Tensor>),
        input: &Tensor,
        (hidden, cell): (&Tensor, Option<&Tensor>),
    ) -> Result<(Tensor, Option<Tensor>)> {
        let own = linear(hidden, weight, bias)?;
        // In a region of autocast, the states have the dtype of the products, as in PyTorch.
        let hidden = &hidden.to(own.dtype())?;
        let cell = cell.map(|cell| cell.to(own.dtype())).transpose()?;
        match self {
            Self::Tanh => Ok((input.add(&own)?.tanh()?, None)),
            Self::ReLU => Ok((input.add(&own)?.relu()?, None)),
            Self::Gru => {
                let (i, h) = (input.chunk(3, -1)?, own.chunk(3, -1)?);
                let reset = i[0].add(&h[0])?.sigmoid()?;
                let update = i[1].add(&h[1])?.sigmoid()?;
                let new = i[2].add(&reset.mul(&h[2])?)?.tanh()?;
                Ok((hidden.sub(&new)?.mul(&update)?.add(&new)?, None))
            }
            Self::Lstm => {
                let gates = input.add(&own)?.chunk(4, -1)?;
                let added = gates[0].sigmoid()?.mul(&gates[2].tanh()?)?;
                let cell = match cell {
                    Some(cell) => gates[1].sigmoid()?.mul(&cell)?.add(&added)?,
                    None => added,
                };
                Ok((gates[3].sigmoid()?.mul(&cell.tanh()?)?, Some(cell)))
            }
        }
    }
}

/// The parameters of one layer in one direction.
#[derive(Clone, Debug)]
struct CellWeights {
    ih: Parameter,
    hh: Parameter,
    bias_ih: Option<Parameter>,
    bias_hh: Option<Parameter>,
}

impl CellWeights {
    /// Draws all parameters uniformly from ±1/√hidden, in the order in which they are visited.
    #[track_caller]
    fn new(
        kind: CellKind,
        inputs: usize,
        hidden: usize,
        bias: bool,
        options: &TensorOptions,
    ) -> Result<Self> {
        let (rows, bound) = (kind.gates().saturating_mul(hidden), 1.0 / (hidden as f64).sqrt());
        Ok(Self {
            ih: uniform([rows, inputs], bound, options)?,
            hh: uniform([rows, hidden], bound, options)?,
            bias_ih: bias.then(|| uniform([rows], bound, options)).transpose()?,
            bias_hh: bias.then(|| uniform([rows], bound, options)).transpose()?,
        })
    }

    /// Returns the numbers of inputs and hidden features, and `bias=False` if there is no bias.
    fn describe(&self) -> String {
        let bias = if self.bias_ih.is_some() { "" } else { ", bias=False" };
        format!("{}, {}{bias}", size(&self.ih, 1), size(&self.hh, 1))
    }

    /// Returns the input's contribution to the gates.
    #[track_caller]
    fn input_gates(&self, x: &Tensor) -> Result<Tensor> {
        linear(x, &self.ih, self.bias_ih.as_deref())
    }

    /// Returns the weight and the bias of the hidden state.
    fn of_hidden(&self) -> (&Tensor, Option<&Tensor>) {
        (&self.hh, self.bias_hh.as_deref())
    }

    /// Returns a zero hidden state for an input of `[.., features]`, on the input's device.
    #[track_caller]
    fn zeros(&self, x: &Tensor) -> Result<Tensor> {
        let mut sizes = x.size().to_vec();
        if let Some(last) = sizes.last_mut() {
            *last = self.hh.size()[1];
        }
        x.new_zeros(sizes, ())
    }

    /// Shows the parameters with PyTorch's names, followed by `suffix`.
    fn visit<'m>(&'m self, suffix: &str, visitor: &mut Visitor<'m, '_>) {
        visitor.member(&format!("weight_ih{suffix}"), &self.ih);
        visitor.member(&format!("weight_hh{suffix}"), &self.hh);
        if let Some(bias) = &self.bias_ih {
            visitor.member(&format!("bias_ih{suffix}"), bias);
        }
        if let Some(bias) = &self.bias_hh {
            visitor.member(&format!("bias_hh{suffix}"), bias);
        }
    }

    fn visit_mut(&mut self, suffix: &str, visitor: &mut VisitorMut<'_>) {
        visitor.member(&format!("weight_ih{suffix}"), &mut self.ih);
        visitor.member(&format!("weight_hh{suffix}"), &mut self.hh);
        if let Some(bias) = &mut self.bias_ih {
            visitor.member(&format!("bias_ih{suffix}"), bias);
        }
        if let Some(bias) = &mut self.bias_hh {
            visitor.member(&format!("bias_hh{suffix}"), bias);
        }
    }
}

/// The names of the parameters have no suffix: `weight_ih` instead of `weight_ih_l0`.
impl Module for CellWeights {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m, '_>) {
        CellWeights::visit(self, "", visitor);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        CellWeights::visit_mut(self, "", visitor);
    }
}
