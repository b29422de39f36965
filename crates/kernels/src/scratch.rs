//! Temporary tensors for intermediate values of ops.

use warpline_runtime::{DType, Layout, MemoryFormat, Result, Storage, Target, View, byte_size};

use crate::copy::copy;

/// A temporary tensor without gaps, which owns its memory. On a CUDA target the memory is freed in
/// stream order.
#[derive(Debug)]
pub(crate) struct ScratchTensor {
    storage: Storage,
    layout: Layout,
    dtype: DType,
}

impl ScratchTensor {
    /// Allocates a contiguous tensor with uninitialized elements.
    #[track_caller]
    pub(crate) fn new(target: Target<'_>, sizes: &[usize], dtype: DType) -> Result<Self> {
        Self::in_layout(target, Layout::contiguous(sizes)?, dtype)
    }

    #[track_caller]
    fn in_layout(target: Target<'_>, layout: Layout, dtype: DType) -> Result<Self> {
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
    in_format(target, view, MemoryFormat::Contiguous, copied)
}

/// Returns the view if it is contiguous in `format`, otherwise a copy in this format, which `copied`
/// keeps alive.
#[track_caller]
pub(crate) fn in_format<'a>(
    target: Target<'_>,
    view: View<'a>,
    format: MemoryFormat,
    copied: &'a mut Option<ScratchTensor>,
) -> Result<View<'a>> {
    if view.layout.is_contiguous_in(format) {
        return Ok(view);
    }
    let layout = Layout::in_format(view.sizes(), format)?;
    let tensor = copied.insert(ScratchTensor::in_layout(target, layout, view.dtype)?);
    copy(target, view, tensor.view())?;
    Ok(tensor.view())
}

/// Calls `compute` with `out` if it is contiguous. Otherwise calls it with a contiguous tensor,
/// which is then copied to `out`.
#[track_caller]
pub(crate) fn into_contiguous(
    target: Target<'_>,
    out: View<'_>,
    compute: impl FnOnce(View<'_>) -> Result<()>,
) -> Result<()> {
    if out.layout.is_contiguous() {
        return compute(out);
    }
    let tensor = ScratchTensor::new(target, out.sizes(), out.dtype)?;
    compute(tensor.view())?;
    copy(target, tensor.view(), out)
}
