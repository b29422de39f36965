//! The tensor: shared memory, a layout over it, a dtype.

use std::sync::Arc;

use warpline_runtime::{Layout, Storage, View};

use crate::autograd::AutogradSlot;
use crate::exec::Exec;
use crate::{DType, Device, Result};

/// A tensor: elements of one dtype under sizes and strides, on the CPU or a GPU.
///
/// A clone, and every view, shares the memory: an in-place op through one is seen by all.
/// [`Tensor::copy`] is PyTorch's `clone`. Ops on GPU tensors are enqueued on the current stream of the tensors' device and
/// return before they run; reading a result waits for it.
#[derive(Clone)]
pub struct Tensor(Arc<Inner>);

/// What a tensor is.
pub(crate) struct Inner {
    storage: Storage,
    layout: Layout,
    dtype: DType,
    /// What gradients have to know, once they have to know something.
    pub(crate) autograd: AutogradSlot,
}

impl Tensor {
    pub(crate) fn from_parts(storage: Storage, layout: Layout, dtype: DType) -> Self {
        Self(Arc::new(Inner { storage, layout, dtype, autograd: AutogradSlot::new() }))
    }

    /// The same memory under another layout, as a tensor of its own: gradients do not pass.
    pub(crate) fn with_layout(&self, layout: Layout) -> Self {
        Self::from_parts(self.0.storage.clone(), layout, self.0.dtype)
    }

    pub(crate) fn with_slot(&self, layout: Layout, autograd: AutogradSlot) -> Self {
        let (storage, dtype) = (self.0.storage.clone(), self.0.dtype);
        Self(Arc::new(Inner { storage, layout, dtype, autograd }))
    }

    /// What this handle and its clones stand for.
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }

    pub(crate) fn from_inner(inner: Arc<Inner>) -> Self {
        Self(inner)
    }

    /// Whether nobody else has this tensor or its memory: no clone, no view, no graph.
    #[must_use]
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1 && self.0.storage.is_unique()
    }

    /// Whether both are handles of one tensor (Python's `is`).
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The tensor as functions of `warpline_kernels` take it, and ops of other crates.
    #[must_use]
    pub fn as_view(&self) -> View<'_> {
        View { storage: &self.0.storage, layout: &self.0.layout, dtype: self.0.dtype }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.0.layout
    }

    /// Where ops on this tensor run, whatever device is current.
    ///
    /// # Errors
    /// None for a tensor whose device still works.
    #[track_caller]
    pub fn exec(&self) -> Result<Exec<'_>> {
        Exec::of(&self.0.storage)
    }

    /// The memory behind it (`untyped_storage`).
    #[must_use]
    pub fn storage(&self) -> &Storage {
        &self.0.storage
    }

    /// Sizes per dimension.
    #[must_use]
    pub fn size(&self) -> &[usize] {
        self.0.layout.sizes()
    }

    /// Sizes per dimension; the same as [`Tensor::size`].
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        self.0.layout.sizes()
    }

    /// Elements from one index to the next, per dimension.
    #[must_use]
    pub fn stride(&self) -> &[isize] {
        self.0.layout.strides()
    }

    /// The first element's place in the storage, in elements.
    #[must_use]
    pub fn storage_offset(&self) -> usize {
        self.0.layout.offset()
    }

    /// Number of dimensions.
    #[doc(alias = "ndim")]
    #[doc(alias = "rank")]
    #[must_use]
    pub fn dim(&self) -> usize {
        self.0.layout.ndim()
    }

    /// Number of elements.
    #[doc(alias = "elem_count")]
    #[must_use]
    pub fn numel(&self) -> usize {
        self.0.layout.numel()
    }

    /// What its elements are.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// Bytes per element.
    #[must_use]
    pub fn element_size(&self) -> usize {
        self.0.dtype.size()
    }

    /// Where it is; a GPU with its index.
    #[must_use]
    pub fn device(&self) -> Device {
        match self.0.storage.cuda_device() {
            None => Device::Cpu,
            Some(gpu) => Device::Cuda(Some(gpu.index())),
        }
    }

    /// Whether it is on a GPU.
    #[must_use]
    pub fn is_cuda(&self) -> bool {
        self.device().is_cuda()
    }

    /// The address of its first element, in its device's memory or the host's.
    #[must_use]
    pub fn data_ptr(&self) -> u64 {
        // Wraps only without elements, whose address nobody reads.
        let offset = self.0.layout.offset().wrapping_mul(self.0.dtype.size());
        self.0.storage.address().wrapping_add(offset as u64)
    }

    /// Whether its elements follow each other without gaps, row-major.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.0.layout.is_contiguous()
    }

    /// Whether it is in page-locked host memory.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.0.storage.is_pinned()
    }

    /// Tells the allocator that the tensor is in use on `stream`: its memory goes to nobody else
    /// before the work enqueued there by the time of the free is done. Needed only under
    /// [`crate::SyncPolicy::Manual`]; otherwise every op does this itself. No effect on pageable
    /// host memory.
    ///
    /// # Errors
    /// [`crate::ErrorKind::RuntimeMismatch`] for a stream of another runtime.
    #[track_caller]
    pub fn record_stream(&self, stream: &crate::cuda::Stream) -> crate::Result<()> {
        self.0.storage.record_stream(stream)
    }
}
