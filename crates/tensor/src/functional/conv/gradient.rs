//! The convolution and its two gradients.
//!
//! Each of the three is linear in both of its operands, and the gradients of each are the other two. So
//! gradients of gradients need no more code. A convolution saves the images if the weight wants a gradient, and
//! the weight if the images want one. Columns are not saved but computed again.

use warpline_kernels::conv::{Window, col2im, im2col};
use warpline_kernels::copy::copy;
use warpline_kernels::matmul::matmul;
use warpline_runtime::{Layout, Sizes, Strides, View};

use crate::autograd::{Backward, Gradients, Inputs, Saved, no_grad, record, saved, wanted};
use crate::{Result, Tensor};

/// Maximum bytes of a convolution's columns at a time, unless one image needs more. On the CPU, they fit its
/// caches.
const CPU_COLUMNS: usize = 4 << 20;
const CUDA_COLUMNS: usize = 256 << 20;

/// A convolution of `[batch, channels, …]` to `[batch, outputs, …]`, with `dims` spatial dimensions.
#[derive(Clone, Copy)]
pub(super) struct Geometry {
    pub(super) window: Window,
    pub(super) dims: usize,
    pub(super) groups: usize,
    pub(super) channels: usize,
    pub(super) outputs: usize,
}

/// Computes the convolution and adds the bias.
#[track_caller]
pub(super) fn convolution(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    of: Geometry,
) -> Result<Tensor> {
    let out = of.forward(x, weight)?;
    of.add_bias(&out, bias)?;
    let inputs: Vec<&Tensor> = [x, weight].into_iter().chain(bias).collect();
    if !wanted(&inputs) {
        return Ok(out);
    }
    record("convolution", out, &inputs, Convolution { operands: Operands::new(x, weight, of) })
}

/// Computes the gradient of the images from the gradient of the results. With a bias, this is a transposed
/// convolution.
#[track_caller]
pub(super) fn transposed(
    y: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    of: Geometry,
) -> Result<Tensor> {
    let out = of.backward(y, weight)?;
    of.add_bias(&out, bias)?;
    let inputs: Vec<&Tensor> = [y, weight].into_iter().chain(bias).collect();
    if !wanted(&inputs) {
        return Ok(out);
    }
    record("convolution", out, &inputs, Transposed { operands: Operands::new(y, weight, of) })
}

/// Computes the gradient of the weight from the images and the gradient of the results.
#[track_caller]
fn weight_gradient(x: &Tensor, y: &Tensor, of: Geometry) -> Result<Tensor> {
    let out = of.weight(x, y)?;
    if !wanted(&[x, y]) {
        return Ok(out);
    }
    record(
        "convolution_backward",
        out,
        &[x, y],
        WeightGradient { operands: Operands::new(x, y, of) },
    )
}

saved! {
    /// The operands of a bilinear op. Each operand is saved if the other has a gradient.
    struct Operands { first: Option<Tensor>, second: Option<Tensor>, of: Geometry }
}

impl Saved for Geometry {}

impl Operands {
    fn new(first: &Tensor, second: &Tensor, of: Geometry) -> Self {
        let kept = |t: &Tensor, other: &Tensor| other.requires_grad().then(|| t.clone());
        Self { first: kept(first, second), second: kept(second, first), of }
    }

