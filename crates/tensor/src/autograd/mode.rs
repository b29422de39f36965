//! Whether ops are recorded: a state of each thread.

use std::cell::Cell;

#[derive(Clone, Copy, Debug)]
pub(super) struct Mode {
    pub(super) grad: bool,
    pub(super) inference: bool,
    anomaly: bool,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode { grad: true, inference: false, anomaly: false }) };
}

#[inline]
pub(super) fn get() -> Mode {
    MODE.with(Cell::get)
}

/// Runs `f` in a mode; the former one is back afterwards, after a panic too.
fn within<R>(change: impl FnOnce(&mut Mode), f: impl FnOnce() -> R) -> R {
    struct Restore(Mode);
    impl Drop for Restore {
        fn drop(&mut self) {
            MODE.with(|mode| mode.set(self.0));
        }
    }
    let former = get();
    let _restore = Restore(former);
    let mut mode = former;
    change(&mut mode);
    MODE.with(|slot| slot.set(mode));
    f()
}

/// This thread's modes, to be taken to another one.
///
/// ```
/// use warpline::autograd::{Modes, is_grad_enabled, no_grad};
///
/// let modes = no_grad(Modes::current);
/// let there = std::thread::spawn(move || modes.within(is_grad_enabled));
/// assert!(!there.join().unwrap() && is_grad_enabled());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Modes(Mode);

impl Modes {
    /// Those of this thread.
    #[must_use]
    pub fn current() -> Self {
        Self(get())
    }

    /// Runs `f` with them.
    pub fn within<R>(self, f: impl FnOnce() -> R) -> R {
        within(|mode| *mode = self.0, f)
    }
}

/// Whether ops of this thread are recorded for gradients (`torch.is_grad_enabled`).
#[must_use]
pub fn is_grad_enabled() -> bool {
    get().grad
}

/// Whether this thread is in [`inference_mode`] (`torch.is_inference_mode_enabled`).
#[must_use]
pub fn is_inference_mode_enabled() -> bool {
    get().inference
}

/// Whether this thread is in [`detect_anomaly`] (`torch.is_anomaly_enabled`).
#[must_use]
pub fn is_anomaly_enabled() -> bool {
    get().anomaly
}

/// Runs `f` without recording (`torch.no_grad`): what it computes has no gradient. It holds for this
/// thread; threads that `f` starts record.
///
/// ```
/// use warpline::{autograd, ones};
///
/// let weight = ones([2], ())?.requires_grad_(true)?;
/// let step = autograd::no_grad(|| weight.mul(0.5))?;
/// assert!(!step.requires_grad());
/// # Ok::<(), warpline::Error>(())
/// ```
pub fn no_grad<R>(f: impl FnOnce() -> R) -> R {
    set_grad_enabled(false, f)
}

/// Runs `f` with recording, within [`no_grad`] too (`torch.enable_grad`).
pub fn enable_grad<R>(f: impl FnOnce() -> R) -> R {
    set_grad_enabled(true, f)
}

/// Runs `f` with or without recording (`torch.set_grad_enabled`).
pub fn set_grad_enabled<R>(enabled: bool, f: impl FnOnce() -> R) -> R {
    within(|mode| mode.grad = enabled, f)
}

/// Runs `f` as [`no_grad`] does; what it computes can never be used where a gradient is wanted
/// (`torch.inference_mode`). Outside, a copy of it can.
pub fn inference_mode<R>(f: impl FnOnce() -> R) -> R {
    within(|mode| (mode.grad, mode.inference) = (false, true), f)
}

/// Runs `f` so that a backward pass in it stops with an error at the first gradient that is NaN, naming the
/// op that made it and where its forward op was called (`torch.autograd.detect_anomaly`). Each gradient is
/// waited for.
pub fn detect_anomaly<R>(f: impl FnOnce() -> R) -> R {
    within(|mode| mode.anomaly = true, f)
}
