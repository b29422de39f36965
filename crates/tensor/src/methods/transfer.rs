//! Copies between devices, dtypes and layouts.

use std::panic::Location;

use smallvec::smallvec;
use warpline_kernels::copy;
use warpline_runtime::{Layout, MemoryFormat, Storage, launch};

use crate::autograd::{
    Gradients, NodeInputs, OpBackward, Saved, check_in_place, linear, record, record_in_place,
    should_record, should_record_in_place,
};
use crate::called::Called;
use crate::exec::{Exec, can_read, empty_in};
use crate::{
    CallScope, DType, Device, Error, ErrorKind, IntoOptions, OrDefault, Result, Tensor,
    TensorOptions,
};

impl Tensor {
    /// Copies the elements to new memory, and keeps the order of the dimensions in memory
    /// (`torch.Tensor.clone`). Rust's `clone` makes another handle of the same tensor, as `b = a` does in
    /// Python.
    ///
    /// ```
    /// # use warpline::zeros;
    /// let a = zeros([2], ())?;
    /// let (same, copy) = (a.clone(), a.copy()?);
    /// a.fill_(1)?;
    /// assert_eq!((same.to_vec::<f32>()?, copy.to_vec::<f32>()?), (vec![1.0; 2], vec![0.0; 2]));
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// Errors of [every op](Tensor#errors-of-every-op).
    #[doc(alias = "clone")]
    #[doc(alias = "force_clone")]
    #[track_caller]
    pub fn copy(&self) -> Result<Self> {
        self.recorded_copy("clone", self.duplicate().of("copy")?)
    }

    /// Records `copy` as a copy of this tensor's elements, if autograd records ops on this tensor.
    #[track_caller]
    pub(crate) fn recorded_copy(&self, name: &'static str, copy: Self) -> Result<Self> {
        if !copy.dtype().is_float() || !should_record(&[self]) {
            return Ok(copy);
        }
        record(
            name,
            copy,
            &[self],
            linear(|grad, inputs| grad.to((inputs.dtype(0), inputs.device(0)))),
        )
    }

    #[track_caller]
    pub(crate) fn duplicate(&self) -> Result<Self> {
        self.converted(self.dtype())
    }

    /// Converts the tensor to another dtype on the same device. Keeps the order of dimensions in memory.
    #[track_caller]
    pub(crate) fn converted(&self, dtype: DType) -> Result<Self> {
        self.converted_by(&self.exec()?, dtype)
    }

    /// Converts the tensor to another dtype on `exec`, which must be able to read this tensor. Keeps the
    /// order of dimensions in memory.
    #[track_caller]
    pub(crate) fn converted_by(&self, exec: &Exec<'_>, dtype: DType) -> Result<Self> {
        self.copied_to(exec, self.layout().preserved(), dtype)
    }

    /// Copies the tensor to a new tensor on `exec`, with the dtype `dtype` and the layout `layout`, which must
    /// be dense.
    #[track_caller]
    pub(crate) fn copied_to(&self, exec: &Exec<'_>, layout: Layout, dtype: DType) -> Result<Self> {
        if self.storage().is_shared_host() {
            return self.copy_from_shared_host()?.copied_to(exec, layout, dtype);
        }
        let out = exec.empty_in(layout, dtype)?;
        copy::copy(exec.target(), self.as_view(), out.as_view())?;
        Ok(out)
    }

    /// Returns the layout for a copy of this tensor: in `format` or, if `format` is `None`, with the same order
    /// of dimensions in memory.
    #[track_caller]
    pub(crate) fn layout_in(&self, format: Option<MemoryFormat>) -> Result<Layout> {
        match format {
            None | Some(MemoryFormat::Preserve) => Ok(self.layout().preserved()),
            Some(format) => Layout::in_format(self.size(), format),
        }
    }

    /// Returns this tensor, or a converted copy if its dtype differs.
    #[track_caller]
    pub(crate) fn in_dtype(&self, dtype: DType) -> Result<Self> {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        self.recorded_copy("to_copy", self.converted(dtype)?)
    }

