//! Temporary tensors for intermediate values of ops.

use warpline_runtime::{DType, Layout, Result, Storage, Target, View, byte_size};

use crate::copy::copy;

/// A contiguous tensor that owns its memory, which is freed in stream order on a CUDA target.
#[derive(Debug)]
pub(crate) struct ScratchTensor {
    storage: Storage,
    layout: Layout,
    dtype: DType,
}

impl ScratchTensor {
    /// Allocates a tensor with uninitialized elements.
    #[track_caller]
    pub(crate) fn new(target: Target<'_>, sizes: &[usize], dtype: DType) -> Result<Self> {
        let layout = Layout::contiguous(sizes)?;
        let bytes = byte_size(&layout, dtype)?;
        let storage = match target {
            Target::Cpu(runtime) => Storage::pageable(runtime, bytes)?,
            Target::Cuda(runtime, _, stream) => Storage::device(runtime, bytes, stream)?,
        };
        Ok(Self { storage, layout, dtype })
    }

    pub(crate) fn view(&self) -> View<'_> {
        View { storage: &self.storage, layout: &self.layout, dtype: self.dtype }
    }
}

/// Returns the view if it is contiguous, otherwise a contiguous copy, which `copied` keeps alive.
#[track_caller]
pub(crate) fn contiguous<'a>(
    target: Target<'_>,
    view: View<'a>,
    copied: &'a mut Option<ScratchTensor>,
) -> Result<View<'a>> {
    if view.layout.is_contiguous() {
        return Ok(view);
    }
    let tensor = copied.insert(ScratchTensor::new(target, view.sizes(), view.dtype)?);
    copy(target, view, tensor.view())?;
    Ok(tensor.view())
}
