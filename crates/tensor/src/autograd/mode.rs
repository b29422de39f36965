//! Modes of a thread, such as whether ops are recorded.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::amp::drop_casts;
use crate::{DType, Device, Result};

#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadModes {
    pub(super) grad: bool,
    pub(super) inference: bool,
    anomaly: bool,
    /// Whether `make_graphed_callables` runs a function of the program.
    graphed: bool,
    autocast: AutocastModes,
}

/// The regions of [`autocast`](crate::amp::autocast) that are open on a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AutocastModes {
    cpu: AutocastMode,
    cuda: AutocastMode,
    pub(crate) cache: bool,
    /// Whether converted copies of parameters outlive the outermost region: its `cache`.
    pub(crate) keeps: bool,
    /// Number of live guards of [`ModeGuard::autocast`]: of regions, enabled or not, and of ops that disable autocast.
    depth: u32,
}

/// The region for a kind of device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AutocastMode {
    pub(crate) enabled: bool,
    /// The dtype of products in this region, and in nested regions that set no dtype. Outside regions: the default of
    /// the device.
    pub(crate) dtype: DType,
}

impl AutocastModes {
    const NONE: Self = Self {
        cpu: AutocastMode { enabled: false, dtype: DType::BF16 },
        cuda: AutocastMode { enabled: false, dtype: DType::F16 },
        cache: true,
        keeps: true,
        depth: 0,
    };

    #[inline]
    pub(crate) fn current() -> Self {
        get().autocast
    }

    #[inline]
    pub(crate) fn is_on(self) -> bool {
        self.cpu.enabled || self.cuda.enabled
    }

    pub(crate) fn of(&mut self, device: Device) -> &mut AutocastMode {
        match device {
            Device::Cpu => &mut self.cpu,
            Device::Cuda(_) => &mut self.cuda,
        }
    }

    /// Disables autocast. The regions stay open.
    pub(crate) fn close(&mut self) {
        (self.cpu.enabled, self.cuda.enabled) = (false, false);
    }
}

thread_local! {
    static MODE: Cell<ThreadModes> = const { Cell::new(ThreadModes {
        grad: true,
        inference: false,
        anomaly: false,
        graphed: false,
        autocast: AutocastModes::NONE,
    }) };
}

#[inline]
pub(super) fn get() -> ThreadModes {
    MODE.with(Cell::get)
}

/// Returns whether this thread runs a function of [`make_graphed_callables`](crate::cuda::make_graphed_callables).
#[doc(hidden)]
#[must_use]
pub fn is_making_graphed_callables() -> bool {
    get().graphed
}

/// A guard that sets whether this thread records ops, until the guard is dropped. Each constructor sets the
/// mode of the function with the same name, such as [`no_grad`]. Drop nested guards in reverse order of their
/// creation.
///
/// ```
/// use warpline::autograd::{ModeGuard, is_grad_enabled};
/// use warpline::ones;
///
/// let weight = ones([2], ())?.requires_grad_(true)?;
/// {
///     let _guard = ModeGuard::no_grad();
///     weight.mul_(0.5)?;
/// }
/// assert!(is_grad_enabled());
/// # Ok::<(), warpline::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the mode ends when the guard is dropped"]
pub struct ModeGuard {
    former: ThreadModes,
    /// The guard must be dropped by its thread.
    thread: PhantomData<*const ()>,
}

impl ModeGuard {
    fn new(change: impl FnOnce(&mut ThreadModes)) -> Self {
        let former = get();
        let mut mode = former;
        change(&mut mode);
        MODE.set(mode);
        Self { former, thread: PhantomData }
    }

    /// Does not record ops (`torch.no_grad`). See [`no_grad`].
    pub fn no_grad() -> Self {
        Self::set_grad_enabled(false)
    }

    /// Records ops (`torch.enable_grad`). See [`enable_grad`].
    pub fn enable_grad() -> Self {
        Self::set_grad_enabled(true)
    }

    /// Records ops if `enabled` is true, otherwise does not (`torch.set_grad_enabled`). See [`set_grad_enabled`].
    pub fn set_grad_enabled(enabled: bool) -> Self {
        Self::new(|mode| mode.grad = enabled)
    }

    /// Does not record ops, and makes tensors that are never recorded (`torch.inference_mode`). See
    /// [`inference_mode`].
    pub fn inference_mode() -> Self {
        Self::new(|mode| (mode.grad, mode.inference) = (false, true))
    }

