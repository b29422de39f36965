//! Automatic mixed precision (`torch.amp`).
//!
//! In a region, ops first convert their operands, by PyTorch's lists. Products compute in a half-width dtype, which
//! tensor cores support. Ops that need range or exactness compute in `float32`. All other ops run in the dtype of their
//! operands. Parameters stay in `float32`, and so do their gradients.
//!
//! The regions of a thread are part of its [modes](crate::autograd::Modes), so the threads of a loader and of
//! `DataParallel` have them, too. A backward pass is in no region: its ops run in the dtypes of the forward pass.
//! Only the `backward` of a [custom function](crate::autograd::Function) is in the region of its `forward`.

mod cast;

use std::marker::PhantomData;

/// Returns from an op with the result of `$call`, which calls the op again, if the thread's region converts the op's
/// operands. `$gpu` and `$cpu` are the op's policies. In `$call`, the names of the operands stand for the converted
/// operands. Optional operands follow a semicolon.
macro_rules! autocast_operands {
    ($gpu:ident, $cpu:ident, [$($name:ident),+ $(; $($optional:ident),+)?] => $call:expr) => {
        if $crate::amp::casts()
            && let Some((operands, _closed)) = $crate::amp::cast_operands(
                [$crate::amp::Policy::$gpu, $crate::amp::Policy::$cpu],
                &[$(Some($name)),+ $($(, $optional)+)?],
            )?
        {
            let mut operands = operands.iter().map(Option::as_ref);
            $(let $name = operands.next().flatten().unwrap_or($name);)+
            $($(let $optional = operands.next().flatten().or($optional);)+)?
            return $call;
        }
    };
}

pub(crate) use autocast_operands;
pub use cast::clear_autocast_cache;
pub(crate) use cast::{
    CaptureCasts, CastSlot, cast_inputs, cast_operands, casts, drop_casts, keep_operands,
    remember_converted,
};
pub(crate) use warpline_kernels::autocast::Policy;

use crate::autograd::{AutocastMode, AutocastModes, ModeGuard};
use crate::called::Called;
use crate::{DType, Error, IntoDevice, IntoOptions, Result};

crate::__options! {
    /// Options of [`autocast`]: `()`, or a dtype, or this struct.
    #[derive(Clone, Copy, Debug)]
    AutocastOptions [] [] {
        /// Sets the dtype of products: `f16`, `bf16` or, on GPUs, `f32`. Default: the dtype of the enclosing region, or
        /// else `f16` on GPUs and `bf16` on the CPU.
        dtype: Option<DType> = None, DType => Some;
        /// Sets whether the region converts operands. A region with `false` within another region restores the dtypes
        /// of a program without autocast. Default: true.
        enabled: bool = true, bool;
        /// Sets whether a parameter is converted only once, and again after a change, instead of at each use. Default:
        /// the setting of the enclosing region, or else true.
        cache_enabled: Option<bool> = None, bool => Some;
    }
}

impl From<DType> for AutocastOptions {
    fn from(dtype: DType) -> Self {
        Self::new().dtype(dtype)
    }
}

/// Runs `f` in a region in which ops on a kind of device, `"cuda"` or `"cpu"`, choose their dtype
/// (`torch.autocast`). Call [`Tensor::backward`](crate::Tensor::backward) outside the region. [`AutocastGuard`] opens
/// the same region to the end of a block.
///
/// A parameter of `float32` is converted once, and again only after it was changed. An allocation that finds no free
/// memory on a GPU frees the converted copies. A capture converts a parameter itself, once in each region, so that
/// replays convert its current values. PyTorch's CPU has no regions of `float32`, so such a region is disabled, with a
/// warning.
///
/// ```
/// use warpline::{DType, amp, ones};
///
/// let weight = ones([3, 2], ())?.requires_grad_(true)?;
/// let y = amp::autocast("cpu", (), || ones([4, 3], ())?.matmul(&weight))?;
/// assert_eq!(y.dtype(), DType::BF16);
/// y.to(DType::F32)?.sum(())?.backward()?;
/// assert_eq!(weight.grad().unwrap().dtype(), DType::F32);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidDeviceString`](crate::ErrorKind::InvalidDeviceString) if a string names no device.
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if an enabled region has a dtype that is not `f16`,
/// `bf16` or `f32`. Errors of `f`.
#[track_caller]
pub fn autocast<R>(
    device: impl IntoDevice,
    options: impl IntoOptions<AutocastOptions>,
    f: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let _guard = AutocastGuard::new(device, options)?;
    f()
}