    /// Returns the tensor on another device, in another dtype, or both (`torch.Tensor.to`). The result is the
    /// tensor itself if nothing changes.
    ///
    /// ```
    /// # use warpline::{DType, ones};
    /// let t = ones([2], ())?.to(DType::F64)?.to("cpu")?;
    /// assert_eq!(t.dtype(), DType::F64);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidDeviceString`], [`ErrorKind::NoSuchDevice`] or [`ErrorKind::CudaUnavailable`] if the
    /// requested device does not exist. [`ErrorKind::CannotPin`] if pinned memory is requested on a GPU.
    /// [`ErrorKind::InvalidArgument`] if the memory format does not apply to the tensor. Errors of
    /// [every op](Tensor#errors-of-every-op).
    #[doc(alias = "to_dtype")]
    #[doc(alias = "to_device")]
    #[doc(alias = "type")]
    #[doc(alias = "float")]
    #[doc(alias = "double")]
    #[doc(alias = "half")]
    #[doc(alias = "bfloat16")]
    #[doc(alias = "long")]
    #[doc(alias = "int")]
    #[doc(alias = "bool")]
    #[track_caller]
    pub fn to(&self, options: impl Into<TensorOptions>) -> Result<Self> {
        let _call = CallScope::enter("to");
        self.transfer(options.into(), false)
    }

