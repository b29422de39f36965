//! Recurrent networks.

mod cells;
mod stacked;

pub use cells::{GRUCell, LSTMCell, RNNCell};
pub use stacked::{GRU, LSTM, RNN, RecurrentOptions};

use warpline::functional::linear;
use warpline::{Result, Tensor, TensorOptions};

use super::linear::uniform;
use crate::{Module, Parameter, Visitor, VisitorMut};

/// How a hidden state follows from one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tanh,
    ReLU,
    Lstm,
    Gru,
}

impl Kind {
    /// Rows of a weight for each feature.
    fn gates(self) -> usize {
        match self {
            Self::Tanh | Self::ReLU => 1,
            Self::Lstm => 4,
            Self::Gru => 3,
        }
    }

    /// The next hidden state, and an LSTM's next cell, of the input's part of the gates.
    #[track_caller]
    fn step(
        self,
        weights: &Weights,
        input: &Tensor,
        (hidden, cell): (&Tensor, Option<&Tensor>),
    ) -> Result<(Tensor, Option<Tensor>)> {
        let own = linear(hidden, &weights.hh, weights.bias_hh.as_deref())?;
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
                    Some(cell) => gates[1].sigmoid()?.mul(cell)?.add(&added)?,
                    None => added,
                };
                Ok((gates[3].sigmoid()?.mul(&cell.tanh()?)?, Some(cell)))
            }
        }
    }
}

/// The parameters of one layer in one direction.
#[derive(Clone, Debug)]
struct Weights {
    ih: Parameter,
    hh: Parameter,
    bias_ih: Option<Parameter>,
    bias_hh: Option<Parameter>,
}

impl Weights {
    /// Drawn uniformly from ±1/√hidden, in the order in which they are shown.
    #[track_caller]
    fn new(
        kind: Kind,
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

    /// The input's part of the gates.
    #[track_caller]
    fn of_input(&self, x: &Tensor) -> Result<Tensor> {
        linear(x, &self.ih, self.bias_ih.as_deref())
    }

    /// A zero hidden state for an input of `[.., features]`, where the input is.
    #[track_caller]
    fn zeros(&self, x: &Tensor) -> Result<Tensor> {
        let mut sizes = x.size().to_vec();
        if let Some(last) = sizes.last_mut() {
            *last = self.hh.size()[1];
        }
        x.new_zeros(sizes, ())
    }

    /// Shows them with PyTorch's names, which end alike.
    fn visit(&self, end: &str, visitor: &mut Visitor<'_>) {
        visitor.member(&format!("weight_ih{end}"), &self.ih);
        visitor.member(&format!("weight_hh{end}"), &self.hh);
        if let Some(bias) = &self.bias_ih {
            visitor.member(&format!("bias_ih{end}"), bias);
        }
        if let Some(bias) = &self.bias_hh {
            visitor.member(&format!("bias_hh{end}"), bias);
        }
    }

    fn visit_mut(&mut self, end: &str, visitor: &mut VisitorMut<'_>) {
        visitor.member(&format!("weight_ih{end}"), &mut self.ih);
        visitor.member(&format!("weight_hh{end}"), &mut self.hh);
        if let Some(bias) = &mut self.bias_ih {
            visitor.member(&format!("bias_ih{end}"), bias);
        }
        if let Some(bias) = &mut self.bias_hh {
            visitor.member(&format!("bias_hh{end}"), bias);
        }
    }
}

/// As in a cell, where names have no end.
impl Module for Weights {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        Weights::visit(self, "", visitor);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        Weights::visit_mut(self, "", visitor);
    }
}