/// A region of [`autocast`] that ends when the guard is dropped. Drop nested guards in reverse order of their
/// creation.
///
/// ```
/// use warpline::{amp::AutocastGuard, amp::is_autocast_enabled};
///
/// {
///     let _guard = AutocastGuard::new("cuda", ())?;
///     assert!(is_autocast_enabled("cuda")?);
/// }
/// assert!(!is_autocast_enabled("cuda")?);
/// # Ok::<(), warpline::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the region ends when the guard is dropped"]
pub struct AutocastGuard {
    _mode: ModeGuard,
    /// The guard must be dropped by its thread.
    thread: PhantomData<*const ()>,
}

impl AutocastGuard {
    /// Opens a region. See [`autocast`].
    ///
    /// # Errors
    /// The same as [`autocast`], except the errors of its function.
    #[track_caller]
    pub fn new(
        device: impl IntoDevice,
        options: impl IntoOptions<AutocastOptions>,
    ) -> Result<Self> {
        let (device, options) = (device.into_device().of("autocast")?, options.into_options());
        let mut modes = AutocastModes::current();
        let dtype = options.dtype.unwrap_or(modes.of(device).dtype);
        if options.enabled && !matches!(dtype, DType::F16 | DType::BF16 | DType::F32) {
            let reason = format!("autocast computes in f16, bf16 or f32, but dtype is {dtype}");
            return Err(Error::invalid("autocast", reason));
        }
        let enabled = options.enabled && !(device.is_cpu() && dtype == DType::F32);
        if options.enabled && !enabled {
            crate::__warn(
                "autocast on the CPU computes in bf16 or f16; a region with dtype f32 is disabled",
            );
        }
        let mode = ModeGuard::autocast(|modes| {
            *modes.of(device) = AutocastMode { enabled, dtype };
            modes.cache = options.cache_enabled.unwrap_or(modes.cache);
        });
        Ok(Self { _mode: mode, thread: PhantomData })
    }
}

/// Returns whether this thread is in an enabled region for a kind of device (`torch.is_autocast_enabled`).
///
/// # Errors
/// [`ErrorKind::InvalidDeviceString`](crate::ErrorKind::InvalidDeviceString) if a string names no device.
#[track_caller]
pub fn is_autocast_enabled(device: impl IntoDevice) -> Result<bool> {
    let device = device.into_device().of("is_autocast_enabled")?;
    Ok(AutocastModes::current().of(device).enabled)
}

/// Returns whether a kind of device has regions of autocast: true for `"cuda"` and `"cpu"`, also without a GPU
/// (`torch.amp.is_autocast_available`).
///
/// ```
/// assert!(warpline::amp::is_autocast_available("cuda")?);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidDeviceString`](crate::ErrorKind::InvalidDeviceString) if a string names no device.
#[track_caller]
pub fn is_autocast_available(device: impl IntoDevice) -> Result<bool> {
    device.into_device().of("is_autocast_available").map(|_| true)
}

/// Returns whether this thread's regions convert a parameter only once (`torch.is_autocast_cache_enabled`).
#[must_use]
pub fn is_autocast_cache_enabled() -> bool {
    AutocastModes::current().cache
}

/// Returns the dtype of products in this thread's region for a kind of device, or the default dtype outside regions
/// (`torch.get_autocast_dtype`).
///
/// # Errors
/// [`ErrorKind::InvalidDeviceString`](crate::ErrorKind::InvalidDeviceString) if a string names no device.
#[track_caller]
pub fn get_autocast_dtype(device: impl IntoDevice) -> Result<DType> {
    let device = device.into_device().of("get_autocast_dtype")?;
    Ok(AutocastModes::current().of(device).dtype)
}