    /// Returns the tensor in the dtype and on the device of another tensor (`torch.Tensor.type_as`). The result is the
    /// tensor itself if nothing changes.
    ///
    /// ```
    /// # use warpline::{DType, ones, tensor};
    /// let labels = tensor([0i64, 1], ())?;
    /// assert_eq!(labels.type_as(&ones([2], ())?)?.dtype(), DType::F32);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn type_as(&self, other: &Tensor) -> Result<Self> {
        let _call = CallScope::enter("type_as");
        self.transfer((other.dtype(), other.device()).into(), false)
    }

    /// The same as [`Tensor::to`], but does not wait for a copy between page-locked memory and a GPU
    /// (`torch.Tensor.to` with `non_blocking=True`). A result on the host is page-locked, and ops on it wait
    /// for the copy. The call still waits for copies between a GPU and memory that is not page-locked.
    ///
    /// # Errors
    /// The same as [`Tensor::to`].
    #[doc(alias = "non_blocking")]
    #[track_caller]
    pub fn to_non_blocking(&self, options: impl Into<TensorOptions>) -> Result<Self> {
        let _call = CallScope::enter("to");
        self.transfer(options.into(), true)
    }

    /// Returns the tensor on the current GPU.
    ///
    /// # Errors
    /// The same as [`Tensor::to`].
    #[track_caller]
    pub fn cuda(&self) -> Result<Self> {
        self.to(Device::Cuda(None)).of("cuda")
    }

    /// Returns the tensor on the CPU.
    ///
    /// # Errors
    /// The same as [`Tensor::to`].
    #[track_caller]
    pub fn cpu(&self) -> Result<Self> {
        let _call = CallScope::enter("cpu");
        self.to(Device::Cpu)
    }

    #[track_caller]
    fn transfer(&self, options: TensorOptions, non_blocking: bool) -> Result<Self> {
        let runtime = self.storage().runtime();
        let device = match options.requested_device()? {
            None => self.device(),
            Some(Device::Cuda(None)) => Device::cuda(runtime.devices()?.current_device()),
            Some(device) => device,
        };
        let dtype = options.requested_dtype().unwrap_or(self.dtype());
        let pin = options.pins_memory();
        let format = options.requested_memory_format();
        let in_format = match format {
            None | Some(MemoryFormat::Preserve) => true,
            Some(format) => self.layout().is_contiguous_in(format),
        };
        let here = device == self.device() && (!pin || self.is_pinned());
        if here && dtype == self.dtype() && in_format {
            return Ok(self.clone());
        }
        // A copy to the host can be asynchronous only if the host memory is page-locked.
        let pin = pin || (non_blocking && device.is_cpu() && self.is_cuda());
        let options = TensorOptions::new().dtype(dtype).device(device).pin_memory(pin);
        let out = empty_in(runtime, self.layout_in(format)?, &options, dtype)?;
        out.overwrite(self, non_blocking)?;
        self.recorded_copy("to_copy", out)
    }

    /// Copies the tensor to page-locked host memory (`torch.Tensor.pin_memory`). Returns the tensor itself if
    /// it is in such memory.
    ///
    /// # Errors
    /// [`ErrorKind::CannotPin`] if the tensor is on a GPU. [`ErrorKind::CudaUnavailable`] if there is no GPU.
    /// Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn pin_memory(&self) -> Result<Self> {
        let _call = CallScope::enter("pin_memory");
        if self.is_cuda() {
            return Err(ErrorKind::CannotPin { device: self.device() }.of("pin_memory"));
        }
        self.to(TensorOptions::new().pin_memory(true))
    }

    /// Copies the tensor to memory that other processes can map; the copy is contiguous. Returns the tensor
    /// itself if it is in such memory. `torch.Tensor.share_memory_` moves the tensor instead. A channel of
    /// `warpline::multiprocessing` sends the result to other processes.
    ///
    /// The memory of a CPU tensor is page-locked if there is a GPU. Other processes may write to this memory at
    /// any time, which limits the use of the tensor. It can be copied: from and to GPUs without waiting, and by
    /// [`Tensor::copy`]. If it is contiguous, [`Tensor::copy_`] can write to it. It can be read by [`Tensor::to_vec`],
    /// [`Tensor::item`] and printing, and it can be sent. Ops on the host refuse the tensor with
    /// [`ErrorKind::SharedHostMemory`].
    ///
    /// If the tensor is a leaf that requires a gradient, so is the result, which has no gradient yet. The
    /// result is a different tensor, so share parameters before you build an optimizer for them.
    ///
    /// # Errors
    /// [`ErrorKind::CannotShare`] if the driver or the operating system cannot share memory; the field `reason`
    /// says why. [`ErrorKind::Gradient`] if the tensor requires a gradient and is not a leaf, because the copy
    /// would leave its graph. [`ErrorKind::Capture`] if the stream is being captured. [`ErrorKind::Driver`] if
    /// the device has no free memory. Otherwise the same as [`Tensor::copy_`].
    #[track_caller]
    pub fn share_memory(&self) -> Result<Self> {
        let _call = CallScope::enter("share_memory");
        if self.is_shared() {
            return Ok(self.clone());
        }
        self.refuse_unshared_graph("share_memory")?;
        let out = self.exec()?.shared(self.size(), self.dtype())?;
        out.overwrite(self, false)?;
        if self.requires_grad() { out.requires_grad_(true) } else { Ok(out) }
    }

    /// Fails if the tensor requires a gradient and is not a leaf, because its graph cannot be shared.
    #[track_caller]
    pub(crate) fn refuse_unshared_graph(&self, op: &'static str) -> Result<()> {
        if !self.requires_grad() || self.is_leaf() {
            return Ok(());
        }
        let reason = "the tensor requires a gradient and is not a leaf, and autograd does not cross \
                      processes; use the result of `detach` to share its values alone";
        Err(Error::gradient(op, reason))
    }

    /// Returns whether the tensor is in memory that other processes can map.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.storage().is_shared()
    }

    /// Copies the elements of `src` to this tensor (`torch.Tensor.copy_`). `src` broadcasts to this tensor's
    /// sizes, and is converted to its dtype and moved to its device. If `non_blocking` is true, the call does
    /// not wait for a copy between a GPU and page-locked memory. Default of `non_blocking`: `false`.
    ///
    /// A copy between GPUs runs after all work on the current streams of both. Later work on these streams runs
    /// after the copy.
    ///
    /// # Errors
    /// [`ErrorKind::ExpandMismatch`] if `src` does not broadcast to this tensor's sizes.
    /// [`ErrorKind::OverlappingWrite`] if elements of this tensor share an address.
    /// [`ErrorKind::RuntimeMismatch`] if the tensors belong to different runtimes. Errors of [every
    /// op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn copy_(
        &self,
        src: &Tensor,
        non_blocking: impl IntoOptions<OrDefault<bool>>,
    ) -> Result<&Self> {
        let non_blocking = non_blocking.into_options().or(false);
        if !should_record_in_place(self, &[src]) {
            self.overwrite(src, non_blocking)?;
            return Ok(self);
        }
        check_in_place("copy_", self)?;
        self.overwrite(src, non_blocking)?;
        record_in_place("copy_", &[self, src], Overwrite)?;
        Ok(self)
    }

    /// Implements [`Tensor::copy_`] without recording the op for autograd.
    #[track_caller]
    pub(super) fn overwrite(&self, src: &Tensor, non_blocking: bool) -> Result<()> {
        if !self.storage().runtime().same_as(src.storage().runtime()) {
            return Err(ErrorKind::RuntimeMismatch.of("copy_"));
        }
        let expanded;
        let mut src = src;
        if src.size() != self.size() {
            expanded = src.with_layout(src.layout().expand(self.size()).of("copy_")?);
            src = &expanded;
        }
        self.as_view().check_writable("copy_")?;
        if self.numel() == 0 {
            return Ok(());
        }
        if self.device() != src.device() {
            self.copy_across(src, non_blocking)?;
            return Ok(());
        }
        let (apart, private);
        if self.storage().same_as(src.storage()) {
            if self.layout() == src.layout() && self.dtype() == src.dtype() {
                return Ok(());
            }
            // Copy the source first, because it may overlap the destination.
            apart = src.duplicate()?;
            src = &apart;
        }
        if self.storage().is_shared_host() {
            return self.write_shared_host(src);
        }
        if src.storage().is_shared_host() {
            private = src.copy_from_shared_host()?;
            src = &private;
        }
        let exec = self.exec()?;
        copy::copy(exec.target(), src.as_view(), self.as_view())
    }

    /// Copies the tensor from shared host memory to memory of this process, and keeps the layout. Other
    /// processes may write to the shared memory meanwhile.
    #[track_caller]
    pub(super) fn copy_from_shared_host(&self) -> Result<Self> {
        let mut bytes = vec![0; self.storage().bytes()];
        launch::read_bytes((self.storage(), 0), &mut bytes)?;
        let copy = Storage::pageable(self.storage().runtime(), bytes.len())?;
        launch::write_bytes((&copy, 0), &bytes)?;
        Ok(Self::from_parts(copy, self.layout().clone(), self.dtype()))
    }

    /// Writes the elements of a CPU tensor with the same sizes to this tensor in shared host memory. Other
    /// processes may write to this memory at the same time.
    #[track_caller]
    fn write_shared_host(&self, src: &Tensor) -> Result<()> {
        if !self.is_contiguous() {
            return Err(ErrorKind::SharedHostMemory.of("copy_"));
        }
        let src = src.copied_to(&src.exec()?, self.layout().preserved(), self.dtype())?;
        let mut bytes = vec![0; src.numel() * src.element_size()];
        launch::read_bytes((src.storage(), src.byte_offset()), &mut bytes)?;
        launch::write_bytes((self.storage(), self.byte_offset()), &bytes)
    }

    /// Copies between two devices. If both tensors are dense, with the same strides and dtype, copies the
    /// bytes. Otherwise the device of the source converts the elements, and the device of the destination
    /// writes them to their positions. If the device of the destination can read the memory of the source, one
    /// kernel does both.
    #[track_caller]
    fn copy_across(&self, src: &Tensor, non_blocking: bool) -> Result<()> {
        let location = Location::caller();
        let dense = self.layout().is_dense();
        let alike = |from: &Self, to: &Self| from.layout().strides() == to.layout().strides();
        let plain = self.dtype() == src.dtype() && dense && alike(src, self);
        if !plain && can_read(self, src) {
            let (from, exec) = (src.exec()?, self.exec()?);
            if let (Exec::Cuda(_, _, other), Exec::Cuda(_, _, stream)) = (&from, &exec) {
                stream.wait_stream(other)?;
                copy::copy(exec.target(), src.as_view(), self.as_view())?;
                other.wait_stream(stream)?;
                return Ok(());
            }
        }
        let exec = self.exec()?;
        let staged = if dense { None } else { Some(exec.empty(self.size(), self.dtype())?) };
        let dst = staged.as_ref().unwrap_or(self);
        let ready;
        let mut src = src;
        if src.dtype() != dst.dtype() || !alike(src, dst) {
            ready = src.copied_to(&src.exec()?, dst.layout().preserved(), dst.dtype())?;
            src = &ready;
        }
        let from = src.exec()?;
        let bytes = self.numel() * self.element_size();
        let ends = ((dst.storage(), dst.byte_offset()), (src.storage(), src.byte_offset()));
        // If the host waits and the wait fails, the error has no op yet.
        let copy = |stream| {
            launch::copy_bytes(stream, ends.0, ends.1, bytes, non_blocking, location)
                .map_err(|error| error.of("copy_"))
        };
        match (&from, &exec) {
            (Exec::Cuda(_, _, stream), Exec::Cuda(_, _, other)) => {
                stream.wait_stream(other)?;
                copy(stream)?;
                other.wait_stream(stream)?;
            }
            (Exec::Cuda(_, _, stream), _) | (_, Exec::Cuda(_, _, stream)) => {
                copy(stream)?;
            }
            // Unreachable: two host tensors are on the same device.
            (Exec::Cpu(_), Exec::Cpu(_)) => {}
        }
        if let Some(staged) = staged {
            copy::copy(exec.target(), staged.as_view(), self.as_view())?;
        }
        Ok(())
    }

    pub(super) fn byte_offset(&self) -> usize {
        self.storage_offset() * self.element_size()
    }
}

#[derive(Clone)]
struct Overwrite;

impl Saved for Overwrite {}

impl OpBackward for Overwrite {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        Ok(smallvec![inputs.gradient(0, || grad.zeros_like(()))?, Some(grad.clone())])
    }
}
