//! The tensor: shared memory, a layout, and a dtype.

use std::sync::Arc;

use warpline_runtime::{Layout, Storage, View};

use crate::autograd::AutogradSlot;
use crate::exec::Exec;
use crate::{DType, Device, Result};
#[cfg(doc)]
use crate::{ErrorKind, SyncPolicy};

/// A tensor: elements of one dtype with sizes and strides, on the CPU or on a GPU.
///
/// A clone and a view share the memory of the tensor, so an in-place op on one of them changes all.
/// [`Tensor::copy`] is PyTorch's `clone`. Ops on GPU tensors are enqueued on the current stream of the tensors'
/// device and return before they run. Reading a result waits for the result.
///
/// # Errors of every op
/// Any op may return these errors, besides those that its documentation lists:
///
/// - [`ErrorKind::DeviceMismatch`] if tensors are on different devices, and [`ErrorKind::RuntimeMismatch`] if
///   they belong to different runtimes.
/// - [`ErrorKind::Alloc`] if there is no memory for the result, and [`ErrorKind::SizeOverflow`] if the result
///   is larger than the address space.
/// - [`ErrorKind::TooManyDims`] if the operands have more dimensions than a kernel supports.
/// - [`ErrorKind::NoGpuCode`] if there is no code of the op for the GPU.
/// - [`ErrorKind::Driver`] if the driver refuses the launch, and [`ErrorKind::NotStarted`] if earlier work had
///   already lost the device.
/// - [`ErrorKind::Surfaced`] if the op waits for the device, and work on the device failed.
/// - [`ErrorKind::IndexCheck`] and [`ErrorKind::Collective`] if an operand was computed by an op that is known
///   to have failed, and [`ErrorKind::PeerGone`] if it depends on work that another process left incomplete.
/// - [`ErrorKind::Race`] under [`SyncPolicy::Manual`] with [`RaceReport::Error`](crate::RaceReport::Error), if the
///   op races with another op.
/// - [`ErrorKind::SharedHostMemory`] if an operand of an op on the CPU is in host memory that other processes
///   may write to.
/// - [`ErrorKind::NotReplayed`] if an operand was made in a capture whose graph has not been replayed since.
/// - [`ErrorKind::OverlappingWrite`] if an in-place op would write to a tensor that has several indices at one
///   address.
/// - [`ErrorKind::Gradient`] if autograd does not allow an in-place op on its tensor, or the op has to save a tensor
///   that was made in inference mode.
#[derive(Clone)]
pub struct Tensor(Arc<TensorInner>);

/// The state of a tensor. All handles of the tensor share it.
pub(crate) struct TensorInner {
    storage: Storage,
    layout: Layout,
    dtype: DType,
    /// Autograd state, allocated on first use.
    pub(crate) autograd: AutogradSlot,
}

impl Tensor {
    pub(crate) fn from_parts(storage: Storage, layout: Layout, dtype: DType) -> Self {
        Self(Arc::new(TensorInner { storage, layout, dtype, autograd: AutogradSlot::new() }))
    }

    /// Returns a tensor on the same memory with another layout and without autograd state.
    pub(crate) fn with_layout(&self, layout: Layout) -> Self {
        Self::from_parts(self.0.storage.clone(), layout, self.0.dtype)
    }

    pub(crate) fn with_slot(&self, layout: Layout, autograd: AutogradSlot) -> Self {
        let (storage, dtype) = (self.0.storage.clone(), self.0.dtype);
        Self(Arc::new(TensorInner { storage, layout, dtype, autograd }))
    }

    /// Returns the state that this handle and its clones share.
    pub(crate) fn inner(&self) -> &Arc<TensorInner> {
        &self.0
    }

    pub(crate) fn from_inner(inner: Arc<TensorInner>) -> Self {
        Self(inner)
    }

