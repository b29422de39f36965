//! Gradient scaling for training in `float16` (`torch.amp.GradScaler`). The regions of autocast are in
//! [`warpline::amp`].
//!
//! Small gradients underflow to zero in `float16`. A [`GradScaler`] multiplies the loss, and with it all gradients, by
//! a scale, and divides the gradients by the scale before the optimizer uses them. If a gradient is infinite or NaN,
//! the step is skipped and the scale shrinks. After many steps without an overflow, the scale grows.
//!
//! The scale and the marks of overflows stay in device memory. A step of [`SGD`](crate::optim::SGD),
//! [`Adam`](crate::optim::Adam), [`AdamW`](crate::optim::AdamW) or [`RMSprop`](crate::optim::RMSprop) reads them there,
//! so that the host does not wait. The host waits once in each step of another optimizer, in each step with a parameter
//! or gradient that is not contiguous or has 2³¹ elements or more, and in the first step of an `SGD` with momentum and
//! dampening.
//!
//! ```
//! use warpline::amp::autocast;
//! use warpline::functional::mse_loss;
//! use warpline::{DType, ones, zeros};
//! use warpline_nn::amp::{GradScaler, GradScalerOptions};
//! use warpline_nn::optim::{Optimizer, SGD, SGDOptions, clip_grad_norm_};
//! use warpline_nn::{Linear, Module};
//!
//! let net = Linear::new(4, 1, ())?;
//! let mut optimizer = SGD::new(net.parameters(), SGDOptions::new().lr(0.1))?;
//! let mut scaler = GradScaler::new(GradScalerOptions::new().init_scale(1024.0))?;
//! for _ in 0..3 {
//!     let loss = autocast("cpu", DType::F16, || {
//!         mse_loss(&net.forward(&ones([2, 4], ())?)?, &zeros([2, 1], ())?, ())
//!     })?;
//!     optimizer.zero_grad()?;
//!     scaler.scale(&loss)?.backward()?;
//!     scaler.unscale_(&optimizer)?; // only needed because the gradients are clipped
//!     clip_grad_norm_(&net.parameters(), 1.0, ())?;
//!     scaler.step(&mut optimizer)?;
//!     scaler.update()?;
//! }
//! assert_eq!(scaler.get_scale()?, 1024.0);
//! # Ok::<(), warpline::Error>(())
//! ```

mod checked;

use std::borrow::Borrow;

use warpline::__Called as _;
use warpline::autograd::no_grad;
use warpline::{
    DType, Error, IntoOperand, IntoOptions, Result, Scalar, Tensor, TensorOrScalar, full, tensor,
};
use warpline_kernels::optim as kernels;

use self::checked::{CheckedOptimizer, Stage, any, check_grads, forget_lost, record_of};
use crate::StateDict;
use crate::optim::{GradScaling, Optimizer, is_capturing};

warpline::__options! {
    /// Options of [`GradScaler`].
    #[derive(Clone, Copy, Debug, PartialEq)]
    GradScalerOptions [] [] {
        /// Sets the first scale. Must be finite in `float32`. Default: 65536.
        init_scale: f64 = 65536.0, f64;
        /// Sets the factor by which the scale grows after `growth_interval` consecutive steps without an overflow. Must
        /// be above 1. Default: 2.
        growth_factor: f64 = 2.0, f64;
        /// Sets the factor by which the scale is multiplied after an overflow. Must be below 1. Default: 0.5.
        backoff_factor: f64 = 0.5, f64;
        /// Sets the number of consecutive steps without an overflow after which the scale grows. Default: 2000.
        growth_interval: i64 = 2000, i64;
        /// Sets whether the scaler does anything. With `false`, [`GradScaler::step`] is the optimizer's step, and the
        /// other methods do nothing. Default: true.
        enabled: bool = true, bool;
    }
}