    /// Returns the gradients of the operands, each computed from the other operand, and of a bias if there is
    /// one.
    fn gradients(
        &self,
        grad: &Tensor,
        inputs: &Inputs<'_>,
        of_first: impl FnOnce(&Tensor) -> Result<Tensor>,
        of_second: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<Gradients> {
        let first = self.second.as_ref().map(of_first).transpose()?;
        let second = self.first.as_ref().map(of_second).transpose()?;
        let bias = inputs.gradient(2, || self.of.bias_gradient(grad))?;
        Ok([first, second, bias].into_iter().take(inputs.len()).collect())
    }
}

saved! {
    struct Convolution { operands: Operands }

    struct Transposed { operands: Operands }

    struct WeightGradient { operands: Operands }
}

impl Backward for Convolution {
    fn backward(&self, grad: &Tensor, inputs: &Inputs<'_>) -> Result<Gradients> {
        let of = self.operands.of;
        let of_x = |weight: &Tensor| transposed(grad, weight, None, of);
        self.operands.gradients(grad, inputs, of_x, |x| weight_gradient(x, grad, of))
    }
}

impl Backward for Transposed {
    fn backward(&self, grad: &Tensor, inputs: &Inputs<'_>) -> Result<Gradients> {
        let of = self.operands.of;
        let of_y = |weight: &Tensor| convolution(grad, weight, None, of);
        self.operands.gradients(grad, inputs, of_y, |y| weight_gradient(grad, y, of))
    }
}

impl Backward for WeightGradient {
    fn backward(&self, grad: &Tensor, inputs: &Inputs<'_>) -> Result<Gradients> {
        let of = self.operands.of;
        let of_x = |y: &Tensor| transposed(y, grad, None, of);
        self.operands.gradients(grad, inputs, of_x, |x| convolution(x, grad, None, of))
    }
}

/// Returns a layout with the given sizes, strides and offset.
fn lies(sizes: &[usize], strides: &[usize], offset: usize) -> Layout {
    let strides = Strides::from_iter(strides.iter().map(|&s| s as isize));
    Layout::from_parts(Sizes::from_slice(sizes), strides, offset)
}

impl Tensor {
    fn seen<'a>(&'a self, layout: &'a Layout) -> View<'a> {
        View { layout, ..self.as_view() }
    }
}

// The methods below are not recorded for autograd.
impl Geometry {
    /// Number of rows of columns per group.
    fn rows(&self) -> usize {
        (self.channels / self.groups).saturating_mul(self.window.taps())
    }

    /// Returns whether the image itself is the columns.
    fn is_pointwise(&self) -> bool {
        let w = &self.window;
        w.taps() == 1 && w.stride == [1; 3] && w.padding == [0; 3] && w.input == w.output
    }

    fn image_sizes(&self, batch: usize) -> Sizes {
        [batch, self.channels].iter().chain(&self.window.input[3 - self.dims..]).copied().collect()
    }

    fn result_sizes(&self, batch: usize) -> Sizes {
        [batch, self.outputs].iter().chain(&self.window.output[3 - self.dims..]).copied().collect()
    }

    fn weight_sizes(&self) -> Sizes {
        let of = [self.outputs, self.channels / self.groups];
        of.iter().chain(&self.window.kernel[3 - self.dims..]).copied().collect()
    }

    /// Returns the number of images whose columns are made at a time.
    fn at_once(&self, x: &Tensor, batch: usize) -> usize {
        let image = [self.rows(), self.window.places(), x.element_size()];
        let image = image.iter().fold(self.groups, |n, &by| n.saturating_mul(by));
        let most = if x.is_cuda() { CUDA_COLUMNS } else { CPU_COLUMNS };
        (most / image.max(1)).clamp(1, batch)
    }

    #[track_caller]
    fn add_bias(&self, out: &Tensor, bias: Option<&Tensor>) -> Result<()> {
        let Some(bias) = bias else { return Ok(()) };
        let mut sizes = [1; 4];
        sizes[0] = -1;
        no_grad(|| out.add_(&bias.reshape(&sizes[..=self.dims])?).map(drop))
    }

    #[track_caller]
    fn bias_gradient(&self, grad: &Tensor) -> Result<Tensor> {
        let dims: Vec<isize> = (0..grad.dim() as isize).filter(|d| *d != 1).collect();
        grad.sum(&dims[..])
    }

    /// Returns the layout of part of a batch.
    fn part(whole: &Layout, first: usize, count: usize) -> Result<Layout> {
        whole.narrow(0, first as isize, count)
    }

