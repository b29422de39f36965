//! Update rules: the parts in which optimizers differ.

use warpline::{Result, Tensor};

use super::fused_step::GradScaling;
use super::optimizer::check_not_capturing;

/// The settings of an optimizer, by PyTorch's names.
pub trait Settings: Clone + Default + std::fmt::Debug {
    /// Name of the optimizer.
    const NAME: &'static str;

    /// Returns the settings with PyTorch's names. A flag is 0 or 1.
    fn settings(&self) -> Vec<(&'static str, f64)>;

    /// Changes a setting by its name. Returns `false` if there is no such setting.
    fn set(&mut self, name: &str, value: f64) -> bool;

    /// Checks the settings.
    ///
    /// # Errors
    /// A message that names the first invalid setting. The optimizer returns the message as
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument).
    fn check(&self) -> Result<(), String>;
}

/// An update rule: the settings of an optimizer and the computation of its step.
pub trait Rule: Settings {
    /// Names of a parameter's state tensors, in the order of `ParamState::tensors`.
    const TENSORS: &'static [&'static str];

    /// Returns whether the step of a contiguous parameter with this state can read a [`GradScaling`]. Default: false.
    fn fuses(&self, state: &ParamState) -> bool {
        let _ = state;
        false
    }

    /// Updates parameters that have a gradient. Gets a `scaling` only if [`fuses`](Self::fuses) returned true for all
    /// of them. A step that the scaling skips must change nothing.
    ///
    /// # Errors
    /// The errors of the in-place ops that update the parameters and their state
    /// ([errors of every op](warpline::Tensor#errors-of-every-op)).
    fn step(&self, slots: &mut [Slot<'_>], lr: &Rate, scaling: Option<&GradScaling>) -> Result<()>;
}

/// The learning rate of a step.
#[derive(Clone, Debug)]
pub enum Rate {
    /// A number.
    Number(f64),
    /// A tensor with one element, read when the step runs.
    Tensor(Tensor),
}

/// The state that an optimizer keeps for a parameter.
#[derive(Clone, Debug, Default)]
pub struct ParamState {
    /// Number of steps so far. Not used if there is a `counter`.
    pub step: u64,
    /// Number of steps so far, in device memory. For `capturable` optimizers and steps under a `GradScaler`.
    pub counter: Option<Tensor>,
    /// State tensors, named by [`Rule::TENSORS`].
    pub tensors: [Option<Tensor>; 3],
}

/// A parameter with its gradient and state.
#[derive(Debug)]
pub struct Slot<'a> {
    /// The parameter.
    pub param: &'a Tensor,
    /// Gradient of the parameter.
    pub grad: Tensor,
    /// State of the parameter.
    pub state: &'a mut ParamState,
}

impl ParamState {
    /// Returns a state tensor. Creates it with zeros on first use.
    #[track_caller]
    pub(super) fn zeros(&mut self, which: usize, param: &Tensor) -> Result<Tensor> {
        if let Some(tensor) = &self.tensors[which] {
            return Ok(tensor.clone());
        }
        check_not_capturing(param)?;
        let zeros = param.zeros_like(())?;
        self.tensors[which] = Some(zeros.clone());
        Ok(zeros)
    }
}

impl Slot<'_> {
    /// Returns the gradient, negated for `maximize`, plus `weight_decay` times the parameter.
    #[track_caller]
    pub(super) fn gradient(&self, maximize: bool, weight_decay: f64) -> Result<Tensor> {
        let grad = if maximize { self.grad.neg()? } else { self.grad.clone() };
        if weight_decay == 0.0 { Ok(grad) } else { grad.add_scaled(self.param, weight_decay) }
    }
}

/// Computes `param -= lr * by`.
#[track_caller]
pub(super) fn descend(param: &Tensor, by: &Tensor, lr: &Rate) -> Result<()> {
    match lr {
        Rate::Number(lr) => param.add_scaled_(by, -lr).map(drop),
        Rate::Tensor(lr) => param.sub_(&by.mul(lr)?).map(drop),
    }
}

/// A field of a settings struct, converted from and to `f64`.
pub(super) trait Setting {
    fn number(&self) -> f64;
    fn put(&mut self, value: f64);
}

impl Setting for f64 {
    fn number(&self) -> f64 {
        *self
    }

    fn put(&mut self, value: f64) {
        *self = value;
    }
}

impl Setting for bool {
    fn number(&self) -> f64 {
        f64::from(u8::from(*self))
    }

    fn put(&mut self, value: f64) {
        *self = value != 0.0;
    }
}

/// Writes [`Settings::settings`] and [`Settings::set`] from a list of names and fields.
macro_rules! settings {
    ($($name:literal $field:ident $(. $part:tt)?),* $(,)?) => {
        fn settings(&self) -> Vec<(&'static str, f64)> {
            use $crate::optim::rule::Setting;
            vec![$(($name, self.$field$(.$part)?.number())),*]
        }

        fn set(&mut self, name: &str, value: f64) -> bool {
            use $crate::optim::rule::Setting;
            match name {
                $($name => self.$field$(.$part)?.put(value),)*
                _ => return false,
            }
            true
        }
    };
}

pub(super) use settings;

/// Returns an error that names the first number that is negative or NaN.
pub(super) fn check_not_negative(numbers: &[(&str, f64)]) -> Result<(), String> {
    match numbers.iter().find(|(_, number)| number.is_nan() || *number < 0.0) {
        Some((name, number)) => Err(format!("{name} must be 0 or more, but is {number}")),
        None => Ok(()),
    }
}

/// Returns an error that names the first number that is not in `[0, 1)`.
pub(super) fn check_fraction(numbers: &[(&str, f64)]) -> Result<(), String> {
    match numbers.iter().find(|(_, number)| !(0.0..1.0).contains(number)) {
        Some((name, number)) => Err(format!("{name} must be from 0 to below 1, but is {number}")),
        None => Ok(()),
    }
}