    /// Sets the modes of a function that `make_graphed_callables` runs.
    pub(crate) fn graphed() -> Self {
        Self::new(|mode| (mode.grad, mode.graphed) = (true, true))
    }

    /// Changes the regions of autocast.
    pub(crate) fn autocast(change: impl FnOnce(&mut AutocastModes)) -> Self {
        Self::new(|mode| {
            change(&mut mode.autocast);
            if mode.autocast.depth == 0 {
                mode.autocast.keeps = mode.autocast.cache;
            }
            mode.autocast.depth += 1;
        })
    }

    /// Sets the modes of a backward pass.
    pub(super) fn backward_pass(create_graph: bool) -> Self {
        Self::new(|mode| {
            mode.grad = create_graph;
            mode.autocast.close();
        })
    }
}

impl Drop for ModeGuard {
    fn drop(&mut self) {
        let ended = MODE.replace(self.former).autocast.depth;
        if ended > 0 && self.former.autocast.depth == 0 {
            drop_casts();
        }
    }
}

/// Runs `f` in a mode, and restores the previous mode, even if `f` panics.
fn within<R>(change: impl FnOnce(&mut ThreadModes), f: impl FnOnce() -> R) -> R {
    let _guard = ModeGuard::new(change);
    f()
}

/// The modes of a thread, which can be carried to another thread.
///
/// ```
/// use warpline::autograd::{Modes, is_grad_enabled, no_grad};
///
/// let modes = no_grad(|| Ok(Modes::current()))?;
/// let there = std::thread::spawn(move || modes.within(is_grad_enabled));
/// assert!(!there.join().unwrap() && is_grad_enabled());
/// # Ok::<(), warpline::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Modes(ThreadModes);

impl Modes {
    /// Returns the modes of this thread.
    #[must_use]
    pub fn current() -> Self {
        Self(get())
    }

    /// Runs `f` in these modes.
    pub fn within<R>(self, f: impl FnOnce() -> R) -> R {
        within(|mode| *mode = self.0, f)
    }
}

/// Returns whether ops of this thread are recorded for gradients (`torch.is_grad_enabled`).
#[must_use]
pub fn is_grad_enabled() -> bool {
    get().grad
}

/// Returns whether this thread is in [`inference_mode`] (`torch.is_inference_mode_enabled`).
#[must_use]
pub fn is_inference_mode_enabled() -> bool {
    get().inference
}

/// Returns whether this thread is in [`detect_anomaly`] (`torch.is_anomaly_enabled`).
#[must_use]
pub fn is_anomaly_enabled() -> bool {
    get().anomaly
}

/// Runs `f` without recording (`torch.no_grad`). The results require no gradient. The mode applies to this
/// thread only; ops in threads that `f` starts are recorded. [`ModeGuard::no_grad`] sets the same mode to the
/// end of a block.
///
/// ```
/// use warpline::{autograd, ones};
///
/// let weight = ones([2], ())?.requires_grad_(true)?;
/// let step = autograd::no_grad(|| weight.mul(0.5))?;
/// assert!(!step.requires_grad());
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// Errors of `f`.
pub fn no_grad<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    let _guard = ModeGuard::no_grad();
    f()
}

/// Runs `f` with recording, even within [`no_grad`] (`torch.enable_grad`).
///
/// # Errors
/// Errors of `f`.
pub fn enable_grad<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    let _guard = ModeGuard::enable_grad();
    f()
}

/// Runs `f` with or without recording (`torch.set_grad_enabled`).
///
/// # Errors
/// Errors of `f`.
pub fn set_grad_enabled<R>(enabled: bool, f: impl FnOnce() -> Result<R>) -> Result<R> {
    let _guard = ModeGuard::set_grad_enabled(enabled);
    f()
}

/// Runs `f` without recording, like [`no_grad`] (`torch.inference_mode`). A result of `f` can never require a
/// gradient, be saved for a gradient, or be changed in place where ops are recorded. A copy of the result, made
/// outside of `inference_mode`, has no such limits.
///
/// # Errors
/// Errors of `f`.
pub fn inference_mode<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    let _guard = ModeGuard::inference_mode();
    f()
}

/// Runs `f` such that a backward pass in it fails at the first NaN in a gradient
/// (`torch.autograd.detect_anomaly`). The error names the op that made the NaN and the location of its forward
/// call. The host waits for each gradient.
///
/// # Errors
/// Errors of `f`.
pub fn detect_anomaly<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    within(|mode| mode.anomaly = true, f)
}
