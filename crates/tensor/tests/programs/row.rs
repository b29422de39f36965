//! A row of the table: one public function, how its arguments are drawn, and what it must do.

use warpline::{DType, Result, Tensor};

use crate::generate::Draw;
use crate::model::{Predict, Value};

/// How values of a row's results agree between the CPU and a simulated GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// Bit by bit, if those of the arguments do.
    Same,
    /// Up to rounding, because the order of a sum differs. Integers agree exactly.
    Rounded,
    /// Not at all: random numbers.
    Random,
}

/// The effect of a row beside its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    /// Changes the first argument in place.
    Writes,
    /// Changes the elements of the first argument outside of autograd.
    WritesDetached,
    /// Makes a leaf of the first argument.
    Leaf,
    /// Adds to the gradients of all leaves that the first argument was computed from.
    Backward {
        retains: bool,
    },
    /// Drops the first argument.
    Drop,
    /// Records the elements of the first argument.
    Read,
}

/// A public function, or a fixed combination of public functions.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// The source of `call`'s body, for printed programs.
    pub(crate) text: &'static str,
    pub(crate) call: fn(&[Tensor], &[i64]) -> Result<Vec<Tensor>>,
    pub(crate) draw: fn(&mut Draw<'_>),
    pub(crate) predict: fn(&[Value], &[i64]) -> Predict,
    pub(crate) values: Values,
    pub(crate) effect: Effect,
    /// Whether float results of tracked arguments require a gradient. `None` if it depends.
    pub(crate) differentiable: Option<bool>,
    /// Whether the results' values or sizes depend on the arguments' values discontinuously, so that
    /// rounded arguments are not passed.
    pub(crate) sharp: bool,
    /// Whether no other step runs at the same time.
    pub(crate) exclusive: bool,
    /// How often the row is drawn.
    pub(crate) weight: u32,
}

impl Row {
    pub(crate) const fn writes(mut self) -> Self {
        self.effect = Effect::Writes;
        self
    }

    pub(crate) const fn effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    pub(crate) const fn rounded(mut self) -> Self {
        self.values = Values::Rounded;
        self
    }

    pub(crate) const fn random(mut self) -> Self {
        self.values = Values::Random;
        self
    }

    pub(crate) const fn sharp(mut self) -> Self {
        self.sharp = true;
        self
    }

    pub(crate) const fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }

    pub(crate) const fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    pub(crate) const fn constant(mut self) -> Self {
        self.differentiable = Some(false);
        self
    }
}

/// Declares a row: its name, how to draw valid arguments, the prediction, and the call.
macro_rules! row {
    ($name:expr, $draw:expr, $predict:expr, |$t:pat_param, $n:pat_param| $call:expr) => {
        $crate::row::Row {
            name: $name,
            text: concat!("|", stringify!($t), ", ", stringify!($n), "| ", stringify!($call)),
            call: |$t, $n| $crate::prelude::Results::list($call),
            draw: $draw,
            predict: $predict,
            values: $crate::row::Values::Same,
            effect: $crate::row::Effect::None,
            differentiable: Some(true),
            sharp: false,
            exclusive: false,
            weight: 4,
        }
    };
}
pub(crate) use row;

/// Dtypes with their usual share in programs.
pub(crate) const DTYPES: [DType; 14] = [
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F64,
    DType::F64,
    DType::I64,
    DType::I32,
    DType::F16,
    DType::BF16,
    DType::I16,
    DType::I8,
    DType::U8,
    DType::Bool,
];
