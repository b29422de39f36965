//! What one optimizer does differently from the others.

use warpline::{Result, Tensor};

use super::optimizer::refuse_capture;

/// The settings of an optimizer, which are also what says how it steps.
pub trait Rule: Clone + std::fmt::Debug {
    /// The optimizer's name.
    const NAME: &'static str;
    /// What its state's tensors are called, in the order of `ParamState::tensors`.
    const TENSORS: &'static [&'static str];

    /// The settings by PyTorch's names; a flag is 0 or 1.
    fn settings(&self) -> Vec<(&'static str, f64)>;

    /// Sets the one of that name; whether there is one.
    fn set(&mut self, name: &str, value: f64) -> bool;

    /// Says what is wrong with the settings.
    ///
    /// # Errors
    /// A sentence.
    fn check(&self) -> Result<(), String>;

    /// Changes parameters that have a gradient.
    ///
    /// # Errors
    /// What its ops fail with.
    fn step(&self, slots: &mut [Slot<'_>], lr: &Rate) -> Result<()>;
}

/// The learning rate of a step.
#[derive(Clone, Debug)]
pub enum Rate {
    /// A number.
    Number(f64),
    /// What a tensor has when the step runs.
    Tensor(Tensor),
}

/// What an optimizer keeps of a parameter.
#[derive(Clone, Debug, Default)]
pub struct ParamState {
    /// Steps that there were. Those of a `capturable` one are in `counter`.
    pub step: u64,
    /// The same in memory of the parameter's device.
    pub counter: Option<Tensor>,
    /// Its tensors, as [`Rule::TENSORS`] has their names.
    pub tensors: [Option<Tensor>; 3],
}

/// A parameter that has a gradient.
#[derive(Debug)]
pub struct Slot<'a> {
    /// The parameter.
    pub param: &'a Tensor,
    /// Its gradient.
    pub grad: Tensor,
    /// What is kept of it.
    pub state: &'a mut ParamState,
}

impl ParamState {
    /// One of its tensors, zeros at first.
    #[track_caller]
    pub(super) fn zeros(&mut self, which: usize, param: &Tensor) -> Result<Tensor> {
        if let Some(tensor) = &self.tensors[which] {
            return Ok(tensor.clone());
        }
        refuse_capture(param)?;
        let zeros = param.zeros_like(())?;
        self.tensors[which] = Some(zeros.clone());
        Ok(zeros)
    }
}

impl Slot<'_> {
    /// The gradient to go down by: with the sign that is wanted, and the decay of weights.
    #[track_caller]
    pub(super) fn gradient(&self, maximize: bool, weight_decay: f64) -> Result<Tensor> {
        let grad = if maximize { self.grad.neg()? } else { self.grad.clone() };
        if weight_decay == 0.0 { Ok(grad) } else { grad.add_scaled(self.param, weight_decay) }
    }
}

/// `param -= lr * by`.
#[track_caller]
pub(super) fn descend(param: &Tensor, by: &Tensor, lr: &Rate) -> Result<()> {
    match lr {
        Rate::Number(lr) => param.add_scaled_(by, -lr).map(drop),
        Rate::Tensor(lr) => param.sub_(&by.mul(lr)?).map(drop),
    }
}

/// A field of settings.
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

/// The two methods of [`Rule`] that name each field.
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

/// Says which number must not be negative but is.
pub(super) fn check_not_negative(numbers: &[(&str, f64)]) -> Result<(), String> {
    match numbers.iter().find(|(_, number)| number.is_nan() || *number < 0.0) {
        Some((name, number)) => Err(format!("{name} must be 0 or more, but is {number}")),
        None => Ok(()),
    }
}

/// Says which number is no part of a whole.
pub(super) fn check_fraction(numbers: &[(&str, f64)]) -> Result<(), String> {
    match numbers.iter().find(|(_, number)| !(0.0..1.0).contains(number)) {
        Some((name, number)) => Err(format!("{name} must be from 0 to below 1, but is {number}")),
        None => Ok(()),
    }
}
