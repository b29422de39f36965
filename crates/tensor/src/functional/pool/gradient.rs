//! Pools and their gradients. Gradients of pools are linear ops. The gradient of an average pool's gradient
//! is the average pool. The gradient of a maximum pool's gradient gathers the elements at the indices of the
//! maxima.

use smallvec::smallvec;
use warpline_kernels::pool::{self, Divisor, Regions, Window};
use warpline_runtime::{Layout, Sizes};

use crate::autograd::{
    Gradients, NodeInputs, OpBackward, Saved, linear, no_grad, record, saved, should_record,
};
use crate::methods::composite::signed;
use crate::{DType, MemoryFormat, Result, Tensor};

/// A pooling op on inputs of shape `[batch, channels, …]` with `dims` spatial dimensions.
#[derive(Clone, Copy)]
pub(super) struct Pooling {
    pub(super) window: Window,
    pub(super) regions: Regions,
    pub(super) dims: usize,
}

impl Pooling {
    /// Returns the layout of a result with these spatial sizes, in the memory format of `like`.
    #[track_caller]
    fn layout(&self, like: &Tensor, spatial: [usize; 3]) -> Result<Layout> {
        self.layout_in(like.layout().suggested_format(), like, spatial)
    }

    /// Returns the layout of a tensor in `format` with the spatial sizes `spatial`, and with as many images and
    /// channels as `like`.
    #[track_caller]
    fn layout_in(
        &self,
        format: MemoryFormat,
        like: &Tensor,
        spatial: [usize; 3],
    ) -> Result<Layout> {
        let sizes: Sizes =
            like.size()[..2].iter().chain(&spatial[3 - self.dims..]).copied().collect();
        Layout::in_format(&sizes, format)
    }
}

/// Computes the largest element of each window, and its index.
#[track_caller]
pub(super) fn largest(x: &Tensor, of: Pooling) -> Result<(Tensor, Tensor)> {
    let exec = x.exec()?;
    let layout = of.layout(x, of.window.output)?;
    let values = exec.empty_in(layout.clone(), x.dtype())?;
    let indices = exec.empty_in(layout, DType::I64)?;
    let (image, target) = (x.as_view(), exec.target());
    pool::max_pool(target, image, &of.window, of.regions, values.as_view(), indices.as_view())?;
    if !should_record(&[x]) {
        return Ok((values, indices));
    }
    let values = record("max_pool", values, &[x], MaxPool { indices: indices.clone(), of })?;
    Ok((values, indices))
}

impl Saved for Pooling {}

saved! {
    struct MaxPool { indices: Tensor, of: Pooling }

    struct MaxPoolBackward { indices: Tensor }
}

impl OpBackward for MaxPool {
    fn backward(&self, grad: &Tensor, _: &NodeInputs<'_>) -> Result<Gradients> {
        Ok(smallvec![Some(largest_gradient(grad, &self.indices, self.of)?)])
    }
}

impl OpBackward for MaxPoolBackward {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let indices = self.indices.flatten(2)?;
        let picked = grad.contiguous()?.flatten(2)?.gather(2, &indices)?;
        Ok(smallvec![Some(picked.reshape(signed(inputs.sizes(0)))?)])
    }
}

/// Computes the gradient of the image from the gradient of the result of [`largest`].
#[track_caller]
fn largest_gradient(y: &Tensor, indices: &Tensor, of: Pooling) -> Result<Tensor> {
    let exec = y.exec()?;
    // The kernel requires the same strides for the gradient and the indices.
    let grad = no_grad(|| y.contiguous_in(indices.layout().suggested_format()))?;
    let out = exec.empty_in(of.layout(&grad, of.window.input)?, y.dtype())?;
    let (grad, index, target) = (grad.as_view(), indices.as_view(), exec.target());
    pool::max_pool_backward(target, grad, index, &of.window, of.regions, out.as_view())?;
    if !should_record(&[y]) {
        return Ok(out);
    }
    record("max_pool_backward", out, &[y], MaxPoolBackward { indices: indices.clone() })
}

/// Computes the average of each window.
#[track_caller]
pub(super) fn averages(x: &Tensor, of: Pooling, divisor: Divisor) -> Result<Tensor> {
    let exec = x.exec()?;
    let out = exec.empty_in(of.layout(x, of.window.output)?, x.dtype())?;
    let (image, target) = (x.as_view(), exec.target());
    pool::avg_pool(target, image, &of.window, of.regions, divisor, out.as_view())?;
    if !should_record(&[x]) {
        return Ok(out);
    }
    // The gradient of a result of 1 × 1 does not tell the format of the image.
    let format = x.layout().suggested_format();
    let gradient =
        move |grad: &Tensor, _: &NodeInputs<'_>| averages_gradient(grad, of, divisor, format);
    record("avg_pool", out, &[x], linear(gradient))
}

/// Computes the gradient of the image from the gradient of the result of [`averages`].
#[track_caller]
fn averages_gradient(
    y: &Tensor,
    of: Pooling,
    divisor: Divisor,
    format: MemoryFormat,
) -> Result<Tensor> {
    let exec = y.exec()?;
    let out = exec.empty_in(of.layout_in(format, y, of.window.input)?, y.dtype())?;
    let (grad, target) = (y.as_view(), exec.target());
    pool::avg_pool_backward(target, grad, &of.window, of.regions, divisor, out.as_view())?;
    if !should_record(&[y]) {
        return Ok(out);
    }
    record("avg_pool_backward", out, &[y], linear(move |grad, _| averages(grad, of, divisor)))
}
