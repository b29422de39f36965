//! The execution target of an op: the host or a stream. Each op looks up its target once.

use std::borrow::Cow;

use warpline_runtime::{CudaDevice, Layout, MemoryFormat, Storage, Target, byte_size};
use warpline_stream::Stream;

use crate::{DType, Device, Error, ErrorKind, Result, Runtime, Tensor, TensorOptions};

/// The place where ops on a tensor run: the host, or the tensor's device with the current stream of this
/// thread. Ops of other crates take a [`Target`] and the tensors' [views](Tensor::as_view).
#[derive(Debug)]
pub enum Exec<'a> {
    /// The host.
    Cpu(&'a Runtime),
    /// A stream of a device.
    Cuda(&'a Runtime, &'a CudaDevice, Cow<'a, Stream>),
}

impl<'a> Exec<'a> {
    /// Returns the target of ops on tensors in `storage`. Does not depend on the current device.
    #[track_caller]
    pub(crate) fn of(storage: &'a Storage) -> Result<Self> {
        match storage.cuda_device() {
            None => Ok(Self::Cpu(storage.runtime())),
            Some(gpu) => Self::cuda(storage.runtime(), gpu),
        }
    }

    /// Returns the target of ops that create tensors on `device`. `cuda` without an index is the current
    /// device.
    #[track_caller]
    pub(crate) fn on(runtime: &'a Runtime, device: Device) -> Result<Self> {
        match device {
            Device::Cpu => Ok(Self::Cpu(runtime)),
            Device::Cuda(index) => {
                let index = match index {
                    Some(index) => index,
                    None => runtime.devices()?.current_device(),
                };
                Self::cuda(runtime, runtime.device(index)?)
            }
        }
    }

    #[track_caller]
    fn cuda(runtime: &'a Runtime, gpu: &'a CudaDevice) -> Result<Self> {
        Ok(Self::Cuda(runtime, gpu, runtime.devices()?.borrowed_stream(gpu.index())?))
    }

    /// Returns the place as a [`Target`], which ops take. Call ops outside closures, so that their errors have
    /// the caller's location.
    #[must_use]
    pub fn target(&self) -> Target<'_> {
        match self {
            Self::Cpu(runtime) => Target::Cpu(runtime),
            Self::Cuda(runtime, gpu, stream) => Target::Cuda(runtime, gpu, stream),
        }
    }

    /// Fails if the stream is being captured, because the host would have to wait for the op `op`.
    #[track_caller]
    pub(crate) fn refuse_capture(&self, op: &'static str) -> Result<()> {
        match self {
            Self::Cuda(_, _, stream) if stream.is_capturing() => {
                let reason = "the host would wait for work that runs only in a replay; call it after a replay";
                Err(Error::capture(op, reason))
            }
            _ => Ok(()),
        }
    }

    /// Creates a row-major tensor of zeros on this target, in memory that other processes can access.
    #[track_caller]
    pub(crate) fn shared(&self, sizes: &[usize], dtype: DType) -> Result<Tensor> {
        let layout = Layout::contiguous(sizes)?;
        let bytes = byte_size(&layout, dtype)?;
        self.refuse_capture("share_memory")?;
        let storage = match self {
            Self::Cpu(runtime) => Storage::shared_host(runtime, bytes)?,
            Self::Cuda(runtime, _, stream) => Storage::shared(runtime, bytes, stream)?,
        };
        Ok(Tensor::from_parts(storage, layout, dtype))
    }

    /// Creates a row-major tensor with unspecified elements on this target.
    #[track_caller]
    pub(crate) fn empty(&self, sizes: &[usize], dtype: DType) -> Result<Tensor> {
        self.empty_in(Layout::contiguous(sizes)?, dtype)
    }

    /// Creates a tensor on this target for the result of an elementwise op on operands with these layouts.
    #[track_caller]
    pub(crate) fn empty_for(&self, operands: &[&Layout], dtype: DType) -> Result<Tensor> {
        self.empty_in(Layout::of_result(operands), dtype)
    }

    /// Creates a tensor with a dense layout and unspecified elements on this target.
    #[track_caller]
    pub(crate) fn empty_in(&self, layout: Layout, dtype: DType) -> Result<Tensor> {
        let bytes = byte_size(&layout, dtype)?;
        let storage = match self {
            Self::Cpu(runtime) => Storage::pageable(runtime, bytes)?,
            Self::Cuda(runtime, _, stream) => Storage::device(runtime, bytes, stream)?,
        };
        Ok(Tensor::from_parts(storage, layout, dtype))
    }
}

/// Creates a tensor with these options. `dtype` is the default dtype.
#[track_caller]
pub(crate) fn empty(
    runtime: &Runtime,
    sizes: &[usize],
    options: &TensorOptions,
    dtype: DType,
) -> Result<Tensor> {
    let format = options.requested_memory_format().unwrap_or(MemoryFormat::Contiguous);
    empty_in(runtime, Layout::in_format(sizes, format)?, options, dtype)
}

/// Creates a tensor with these options and a dense layout, like [`empty`]. Ignores the memory format of the
/// options.
#[track_caller]
pub(crate) fn empty_in(
    runtime: &Runtime,
    layout: Layout,
    options: &TensorOptions,
    dtype: DType,
) -> Result<Tensor> {
    let dtype = options.requested_dtype().unwrap_or(dtype);
    let device = options.requested_device()?.unwrap_or_default();
    if !options.pins_memory() {
        return Exec::on(runtime, device)?.empty_in(layout, dtype);
    }
    if device.is_cuda() {
        return Err(ErrorKind::CannotPin { device }.of(""));
    }
    let storage = Storage::pinned(runtime, byte_size(&layout, dtype)?)?;
    Ok(Tensor::from_parts(storage, layout, dtype))
}

/// Returns whether ops on the device of `a` may read `b`: the tensors are on the same device, or the device of
/// `a` has peer access to the device of `b`.
pub(crate) fn can_read(a: &Tensor, b: &Tensor) -> bool {
    match (a.storage().cuda_device(), b.storage().cuda_device()) {
        (Some(device), Some(peer)) => {
            a.storage().runtime().peer_access_enabled(device.index(), peer.index())
        }
        (None, None) => true,
        _ => false,
    }
}

/// Fails if the tensors belong to different runtimes, or if ops on the device of `a` cannot read `b`.
#[track_caller]
pub(crate) fn check_together(op: &'static str, a: &Tensor, b: &Tensor) -> Result<()> {
    if !a.storage().runtime().same_as(b.storage().runtime()) {
        return Err(ErrorKind::RuntimeMismatch.of(op));
    }
    if can_read(a, b) {
        return Ok(());
    }
    let (first, second) = (a.device(), b.device());
    Err(ErrorKind::device_mismatch(first, second).of(op))
}