    #[track_caller]
    fn forward(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let exec = x.exec()?;
        let (batch, places, rows) = (x.size()[0], self.window.places(), self.rows());
        let out = exec.empty(&self.result_sizes(batch), x.dtype())?;
        if out.numel() == 0 {
            return Ok(out);
        }
        let weight = no_grad(|| weight.contiguous())?;
        let [groups, outputs] = [self.groups, self.outputs / self.groups];
        let at_once = self.at_once(x, batch);
        if groups == 1 {
            // A product for each image.
            let result = lies(&[batch, outputs, places], &[outputs * places, places, 1], 0);
            let whole = lies(&[batch, rows, places], &[rows * places, places, 1], 0);
            if self.is_pointwise() {
                let x = no_grad(|| x.contiguous())?;
                let whole = lies(whole.sizes(), &[rows * places, places, 1], x.storage_offset());
                let by = lies(&[batch, outputs, rows], &[0, rows, 1], weight.storage_offset());
                matmul(exec.target(), weight.seen(&by), x.seen(&whole), out.seen(&result))?;
                return Ok(out);
            }
            let columns = exec.empty(&[at_once, rows, places], x.dtype())?;
            for first in (0..batch).step_by(at_once) {
                let count = at_once.min(batch - first);
                let image = Self::part(x.layout(), first, count)?;
                let (part, result) =
                    (Self::part(&whole, 0, count)?, Self::part(&result, first, count)?);
                let by = lies(&[count, outputs, rows], &[0, rows, 1], weight.storage_offset());
                im2col(exec.target(), x.seen(&image), &self.window, columns.seen(&part))?;
                let (by, columns) = (weight.seen(&by), columns.seen(&part));
                matmul(exec.target(), by, columns, out.seen(&result))?;
            }
            return Ok(out);
        }
        // One product per group for all images. The results have batch and outputs swapped.
        let all = groups * outputs;
        let columns = exec.empty(&[groups * rows, at_once, places], x.dtype())?;
        let results = exec.empty(&[all, at_once, places], x.dtype())?;
        let whole = lies(&[batch, all, places], &[all * places, places, 1], 0);
        for first in (0..batch).step_by(at_once) {
            let count = at_once.min(batch - first);
            self.gather(x, first, count, &columns)?;
            let n = count * places;
            let by =
                lies(&[groups, outputs, rows], &[outputs * rows, rows, 1], weight.storage_offset());
            let of = lies(&[groups, rows, n], &[rows * n, n, 1], 0);
            let result = lies(&[groups, outputs, n], &[outputs * n, n, 1], 0);
            matmul(exec.target(), weight.seen(&by), columns.seen(&of), results.seen(&result))?;
            let result = lies(&[count, all, places], &[places, n, 1], 0);
            let part = Self::part(&whole, first, count)?;
            copy(exec.target(), results.seen(&result), out.seen(&part))?;
        }
        Ok(out)
    }

    /// Makes the columns of some images: the first row of all images, then the second row of all images, and so
    /// on.
    #[track_caller]
    fn gather(&self, x: &Tensor, first: usize, count: usize, columns: &Tensor) -> Result<()> {
        let (all, places) = (self.groups * self.rows(), self.window.places());
        let image = Self::part(x.layout(), first, count)?;
        let to = lies(&[count, all, places], &[places, count * places, 1], 0);
        im2col(x.exec()?.target(), x.seen(&image), &self.window, columns.seen(&to))
    }

