//! A row of the table: a public function, the rule for drawing its arguments, and the prediction of
//! its outcome.

use warpline::{DType, Result, Tensor};

use crate::generate::Draw;
use crate::model::{Predict, Value};

/// The agreement of a row's results between the CPU and a simulated GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// Equal, if the arguments are equal.
    Same,
    /// Equal up to rounding, such as sums, which have a different order. Integers are equal.
    Rounded,
    /// Not compared: random numbers.
    Random,
}

/// The side effect of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    /// Changes the first argument in place.
    Writes,
    /// Changes the elements of the first argument without a record in autograd.
    WritesDetached,
    /// Makes the first argument a leaf that requires a gradient.
    Leaf,
    /// Adds to the gradients of all leaves from which the first argument was computed.
    Backward {
        retains: bool,
    },
    /// Drops the first argument.
    Drop,
    /// Reads the elements of the first argument, which the trace records.
    Read,
}

/// A public function, or a fixed combination of public functions.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// The source of `call` as a closure, for printed programs.
    pub(crate) text: &'static str,
    pub(crate) call: fn(&[Tensor], &[i64]) -> Result<Vec<Tensor>>,
    pub(crate) draw: fn(&mut Draw<'_>),
    pub(crate) predict: fn(&[Value], &[i64]) -> Predict,
    pub(crate) values: Values,
    pub(crate) effect: Effect,
    /// Whether float results require a gradient if an argument does. `None` if this depends on the
    /// call.
    pub(crate) differentiable: Option<bool>,
    /// Whether the results depend discontinuously on the values of the arguments, as those of a
    /// comparison do. Rounded arguments are then not passed.
    pub(crate) sharp: bool,
    /// Whether no other step runs at the same time.
    pub(crate) exclusive: bool,
    /// Weight of the row in random draws. Default: 4.
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

/// Declares a row: its name, the function that draws valid arguments, the prediction, and the call.
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

/// Dtypes to draw from. Repeated dtypes are drawn more often.
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