/// Scales losses, unscales gradients, and skips steps whose gradients overflowed (`torch.amp.GradScaler`). The
/// [module](self) has an example.
///
/// Call [`update`](Self::update) once per iteration, after the steps of all optimizers. The scaler ignores the checks of
/// gradients in a capture that fails, or whose graph is dropped before its first replay.
#[derive(Debug)]
pub struct GradScaler {
    options: GradScalerOptions,
    /// The growth tracker at the first [`GradScaler::scale`].
    init_growth_tracker: i64,
    /// The scale (`float32`) and the growth tracker (`int32`) on the device of the first loss. `None` before.
    tensors: Option<(Tensor, Tensor)>,
    /// Optimizers whose gradients were checked since the last update.
    optimizers: Vec<CheckedOptimizer>,
}

impl GradScaler {
    /// Creates a scaler. Its tensors are created by the first [`scale`](Self::scale), on the device of the loss.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if the scaler is enabled and the scale
    /// is not finite in `float32`, the growth factor not above 1, or the backoff factor not below 1.
    #[track_caller]
    pub fn new(options: impl IntoOptions<GradScalerOptions>) -> Result<Self> {
        let options = options.into_options();
        check("GradScaler", &options)?;
        Ok(Self { options, init_growth_tracker: 0, tensors: None, optimizers: Vec::new() })
    }

    /// Returns a loss times the scale, or the loss itself if the scaler is disabled.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if the first call is captured; errors of
    /// [`Tensor::mul`] and [`full`].
    #[track_caller]
    pub fn scale(&mut self, loss: &Tensor) -> Result<Tensor> {
        if !self.options.enabled {
            return Ok(loss.clone());
        }
        let (scale, _) = match &self.tensors {
            Some(tensors) => tensors,
            None => {
                if is_capturing(loss)? {
                    let reason = "the first call creates the scale and cannot be captured, because each replay would \
                                  create it anew; scale a loss before the capture";
                    return Err(Error::invalid("scale", reason));
                }
                let scale = full([], self.options.init_scale, (DType::F32, loss.device()))?;
                let tracker = full([], self.init_growth_tracker, (DType::I32, loss.device()))?;
                self.tensors.insert((scale, tracker))
            }
        };
        loss.mul(&scale.to(loss.device())?)
    }

    /// Returns each output times the scale, or the outputs themselves if the scaler is disabled (`scale` of an
    /// iterable).
    ///
    /// ```
    /// use warpline::{ones, tensor};
    /// use warpline_nn::amp::{GradScaler, GradScalerOptions};
    ///
    /// let mut scaler = GradScaler::new(GradScalerOptions::new().init_scale(8.0))?;
    /// let scaled = scaler.scale_all(&[ones([2], ())?, tensor(0.5f32, ())?])?;
    /// assert_eq!(scaled[1].item::<f32>()?, 4.0);
    /// scaler.update_with(&tensor(2.0f32, ())?)?;
    /// assert_eq!(scaler.get_scale()?, 2.0);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// Errors of [`scale`](Self::scale).
    #[track_caller]
    pub fn scale_all(&mut self, outputs: &[impl Borrow<Tensor>]) -> Result<Vec<Tensor>> {
        let scaled = outputs.iter().map(|output| self.scale(output.borrow()));
        scaled.collect::<Result<_>>().here()
    }

    /// Divides the gradients of an optimizer's parameters by the scale and checks them for infinite and NaN elements,
    /// in one launch for up to 64 gradients of a device and dtype. Needed only to change or read gradients before
    /// [`step`](Self::step), such as to clip them. The host does not wait.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if no loss was scaled, if the optimizer has
    /// no parameters or was unscaled or stepped since the last update, if a gradient has dtype `float16`, if two
    /// gradients share memory, or if a parameter group was added since the gradients were unscaled;
    /// [`ErrorKind::Moved`](warpline::ErrorKind::Moved) if a module's move replaced a parameter; errors of the launches.
    /// After a failed launch, some gradients may be unscaled, so `unscale_` and `step` fail until the next
    /// [`update`](Self::update).
    #[track_caller]
    pub fn unscale_(&mut self, optimizer: &dyn Optimizer) -> Result<()> {
        if !self.options.enabled {
            return Ok(());
        }
        const OP: &str = "unscale_";
        let scale = self.tensors(OP)?.0.clone();
        let of = record_of(&mut self.optimizers, OP, optimizer)?;
        of.stage.check_undivided(OP)?;
        no_grad(|| check_grads(of, optimizer, Some(&scale))).of(OP)
    }