    #[track_caller]
    fn backward(&self, y: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let exec = y.exec()?;
        let (batch, places, rows) = (y.size()[0], self.window.places(), self.rows());
        let out = exec.empty(&self.image_sizes(batch), y.dtype())?;
        if out.numel() == 0 {
            return Ok(out);
        }
        let y = no_grad(|| y.contiguous())?;
        let weight = no_grad(|| weight.contiguous())?;
        let [groups, outputs] = [self.groups, self.outputs / self.groups];
        let at_once = self.at_once(&y, batch);
        let (all, offset) = (groups * outputs, y.storage_offset());
        let results = lies(&[batch, all, places], &[all * places, places, 1], offset);
        if groups == 1 {
            let whole = lies(&[batch, rows, places], &[rows * places, places, 1], 0);
            if self.is_pointwise() {
                let by = lies(&[batch, rows, outputs], &[0, 1, rows], weight.storage_offset());
                matmul(exec.target(), weight.seen(&by), y.seen(&results), out.seen(&whole))?;
                return Ok(out);
            }
            let columns = exec.empty(&[at_once, rows, places], y.dtype())?;
            for first in (0..batch).step_by(at_once) {
                let count = at_once.min(batch - first);
                let image = Self::part(out.layout(), first, count)?;
                let (part, result) =
                    (Self::part(&whole, 0, count)?, Self::part(&results, first, count)?);
                let by = lies(&[count, rows, outputs], &[0, 1, rows], weight.storage_offset());
                let columns = columns.seen(&part);
                matmul(exec.target(), weight.seen(&by), y.seen(&result), columns)?;
                col2im(exec.target(), columns, &self.window, out.seen(&image))?;
            }
            return Ok(out);
        }
        let columns = exec.empty(&[groups * rows, at_once, places], y.dtype())?;
        let turned = exec.empty(&[all, at_once, places], y.dtype())?;
        for first in (0..batch).step_by(at_once) {
            let count = at_once.min(batch - first);
            let n = count * places;
            let to = lies(&[count, all, places], &[places, n, 1], 0);
            copy(exec.target(), y.seen(&Self::part(&results, first, count)?), turned.seen(&to))?;
            let by =
                lies(&[groups, rows, outputs], &[outputs * rows, 1, rows], weight.storage_offset());
            let of = lies(&[groups, outputs, n], &[outputs * n, n, 1], 0);
            let to = lies(&[groups, rows, n], &[rows * n, n, 1], 0);
            matmul(exec.target(), weight.seen(&by), turned.seen(&of), columns.seen(&to))?;
            let from = lies(&[count, groups * rows, places], &[places, n, 1], 0);
            let image = Self::part(out.layout(), first, count)?;
            col2im(exec.target(), columns.seen(&from), &self.window, out.seen(&image))?;
        }
        Ok(out)
    }

    #[track_caller]
    fn weight(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let exec = x.exec()?;
        let (batch, places, rows) = (x.size()[0], self.window.places(), self.rows());
        let out = exec.empty(&self.weight_sizes(), x.dtype())?;
        if batch * places == 0 || out.numel() == 0 {
            no_grad(|| out.zero_().map(drop))?;
            return Ok(out);
        }
        let [groups, outputs] = [self.groups, self.outputs / self.groups];
        let all = groups * outputs;
        let y = no_grad(|| y.contiguous())?;
        let results = lies(&[batch, all, places], &[all * places, places, 1], y.storage_offset());
        let at_once = self.at_once(x, batch);
        let columns = exec.empty(&[groups * rows, at_once, places], x.dtype())?;
        let turned = exec.empty(&[all, at_once, places], x.dtype())?;
        let product = lies(&[groups, outputs, rows], &[outputs * rows, rows, 1], 0);
        for first in (0..batch).step_by(at_once) {
            let count = at_once.min(batch - first);
            let n = count * places;
            self.gather(x, first, count, &columns)?;
            let to = lies(&[count, all, places], &[places, n, 1], 0);
            copy(exec.target(), y.seen(&Self::part(&results, first, count)?), turned.seen(&to))?;
            let of = lies(&[groups, outputs, n], &[outputs * n, n, 1], 0);
            let by = lies(&[groups, n, rows], &[rows * n, 1, n], 0);
            let sum = if first == 0 { out.clone() } else { exec.empty(out.size(), x.dtype())? };
            matmul(exec.target(), turned.seen(&of), columns.seen(&by), sum.seen(&product))?;
            if first > 0 {
                no_grad(|| out.add_(&sum).map(drop))?;
            }
        }
        Ok(out)
    }
}
