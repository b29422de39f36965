//! Recurrent networks over sequences, with several layers and one or two directions.

use warpline::__Called as _;
use warpline::amp::is_autocast_cache_enabled;
use warpline::functional::{DropoutOptions, dropout};
use warpline::{CallScope, Error, IntoOptionalTensor, IntoOptions, Result, Tensor, cat, stack};

use super::super::options::{check_layers, parameter_options};
use super::super::repr::{float, size};
use super::{CellKind, CellWeights, IntoStates};
use crate::init::Nonlinearity;
use crate::optim::is_capturing;
use crate::{Forward, Module, Training, Visitor, VisitorMut, input_device};

parameter_options! {
    /// Options of [`RNN`], [`LSTM`] and [`GRU`].
    RecurrentOptions [] [] {
        /// Sets the number of stacked layers. Default: 1.
        num_layers: usize = 1, usize;
        /// Sets the activation of an [`RNN`], `Tanh` or `ReLU`. The activations of the other networks are fixed.
        /// Default: `Tanh`.
        nonlinearity: Option<Nonlinearity> = None, Nonlinearity => Some;
        /// Sets whether the layers add biases. Default: `true`.
        bias: bool = true, bool;
        /// Sets whether inputs and outputs are `[batch, time, ..]` instead of `[time, batch, ..]`. Does not apply to
        /// states. Default: `false`.
        batch_first: bool = false, bool;
        /// Sets the probability of dropout between layers in training, from 0 to 1. Default: 0.
        dropout: f64 = 0.0, f64;
        /// Sets whether each layer runs in both directions of time and concatenates the outputs. Default: `false`.
        bidirectional: bool = false, bool;
    }
}

/// The layers and options of an [`RNN`], [`LSTM`] or [`GRU`].
#[derive(Clone, Debug)]
struct RecurrentStack {
    kind: CellKind,
    /// Parameters, ordered by layer, then by direction.
    weights: Vec<CellWeights>,
    options: RecurrentOptions,
    training: Training,
}

/// The last layer's hidden states at all times, the final hidden state of each layer and direction, and for an LSTM
/// also the final cell state of each.
type StackedOutput = (Tensor, Tensor, Option<Tensor>);

impl RecurrentStack {
    #[track_caller]
    fn new(
        op: &'static str,
        kind: CellKind,
        inputs: usize,
        hidden: usize,
        options: RecurrentOptions,
    ) -> Result<Self> {
        let kind = kind.with_nonlinearity(op, options.nonlinearity)?;
        if hidden == 0 || options.num_layers == 0 {
            let reason = format!(
                "hidden and num_layers must be greater than zero, but are {hidden} and {}",
                options.num_layers
            );
            return Err(Error::invalid(op, reason));
        }
        check_layers(op, options.num_layers)?;
        if !(0.0..=1.0).contains(&options.dropout) {
            let reason =
                format!("dropout must be a probability, from 0 to 1, but is {}", options.dropout);
            return Err(Error::invalid(op, reason));
        }
        let directions = 1 + usize::from(options.bidirectional);
        let mut weights = Vec::new();
        for layer in 0..options.num_layers {
            let inputs = if layer == 0 { inputs } else { hidden.saturating_mul(directions) };
            for _ in 0..directions {
                weights.push(
                    CellWeights::new(kind, inputs, hidden, options.bias, &options.tensor).of(op)?,
                );
            }
        }
        Ok(Self { kind, weights, options, training: Training::default() })
    }

    /// Returns the sizes, and the settings that are not defaults, in PyTorch's notation.
    fn describe(&self) -> String {
        let (first, options) = (&self.weights[0], &self.options);
        let mut text = format!("{}, {}", size(&first.ih, 1), size(&first.hh, 1));
        if options.num_layers != 1 {
            text += &format!(", num_layers={}", options.num_layers);
        }
        if !options.bias {
            text += ", bias=False";
        }
        if options.batch_first {
            text += ", batch_first=True";
        }
        if options.dropout != 0.0 {
            text += &format!(", dropout={}", float(options.dropout));
        }
        if options.bidirectional {
            text += ", bidirectional=True";
        }
        text
    }