    /// Takes the optimizer's step with unscaled gradients, unless a gradient is infinite or NaN. Unscales the gradients
    /// first if [`unscale_`](Self::unscale_) did not. After a step that is not skipped, the gradients are unscaled.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if no loss was scaled, if the optimizer
    /// already took a step since the last update, if none of its parameters has a gradient, if a parameter group
    /// was added after [`unscale_`](Self::unscale_), if two gradients that the step unscales share memory, if a gradient
    /// is of `float16` and the optimizer's step does not unscale it, or if a captured step has gradients that were
    /// unscaled before the capture; errors of [`Optimizer::step`]. After a failed launch, some gradients may be
    /// unscaled, so `unscale_` and `step` fail until the next [`update`](Self::update).
    #[track_caller]
    pub fn step(&mut self, optimizer: &mut dyn Optimizer) -> Result<()> {
        if !self.options.enabled {
            return optimizer.step().here();
        }
        const OP: &str = "step";
        let scale = self.tensors(OP)?.0.clone();
        let is_fused = optimizer.supports_grad_scaling();
        let of = record_of(&mut self.optimizers, OP, optimizer)?;
        if of.stage != Stage::Unscaled {
            of.stage.check_undivided(OP)?;
            let scale = (!is_fused).then_some(&scale);
            no_grad(|| check_grads(of, optimizer, scale)).of(OP)?;
        }
        of.check_repeatable(OP, &scale)?;
        if of.found_inf.is_empty() {
            let reason =
                "no gradient of this optimizer was checked, because none of its parameters has one";
            return Err(Error::invalid(OP, reason));
        }
        let found_inf = no_grad(|| any(&of.found_inf, scale.device())).of(OP)?;
        if is_fused {
            let grad_scale = (of.stage == Stage::Ready).then_some(scale);
            if grad_scale.is_some() {
                of.stage = Stage::Failed;
            }
            optimizer.step_scaled(&GradScaling { found_inf, grad_scale }).here()?;
        } else if found_inf.item::<f32>()? == 0.0 {
            optimizer.step().here()?;
        }
        of.stage = Stage::Stepped;
        Ok(())
    }

    /// Multiplies the scale by the backoff factor if a gradient that was checked since the last update is infinite or
    /// NaN, or by the growth factor after `growth_interval` updates without an overflow. Leaves out optimizers whose
    /// last call failed. The host does not wait.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if no gradients were checked since the last
    /// update, or if a captured update has gradients that were checked before the capture.
    #[track_caller]
    pub fn update(&mut self) -> Result<()> {
        if !self.options.enabled {
            return Ok(());
        }
        const OP: &str = "update";
        forget_lost(&mut self.optimizers);
        let (scale, tracker) = self.tensors(OP)?;
        for of in &self.optimizers {
            of.check_repeatable(OP, scale)?;
        }
        let checked = self.optimizers.iter().filter(|of| of.stage != Stage::Failed);
        let marks: Vec<Tensor> = checked.flat_map(|of| of.found_inf.iter().cloned()).collect();
        if !marks.is_empty() {
            let found_inf = no_grad(|| any(&marks, scale.device())).of(OP)?;
            let tensors = [scale.as_view(), tracker.as_view(), found_inf.as_view()];
            let factors = (self.options.growth_factor, self.options.backoff_factor);
            let (exec, interval) = (scale.exec()?, self.options.growth_interval);
            kernels::update_scale(exec.target(), tensors, factors, interval).of(OP)?;
        } else if self.optimizers.iter().all(|of| of.stage != Stage::Failed) {
            let reason =
                "no gradients were checked since the last update: call `step` or `unscale_` first";
            return Err(Error::invalid(OP, reason));
        }
        self.optimizers.clear();
        Ok(())
    }