    /// Returns whether no other handle, view or graph refers to this tensor or its memory.
    #[must_use]
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1 && self.0.storage.is_unique()
    }

    /// Returns whether `self` and `other` are handles of one tensor (Python's `is`).
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns a number that all handles of this tensor share, and that no other tensor has while this tensor
    /// exists (Python's `id`).
    #[doc(hidden)]
    #[must_use]
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Returns the tensor as a [`View`], which functions of `warpline_kernels` and ops of other crates take.
    #[must_use]
    pub fn as_view(&self) -> View<'_> {
        View { storage: &self.0.storage, layout: &self.0.layout, dtype: self.0.dtype }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.0.layout
    }

    /// Returns the place where ops on this tensor run. The current device has no influence.
    ///
    /// # Errors
    /// [`ErrorKind::CudaUnavailable`](crate::ErrorKind::CudaUnavailable) if the tensor is on a GPU and its runtime
    /// has no devices. No tensor is in this state.
    #[track_caller]
    pub fn exec(&self) -> Result<Exec<'_>> {
        Exec::of(&self.0.storage)
    }

    /// Returns the memory of the tensor, which its views share (`untyped_storage`).
    #[must_use]
    pub fn storage(&self) -> &Storage {
        &self.0.storage
    }

    /// Returns the size of each dimension.
    #[must_use]
    pub fn size(&self) -> &[usize] {
        self.0.layout.sizes()
    }

    /// Returns the size of each dimension; the same as [`Tensor::size`].
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        self.0.layout.sizes()
    }

    /// Returns the stride of each dimension: the distance from one index to the next, in elements.
    #[must_use]
    pub fn stride(&self) -> &[isize] {
        self.0.layout.strides()
    }

    /// Returns the position of the first element in the storage, in elements.
    #[must_use]
    pub fn storage_offset(&self) -> usize {
        self.0.layout.offset()
    }

    /// Returns the number of dimensions.
    #[doc(alias = "ndim")]
    #[doc(alias = "rank")]
    #[must_use]
    pub fn dim(&self) -> usize {
        self.0.layout.ndim()
    }

    /// Returns the number of elements.
    #[doc(alias = "elem_count")]
    #[must_use]
    pub fn numel(&self) -> usize {
        self.0.layout.numel()
    }

    /// Returns the dtype of the elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// Returns the size of an element, in bytes.
    #[must_use]
    pub fn element_size(&self) -> usize {
        self.0.dtype.size()
    }

    /// Returns the device of the tensor; for a GPU, with its index.
    #[must_use]
    pub fn device(&self) -> Device {
        match self.0.storage.cuda_device() {
            None => Device::Cpu,
            Some(gpu) => Device::Cuda(Some(gpu.index())),
        }
    }

    /// Returns whether the tensor is on a GPU.
    #[must_use]
    pub fn is_cuda(&self) -> bool {
        self.device().is_cuda()
    }

    /// Returns the address of the first element, in the memory of the device or of the host.
    #[must_use]
    pub fn data_ptr(&self) -> u64 {
        // Can wrap only for a tensor without elements, whose address is not used.
        let offset = self.0.layout.offset().wrapping_mul(self.0.dtype.size());
        self.0.storage.address().wrapping_add(offset as u64)
    }

    /// Returns whether the elements follow each other in row-major order, without gaps.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.0.layout.is_contiguous()
    }

    /// Returns whether the tensor is in page-locked host memory.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.0.storage.is_pinned()
    }

    /// Tells the allocator that the tensor is in use on `stream`. After the tensor is freed, its memory is reused only
    /// when the work enqueued on `stream` before the free is complete. Needed only under [`crate::SyncPolicy::Manual`];
    /// otherwise every op does this itself. Has no effect on pageable host memory and on memory shared with other
    /// processes.
    ///
    /// # Errors
    /// [`crate::ErrorKind::RuntimeMismatch`] if the stream belongs to another runtime.
    #[track_caller]
    pub fn record_stream(&self, stream: &crate::cuda::Stream) -> crate::Result<()> {
        self.0.storage.record_stream(stream)
    }
}