    fn directions(&self) -> usize {
        1 + usize::from(self.options.bidirectional)
    }

    /// Returns the suffix of the parameter names of one layer and direction.
    fn suffix(&self, i: usize) -> String {
        let (layer, direction) = (i / self.directions(), i % self.directions());
        format!("_l{layer}{}", if direction == 1 { "_reverse" } else { "" })
    }

    /// Runs all layers. `x` is `[time, batch, in]`, `[time, in]`, or with `batch_first` `[batch, time, in]`. States are
    /// `[layers · directions, ..]`.
    #[track_caller]
    fn forward(
        &self,
        op: &'static str,
        x: &Tensor,
        states: Option<(&Tensor, Option<&Tensor>)>,
    ) -> Result<StackedOutput> {
        let sizes = x.size();
        let inputs = self.weights[0].ih.size()[1];
        if !matches!(x.dim(), 2 | 3) || sizes[x.dim() - 1] != inputs {
            let order = if self.options.batch_first { "batch, time" } else { "time, batch" };
            let reason = format!(
                "expects an input of shape [{order}, {inputs}] or [time, {inputs}], not {sizes:?}"
            );
            return Err(Error::invalid(op, reason));
        }
        let is_transposed = self.options.batch_first && x.dim() == 3;
        if sizes[usize::from(is_transposed)] == 0 {
            let reason = format!("needs at least one step, but the input has sizes {sizes:?}");
            return Err(Error::invalid(op, reason));
        }
        input_device::check(op, x, "weight_ih_l0", &self.weights[0].ih)?;
        let mut x = if is_transposed { x.transpose(0, 1)? } else { x.clone() };
        if let Some((hidden, cell)) = states {
            self.check_state(op, &x, hidden)?;
            if let Some(cell) = cell {
                self.check_state(op, &x, cell)?;
            }
        }
        let (mut hiddens, mut cells) = (Vec::new(), Vec::new());
        let directions = self.directions();
        for layer in 0..self.options.num_layers {
            if layer > 0 && self.options.dropout > 0.0 {
                x = dropout(
                    &x,
                    DropoutOptions::new().p(self.options.dropout).training(self.training.get()),
                )?;
            }
            let mut outputs = Vec::with_capacity(directions);
            for direction in 0..directions {
                let i = layer * directions + direction;
                let initial = match states {
                    Some((hidden, cell)) => {
                        let cell = cell.map(|cell| cell.select(0, i as isize)).transpose()?;
                        (hidden.select(0, i as isize)?, cell)
                    }
                    None => (self.weights[i].zeros(&x.select(0, 0)?)?, None),
                };
                let (output, hidden, cell) = self.run_direction(i, &x, initial, direction == 1)?;
                outputs.push(output);
                hiddens.push(hidden);
                cells.extend(cell);
            }
            x = match &outputs[..] {
                [one] => one.clone(),
                both => cat(both, -1)?,
            };
        }
        let output = if is_transposed { x.transpose(0, 1)? } else { x };
        let cell = if cells.is_empty() { None } else { Some(stack(&cells, 0)?) };
        Ok((output, stack(&hiddens, 0)?, cell))
    }

    /// Checks the shape of a state for an input `[time, .., in]`, because the ops would otherwise broadcast the state.
    #[track_caller]
    fn check_state(&self, op: &'static str, x: &Tensor, state: &Tensor) -> Result<()> {
        let mut sizes = vec![self.weights.len()];
        sizes.extend_from_slice(&x.size()[1..x.dim() - 1]);
        sizes.push(self.weights[0].hh.size()[1]);
        if state.size() == &sizes[..] {
            return Ok(());
        }
        let reason = format!("expects a state of shape {sizes:?}, not {:?}", state.size());
        Err(Error::invalid(op, reason))
    }