    /// Replaces the scale by a number, or by the value of a tensor on any device (`update(new_scale)`).
    /// [`GradScaler::update`] computes the next scale instead. The host does not wait.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if no loss was scaled, or if a tensor does
    /// not have exactly one element or requires a gradient.
    #[track_caller]
    pub fn update_with<'a>(&mut self, new_scale: impl IntoOperand<'a>) -> Result<()> {
        if !self.options.enabled {
            return Ok(());
        }
        const OP: &str = "update";
        let (scale, _) = self.tensors(OP)?;
        match new_scale.into_operand() {
            TensorOrScalar::Scalar(new) => no_grad(|| scale.fill_(new).map(drop)).of(OP)?,
            TensorOrScalar::Tensor(new) if new.numel() == 1 && !new.requires_grad() => {
                no_grad(|| scale.copy_(&new.view_as(scale)?, ()).map(drop)).of(OP)?;
            }
            TensorOrScalar::Tensor(_) => {
                let reason = "the new scale must have one element and require no gradient";
                return Err(Error::invalid(OP, reason));
            }
        }
        self.optimizers.clear();
        Ok(())
    }

    /// Returns the present scale; 1 if the scaler is disabled. The host waits for the device.
    ///
    /// # Errors
    /// Errors of [`Tensor::item`].
    #[track_caller]
    pub fn get_scale(&self) -> Result<f64> {
        match &self.tensors {
            _ if !self.options.enabled => Ok(1.0),
            Some((scale, _)) => Ok(f64::from(scale.item::<f32>()?)),
            None => Ok(self.options.init_scale),
        }
    }

    /// Returns the factor by which the scale grows.
    #[must_use]
    pub fn get_growth_factor(&self) -> f64 {
        self.options.growth_factor
    }

    /// Sets the factor by which the scale grows.
    pub fn set_growth_factor(&mut self, new_factor: f64) {
        self.options.growth_factor = new_factor;
    }

    /// Returns the factor by which the scale is multiplied after an overflow.
    #[must_use]
    pub fn get_backoff_factor(&self) -> f64 {
        self.options.backoff_factor
    }

    /// Sets the factor by which the scale is multiplied after an overflow.
    pub fn set_backoff_factor(&mut self, new_factor: f64) {
        self.options.backoff_factor = new_factor;
    }

    /// Returns the number of consecutive steps without an overflow after which the scale grows.
    #[must_use]
    pub fn get_growth_interval(&self) -> i64 {
        self.options.growth_interval
    }

    /// Sets the number of consecutive steps without an overflow after which the scale grows.
    pub fn set_growth_interval(&mut self, new_interval: i64) {
        self.options.growth_interval = new_interval;
    }

    /// Returns whether the scaler is enabled.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.options.enabled
    }

    /// Returns the scale, the growth tracker and the options, each as a tensor with one element on the CPU, by
    /// PyTorch's names. Empty if the scaler is disabled. The host waits for the device. Call it after
    /// [`update`](Self::update).
    ///
    /// # Errors
    /// Errors of [`Tensor::item`].
    #[track_caller]
    pub fn state_dict(&self) -> Result<StateDict> {
        let mut state = StateDict::new();
        if !self.options.enabled {
            return Ok(state);
        }
        let growth_tracker = match &self.tensors {
            Some((_, tracker)) => i64::from(tracker.item::<i32>()?),
            None => self.init_growth_tracker,
        };
        let GradScalerOptions { growth_factor, backoff_factor, growth_interval, .. } = self.options;
        state.insert("scale", full([], self.get_scale()?, (DType::F64, "cpu"))?);
        for (name, value) in [("growth_factor", growth_factor), ("backoff_factor", backoff_factor)]
        {
            state.insert(name, full([], value, (DType::F64, "cpu"))?);
        }
        let counts = [("growth_interval", growth_interval), ("_growth_tracker", growth_tracker)];
        for (name, value) in counts {
            state.insert(name, tensor(value, "cpu")?);
        }
        Ok(state)
    }

    /// Restores a state of [`state_dict`](Self::state_dict). Changes nothing if an entry is missing or invalid. A
    /// disabled scaler ignores the state.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if an entry is missing, such as in the
    /// empty state of a disabled scaler, if a count is not an integer, if the growth tracker is negative, or 2³¹ or
    /// more, or if [`GradScaler::new`] refuses the scale or a factor; errors of [`Tensor::to_scalar`].
    #[track_caller]
    pub fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        const OP: &str = "load_state_dict";
        if !self.options.enabled {
            return Ok(());
        }
        let init_scale = number(state, "scale")?.to_f64();
        let growth_factor = number(state, "growth_factor")?.to_f64();
        let backoff_factor = number(state, "backoff_factor")?.to_f64();
        let growth_interval = whole(state, "growth_interval")?;
        let growth_tracker = whole(state, "_growth_tracker")?;
        if !(0..=i64::from(i32::MAX)).contains(&growth_tracker) {
            let reason =
                format!("`_growth_tracker` is {growth_tracker}, but must be from 0 to 2³¹ - 1");
            return Err(Error::invalid(OP, reason));
        }
        let enabled = self.options.enabled;
        let options = GradScalerOptions {
            init_scale,
            growth_factor,
            backoff_factor,
            growth_interval,
            enabled,
        };
        check(OP, &options)?;
        if let Some((scale, tracker)) = &self.tensors {
            no_grad(|| {
                scale.fill_(options.init_scale)?;
                tracker.fill_(growth_tracker).map(drop)
            })
            .of(OP)?;
        }
        (self.options, self.init_growth_tracker) = (options, growth_tracker);
        Ok(())
    }

    /// Returns the scale and the growth tracker.
    #[track_caller]
    fn tensors(&self, op: &'static str) -> Result<&(Tensor, Tensor)> {
        match &self.tensors {
            Some(tensors) => Ok(tensors),
            None => {
                let reason = "no loss was scaled yet: call `scale` on the loss, and `backward` on the result";
                Err(Error::invalid(op, reason))
            }
        }
    }
}

/// Fails if an enabled scaler cannot have these options.
#[track_caller]
fn check(op: &'static str, options: &GradScalerOptions) -> Result<()> {
    let &GradScalerOptions { init_scale: scale, growth_factor, backoff_factor, .. } = options;
    let reason = if !options.enabled {
        return Ok(());
    } else if !(scale as f32).is_finite() {
        format!("the scale must be finite in `float32`, but is {scale}")
    } else if growth_factor.is_nan() || growth_factor <= 1.0 {
        format!("the growth factor must be above 1, but is {growth_factor}")
    } else if backoff_factor.is_nan() || backoff_factor >= 1.0 {
        format!("the backoff factor must be below 1, but is {backoff_factor}")
    } else {
        return Ok(());
    };
    Err(Error::invalid(op, reason))
}

/// Returns a number of a saved state.
#[track_caller]
fn number(state: &StateDict, name: &str) -> Result<Scalar> {
    let Some(number) = state.get(name) else {
        let reason =
            format!("the state has no `{name}`; a disabled `GradScaler` saves an empty state");
        return Err(Error::invalid("load_state_dict", reason));
    };
    number.to_scalar()
}

/// Returns an integer of a saved state.
#[track_caller]
fn whole(state: &StateDict, name: &str) -> Result<i64> {
    match number(state, name)? {
        Scalar::Int(count) => Ok(count),
        other => {
            let reason = format!("`{name}` is {other:?}, but must be an integer");
            Err(Error::invalid("load_state_dict", reason))
        }
    }
}