    /// Runs one layer in one direction.
    #[track_caller]
    fn run_direction(
        &self,
        i: usize,
        x: &Tensor,
        (mut hidden, mut cell): (Tensor, Option<Tensor>),
        backwards: bool,
    ) -> Result<(Tensor, Tensor, Option<Tensor>)> {
        let weights = &self.weights[i];
        // One matrix product computes the input gates of all time steps.
        let gates = weights.input_gates(x)?;
        let (weight, bias) = weights.of_hidden();
        // A region of autocast without its cache would convert the weights in each time step.
        let (converted_weight, converted_bias);
        let (weight, bias) = if weight.dtype() == gates.dtype()
            || is_autocast_cache_enabled() && !is_capturing(&gates)?
        {
            (weight, bias)
        } else {
            converted_weight = weight.to(gates.dtype())?;
            converted_bias = bias.map(|bias| bias.to(gates.dtype())).transpose()?;
            (&converted_weight, converted_bias.as_ref())
        };
        let times = x.size()[0];
        let mut outputs = Vec::with_capacity(times);
        for step in 0..times {
            let time = if backwards { times - 1 - step } else { step };
            let gates = gates.select(0, time as isize)?;
            (hidden, cell) = self.kind.step((weight, bias), &gates, (&hidden, cell.as_ref()))?;
            outputs.push(hidden.clone());
        }
        if backwards {
            outputs.reverse();
        }
        Ok((stack(&outputs, 0)?, hidden, cell))
    }
}

impl Module for RecurrentStack {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m, '_>) {
        for (i, weights) in self.weights.iter().enumerate() {
            weights.visit(&self.suffix(i), visitor);
        }
        visitor.member("training", &self.training);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        let suffixes: Vec<String> = (0..self.weights.len()).map(|i| self.suffix(i)).collect();
        for (suffix, weights) in suffixes.iter().zip(&mut self.weights) {
            weights.visit_mut(suffix, visitor);
        }
        visitor.member("training", &mut self.training);
    }
}

macro_rules! networks {
    ($($doc:literal $name:ident $kind:ident;)*) => {$(
        #[doc = concat!($doc, " (`torch.nn.", stringify!($name), "`).")]
        #[derive(Clone, Debug, Module)]
        #[module(extra_repr = Self::describe)]
        pub struct $name {
            #[module(name = "")]
            stacked: RecurrentStack,
        }

        impl $name {
            /// Creates a network of `inputs` input features and `hidden` hidden features. Parameters are drawn
            /// uniformly from ±1/√`hidden`.
            ///
            /// # Errors
            /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `hidden` or `num_layers` is 0,
            /// `num_layers` is above 65,536, `dropout` is not from 0 to 1, or `nonlinearity` is set for an LSTM or GRU or is
            /// neither tanh nor ReLU for an RNN; errors of [`warpline::empty`] and [`Tensor::uniform_`].
            #[track_caller]
            pub fn new(
                inputs: usize,
                hidden: usize,
                options: impl IntoOptions<RecurrentOptions>,
            ) -> Result<Self> {
                let (op, kind) = (stringify!($name), CellKind::$kind);
                let options = options.into_options();
                Ok(Self { stacked: RecurrentStack::new(op, kind, inputs, hidden, options)? })
            }

            fn describe(&self) -> String {
                self.stacked.describe()
            }
        }
    )*};
}

networks! {
    "An Elman network, `tanh(W x + b + U h + c)`" RNN Tanh;
    "A long short-term memory (LSTM) network" LSTM Lstm;
    "A gated recurrent unit (GRU) network" GRU Gru;
}

macro_rules! forward {
    ($name:ident) => {
        impl $name {
            /// Runs the network over `x`, which is `[time, batch, in]` (`[batch, time, in]` with `batch_first`) or
            /// `[time, in]`. `hidden` is the initial state, `[layers · directions, batch, hidden]` or, without a batch,
            /// `[layers · directions, hidden]`. Default: zeros.
            ///
            /// Returns the hidden states of the last layer at all times, with last size `directions · hidden`, and the
            /// final hidden state of each layer and direction, with the shape of `hidden`.
            ///
            /// # Errors
            /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `x` does not have two or three
            /// dimensions with a last size of `in`, if `x` has no time steps, or if `hidden` does not have the shape
            /// above; [`ErrorKind::DeviceMismatch`](warpline::ErrorKind::DeviceMismatch) if `x` is on a device that
            /// cannot access the parameters; errors of [`warpline::functional::linear()`].
            #[track_caller]
            pub fn forward<'a>(
                &self,
                x: &Tensor,
                hidden: impl IntoOptionalTensor<'a>,
            ) -> Result<(Tensor, Tensor)> {
                let states = hidden.into_optional().map(|hidden| (hidden, None));
                let op = stringify!($name);
                let _call = CallScope::enter(op);
                let (output, hidden, _) = self.stacked.forward(op, x, states)?;
                Ok((output, hidden))
            }
        }

        impl Forward<Tensor> for $name {
            type Output = (Tensor, Tensor);

            #[track_caller]
            fn forward(&self, x: Tensor) -> Result<Self::Output> {
                self.forward(&x, None)
            }
        }

        /// Takes the pair of input and hidden state.
        impl Forward<(Tensor, Tensor)> for $name {
            type Output = (Tensor, Tensor);

            #[track_caller]
            fn forward(&self, (x, hidden): (Tensor, Tensor)) -> Result<Self::Output> {
                self.forward(&x, &hidden)
            }
        }
    };
}

forward!(RNN);
forward!(GRU);

impl LSTM {
    /// Runs the network over `x`, which is `[time, batch, in]` (`[batch, time, in]` with `batch_first`) or
    /// `[time, in]`. `states` are the initial hidden state and cell state, each `[layers · directions, batch, hidden]`
    /// or, without a batch, `[layers · directions, hidden]`. Default: zeros.
    ///
    /// Returns the hidden states of the last layer at all times, with last size `directions · hidden`, and the final
    /// hidden state and cell state of each layer and direction, with the shapes of `states`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `x` does not have two or three
    /// dimensions with a last size of `in`, if `x` has no time steps, or if a state does not have the shape above;
    /// [`ErrorKind::DeviceMismatch`](warpline::ErrorKind::DeviceMismatch) if `x` is on a device that cannot access the
    /// parameters; errors of [`warpline::functional::linear()`].
    #[track_caller]
    pub fn forward<'a>(
        &self,
        x: &Tensor,
        states: impl IntoStates<'a>,
    ) -> Result<(Tensor, (Tensor, Tensor))> {
        let _call = CallScope::enter("LSTM");
        let states = states.into_states().map(|(hidden, cell)| (hidden, Some(cell)));
        let (output, hidden, cell) = self.stacked.forward("LSTM", x, states)?;
        // An LSTM always returns cell states.
        let cell = match cell {
            Some(cell) => cell,
            None => hidden.zeros_like(())?,
        };
        Ok((output, (hidden, cell)))
    }
}

impl Forward<Tensor> for LSTM {
    type Output = (Tensor, (Tensor, Tensor));

    #[track_caller]
    fn forward(&self, x: Tensor) -> Result<Self::Output> {
        self.forward(&x, None)
    }
}

/// Takes the input, and the pair of hidden state and cell state.
impl Forward<(Tensor, (Tensor, Tensor))> for LSTM {
    type Output = (Tensor, (Tensor, Tensor));

    #[track_caller]
    fn forward(&self, (x, (hidden, cell)): (Tensor, (Tensor, Tensor))) -> Result<Self::Output> {
        self.forward(&x, (&hidden, &cell))
    }
}
