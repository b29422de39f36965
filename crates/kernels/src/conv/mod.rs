//! Convolution and its two gradients: by cuDNN on a GPU where it is found (`cudnn.rs`), otherwise as
//! matrix products.
//!
//! As a product, a convolution multiplies its weight with the columns of the images ([`im2col`]). For the
//! gradient of the images, the transposed weight times the gradient of the result gives columns,
//! which [`col2im`] adds up. The gradient of the weight is the gradient of the result times the
//! transposed columns.
//!
//! Columns are made for several images at a time, as many as a limit on their memory allows. The result and the
//! gradient of the images take one product per image if there is one group. With several groups, and for the gradient
//! of the weight, there is one product per group, over the positions of all these images.

mod columns;
mod cpu;
mod cudnn;

use warpline_cuda_sys_safe::cudnn::ConvolutionKind;
use warpline_runtime::launch::check_operands;
use warpline_runtime::{Error, ErrorKind, Layout, Result, Scalar, Strides, Target, View};

use crate::copy::copy;
use crate::elementwise::{self, ADD};
use crate::fill::fill;
use crate::matmul::matmul;
use crate::scratch::{ScratchTensor, contiguous, into_contiguous};
use crate::window::images;

pub(crate) use columns::PROGRAMS;
pub use columns::{col2im, im2col};
pub use cudnn::{clear_plans, plans_kept};

pub use crate::window::Window;
use cudnn::Conv;

/// Maximum size of the columns that are made at a time on the CPU, in bytes. Exceeded only if one
/// image needs more. Columns of this size fit the caches.
const CPU_COLUMNS: usize = 4 << 20;
/// Maximum size of the columns that are made at a time on a GPU, in bytes. Exceeded only if one image
/// needs more.
const CUDA_COLUMNS: usize = 256 << 20;

/// Convolves a batch of images (`torch.nn.functional.conv2d`).
///
/// `input` is `[batch, channels, …]` with one to three spatial dimensions, `weight` is
/// `[outputs, channels / groups, …]`, and `out` is `[batch, outputs, …]`. Their spatial sizes are
/// `window.input`, `window.kernel` and `window.output`. Channels and outputs are divided into
/// `groups`, and each group convolves its channels to its outputs. All three have the same
/// floating-point dtype. Half-width floats are summed in `float32`.
///
/// # Errors
/// - [`ErrorKind::UnsupportedDType`] if the dtype is not floating-point.
/// - [`ErrorKind::DTypeMismatch`] if the dtypes differ.
/// - [`ErrorKind::ShapeMismatch`] if the spatial sizes of `input`, `weight` or `out` are not those of `window`, if the
///   batch, the channels or the outputs differ between two views, if `groups` does not divide channels and outputs, or
///   if [`Window::check`] finds the window too large.
/// - [`ErrorKind::InvalidArgument`] if `groups`, a stride or a dilation is 0.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if `out` shares memory with an operand.
/// - [`ErrorKind::InvalidVariable`] if an environment variable names a cuDNN library that cannot be used.
/// - [`ErrorKind::Driver`] if cuDNN fails.
/// - The errors of allocating scratch memory and of the launches.
#[track_caller]
pub fn conv(
    target: Target<'_>,
    input: View<'_>,
    weight: View<'_>,
    window: &Window,
    groups: usize,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "conv";
    let of = Geometry::new(OP, input, weight, out, window, groups)?;
    check_operands(OP, &[input.read(), weight.read(), out.write()])?;
    if out.numel() == 0
        || cudnn::run(OP, target, ConvolutionKind::Forward, &of, [input, weight, out])?
    {
        return Ok(());
    }
    into_contiguous(target, out, |out| of.forward(target, input, weight, out))
}

/// Computes the gradient of [`conv`] with respect to `input` (`torch.nn.grad.conv2d_input`) into
/// `out`, which has the sizes of the input. `grad` is the gradient of the forward result. The same
/// function computes the transposed convolution of `grad` (`torch.nn.functional.conv_transpose2d`).
///
/// # Errors
/// The errors of [`conv`], with `out` in the place of its input and `grad` in the place of its
/// result.
#[track_caller]
pub fn conv_input_backward(
    target: Target<'_>,
    grad: View<'_>,
    weight: View<'_>,
    window: &Window,
    groups: usize,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "conv_input_backward";
    let of = Geometry::new(OP, out, weight, grad, window, groups)?;
    check_operands(OP, &[grad.read(), weight.read(), out.write()])?;
    if out.numel() == 0
        || cudnn::run(OP, target, ConvolutionKind::InputGradient, &of, [out, weight, grad])?
    {
        return Ok(());
    }
    into_contiguous(target, out, |out| of.input_gradient(target, grad, weight, out))
}

/// Computes the gradient of [`conv`] with respect to `weight` (`torch.nn.grad.conv2d_weight`) into
/// `out`, which has the sizes of the weight. `grad` is the gradient of the forward result.
///
/// # Errors
/// The errors of [`conv`], with `out` in the place of its weight and `grad` in the place of its
/// result.
#[track_caller]
pub fn conv_weight_backward(
    target: Target<'_>,
    input: View<'_>,
    grad: View<'_>,
    window: &Window,
    groups: usize,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "conv_weight_backward";
    let of = Geometry::new(OP, input, out, grad, window, groups)?;
    check_operands(OP, &[input.read(), grad.read(), out.write()])?;
    if grad.numel() == 0 || out.numel() == 0 {
        return fill(target, out, Scalar::Int(0));
    }
    if cudnn::run(OP, target, ConvolutionKind::WeightGradient, &of, [input, out, grad])? {
        return Ok(());
    }
    into_contiguous(target, out, |out| of.weight_gradient(target, input, grad, out))
}

/// Checked sizes of a convolution.
struct Geometry<'a> {
    window: &'a Window,
    batch: usize,
    channels: usize,
    groups: usize,
    /// Rows of the columns of one group: window elements times the group's channels. Saturates.
    rows: usize,
    /// Result channels per group.
    outputs: usize,
    /// Positions of the window, which are the columns of an image.
    positions: usize,
}

impl<'a> Geometry<'a> {
    #[track_caller]
    fn new(
        op: &'static str,
        input: View<'_>,
        weight: View<'_>,
        result: View<'_>,
        window: &'a Window,
        groups: usize,
    ) -> Result<Self> {
        if !input.dtype.is_float() {
            return Err(ErrorKind::UnsupportedDType { dtype: input.dtype }.of(op));
        }
        for other in [weight, result] {
            other.check_dtype(op, input.dtype)?;
        }
        if groups == 0 {
            return Err(Error::invalid(op, "groups must be greater than zero"));
        }
        window.check(op)?;
        let ([batch, channels], _) = images(op, input, window.input)?;
        let ([outputs, of_group], _) = images(op, weight, window.kernel)?;
        let (sizes, _) = images(op, result, window.output)?;
        if sizes != [batch, outputs]
            || of_group.checked_mul(groups) != Some(channels)
            || !outputs.is_multiple_of(groups)
        {
            let reason = format!(
                "{groups} groups of a weight of {:?} do not convolve {:?} to {:?}",
                weight.sizes(),
                input.sizes(),
                result.sizes()
            );
            return Err(Error::shape(op, reason));
        }
        let (rows, outputs) = (of_group.saturating_mul(window.taps()), outputs / groups);
        Ok(Self { window, batch, channels, groups, rows, outputs, positions: window.positions() })
    }

    /// Returns the parameters of the CPU implementations for images, weight and result.
    #[track_caller]
    fn params(&self, op: &'static str, [image, weight, result]: [View<'_>; 3]) -> Result<Conv> {
        let w = self.window;
        Ok(Conv {
            taps: w.packed(op)?,
            batch: self.batch as u32,
            channels: self.channels as u32,
            outputs: (self.groups * self.outputs) as u32,
            groups: self.groups as u32,
            image: images(op, image, w.input)?.1,
            weight: images(op, weight, w.kernel)?.1,
            result: images(op, result, w.output)?.1,
        })
    }

    /// Computes the result from columns. `out` is contiguous.
    #[track_caller]
    fn forward(
        &self,
        target: Target<'_>,
        input: View<'_>,
        weight: View<'_>,
        out: View<'_>,
    ) -> Result<()> {
        let mut copied = None;
        let weight = contiguous(target, weight, &mut copied)?;
        let results = self.results(out);
        if self.is_pointwise() {
            let mut copied = None;
            let input = contiguous(target, input, &mut copied)?;
            let (by, columns) =
                (self.weight_of_image(weight, self.batch), self.columns_of_images(input));
            return multiply(target, (weight, &by), (input, &columns), (out, &results));
        }
        let at_once = self.at_once(target, input);
        let columns = ScratchTensor::new(target, &self.column_sizes(at_once), out.dtype)?;
        let columns = columns.view();
        if self.groups == 1 {
            for (first, count) in self.parts(at_once) {
                let (images, result) = (
                    image_range(input.layout, first, count)?,
                    image_range(&results, first, count)?,
                );
                let (by, made) =
                    (self.weight_of_image(weight, count), image_range(columns.layout, 0, count)?);
                im2col(
                    target,
                    with_layout(input, &images),
                    self.window,
                    with_layout(columns, &made),
                )?;
                multiply(target, (weight, &by), (columns, &made), (out, &result))?;
            }
            return Ok(());
        }
        let products = ScratchTensor::new(target, &self.result_sizes(at_once), out.dtype)?;
        let products = products.view();
        let by = self.weight_of_groups(weight);
        for (first, count) in self.parts(at_once) {
            self.gather(target, input, first, count, columns)?;
            let (made, product) =
                (self.by_group(self.rows, count), self.by_group(self.outputs, count));
            multiply(target, (weight, &by), (columns, &made), (products, &product))?;
            let (from, to) =
                (self.by_image(self.outputs, count), image_range(&results, first, count)?);
            copy(target, with_layout(products, &from), with_layout(out, &to))?;
        }
        Ok(())
    }

    /// Computes the gradient of the images by columns. `out` is contiguous.
    #[track_caller]
    fn input_gradient(
        &self,
        target: Target<'_>,
        grad: View<'_>,
        weight: View<'_>,
        out: View<'_>,
    ) -> Result<()> {
        let mut copied = [None, None];
        let [of_grad, of_weight] = &mut copied;
        let (grad, weight) =
            (contiguous(target, grad, of_grad)?, contiguous(target, weight, of_weight)?);
        let results = self.results(grad);
        if self.is_pointwise() {
            let by = self.weight_of_image(weight, self.batch).transpose(1, 2)?;
            let columns = self.columns_of_images(out);
            return multiply(target, (weight, &by), (grad, &results), (out, &columns));
        }
        let at_once = self.at_once(target, grad);
        let columns = ScratchTensor::new(target, &self.column_sizes(at_once), out.dtype)?;
        let columns = columns.view();
        if self.groups == 1 {
            for (first, count) in self.parts(at_once) {
                let (images, result) =
                    (image_range(out.layout, first, count)?, image_range(&results, first, count)?);
                let by = self.weight_of_image(weight, count).transpose(1, 2)?;
                let made = image_range(columns.layout, 0, count)?;
                multiply(target, (weight, &by), (grad, &result), (columns, &made))?;
                col2im(
                    target,
                    with_layout(columns, &made),
                    self.window,
                    with_layout(out, &images),
                )?;
            }
            return Ok(());
        }
        let turned = ScratchTensor::new(target, &self.result_sizes(at_once), out.dtype)?;
        let turned = turned.view();
        let by = self.weight_of_groups(weight).transpose(1, 2)?;
        for (first, count) in self.parts(at_once) {
            let (from, to) =
                (image_range(&results, first, count)?, self.by_image(self.outputs, count));
            copy(target, with_layout(grad, &from), with_layout(turned, &to))?;
            let (of_groups, made) =
                (self.by_group(self.outputs, count), self.by_group(self.rows, count));
            multiply(target, (weight, &by), (turned, &of_groups), (columns, &made))?;
            let (from, images) =
                (self.by_image(self.rows, count), image_range(out.layout, first, count)?);
            col2im(target, with_layout(columns, &from), self.window, with_layout(out, &images))?;
        }
        Ok(())
    }

    /// Computes the gradient of the weight from columns. `out` is contiguous.
    #[track_caller]
    fn weight_gradient(
        &self,
        target: Target<'_>,
        input: View<'_>,
        grad: View<'_>,
        out: View<'_>,
    ) -> Result<()> {
        let mut copied = None;
        let grad = contiguous(target, grad, &mut copied)?;
        let results = self.results(grad);
        let at_once = self.at_once(target, input);
        let columns = ScratchTensor::new(target, &self.columns_by_row(at_once), out.dtype)?;
        let turned = ScratchTensor::new(target, &self.result_sizes(at_once), out.dtype)?;
        let (columns, turned) = (columns.view(), turned.view());
        for (first, count) in self.parts(at_once) {
            self.gather(target, input, first, count, columns)?;
            let (from, to) =
                (image_range(&results, first, count)?, self.by_image(self.outputs, count));
            copy(target, with_layout(grad, &from), with_layout(turned, &to))?;
            let of_groups = self.by_group(self.outputs, count);
            let by = self.by_group(self.rows, count).transpose(1, 2)?;
            let more = match first {
                0 => None,
                _ => Some(ScratchTensor::new(target, out.sizes(), out.dtype)?),
            };
            let sum = more.as_ref().map_or(out, ScratchTensor::view);
            let product = self.weight_of_groups(sum);
            multiply(target, (turned, &of_groups), (columns, &by), (sum, &product))?;
            if first > 0 {
                elementwise::apply(target, &ADD, out.dtype, &[out.into(), sum.into()], out)?;
            }
        }
        Ok(())
    }

    /// Returns whether the images serve as columns without a copy.
    fn is_pointwise(&self) -> bool {
        let w = self.window;
        self.groups == 1
            && w.taps() == 1
            && w.stride == [1; 3]
            && w.padding == [0; 3]
            && w.input == w.output
    }

    /// Returns the number of images whose columns are made at a time.
    fn at_once(&self, target: Target<'_>, view: View<'_>) -> usize {
        let image = [self.rows, self.positions, view.dtype.size()];
        let image = image.iter().fold(self.groups, |n, &by| n.saturating_mul(by));
        let most = match target {
            Target::Cpu(_) => CPU_COLUMNS,
            Target::Cuda(..) => CUDA_COLUMNS,
        };
        (most / image.max(1)).clamp(1, self.batch.max(1))
    }

    /// Returns the chunks of the batch: the first image of each and the number of images.
    fn parts(&self, at_once: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let batch = self.batch;
        (0..batch).step_by(at_once).map(move |first| (first, at_once.min(batch - first)))
    }

    /// Returns the sizes of the columns of `count` images: image-major with one group, otherwise
    /// row-major.
    fn column_sizes(&self, count: usize) -> [usize; 3] {
        match self.groups {
            1 => [count, self.rows, self.positions],
            _ => self.columns_by_row(count),
        }
    }

    fn columns_by_row(&self, count: usize) -> [usize; 3] {
        [self.groups.saturating_mul(self.rows), count, self.positions]
    }

    /// Returns the sizes of the results of `count` images, channel-major.
    fn result_sizes(&self, count: usize) -> [usize; 3] {
        [self.groups * self.outputs, count, self.positions]
    }

    /// Layout `[batch, outputs, positions]` of a contiguous result.
    fn results(&self, result: View<'_>) -> Layout {
        let (all, positions) = (self.groups * self.outputs, self.positions);
        matrices([self.batch, all, positions], [all * positions, positions], result.layout.offset())
    }

    /// Layout `[batch, rows, positions]` of contiguous images that serve as columns.
    fn columns_of_images(&self, images: View<'_>) -> Layout {
        let (rows, positions) = (self.rows, self.positions);
        let strides = [rows * positions, positions];
        matrices([self.batch, rows, positions], strides, images.layout.offset())
    }

    /// Layout `[count, outputs, rows]` that repeats a contiguous weight for each image.
    fn weight_of_image(&self, weight: View<'_>, count: usize) -> Layout {
        matrices([count, self.outputs, self.rows], [0, self.rows], weight.layout.offset())
    }

    /// Layout `[groups, outputs, rows]` of a contiguous weight.
    fn weight_of_groups(&self, weight: View<'_>) -> Layout {
        let (outputs, rows) = (self.outputs, self.rows);
        matrices([self.groups, outputs, rows], [outputs * rows, rows], weight.layout.offset())
    }

    /// Layout `[groups, rows, count * positions]` of scratch memory: one matrix per group.
    fn by_group(&self, rows: usize, count: usize) -> Layout {
        let n = count * self.positions;
        matrices([self.groups, rows, n], [rows * n, n], 0)
    }

    /// Layout `[count, groups * rows, positions]` of the memory that `by_group` describes: one matrix
    /// per image.
    fn by_image(&self, rows: usize, count: usize) -> Layout {
        let positions = self.positions;
        matrices([count, self.groups * rows, positions], [positions, count * positions], 0)
    }

    /// Makes the columns of `count` images from `first` on, row-major.
    #[track_caller]
    fn gather(
        &self,
        target: Target<'_>,
        input: View<'_>,
        first: usize,
        count: usize,
        columns: View<'_>,
    ) -> Result<()> {
        let (images, made) =
            (image_range(input.layout, first, count)?, self.by_image(self.rows, count));
        im2col(target, with_layout(input, &images), self.window, with_layout(columns, &made))
    }
}

/// Returns the layout of matrices with contiguous rows. `strides` are those between matrices and
/// between rows.
fn matrices(sizes: [usize; 3], strides: [usize; 2], offset: usize) -> Layout {
    let strides = [strides[0] as isize, strides[1] as isize, 1];
    Layout::from_parts(sizes.as_slice().into(), Strides::from_slice(&strides), offset)
}

/// Returns the layout of `count` images from `first` on.
#[track_caller]
fn image_range(batch: &Layout, first: usize, count: usize) -> Result<Layout> {
    batch.narrow(0, first as isize, count)
}

/// Multiplies matrices. The layout of each pair replaces that of the view.
#[track_caller]
fn multiply(
    target: Target<'_>,
    a: (View<'_>, &Layout),
    b: (View<'_>, &Layout),
    out: (View<'_>, &Layout),
) -> Result<()> {
    let [a, b, out] = [a, b, out].map(|(view, layout)| View { layout, ..view });
    matmul(target, a, b, out)
}

fn with_layout<'a>(view: View<'a>, layout: &'a Layout) -> View<'a> {
    View { layout, ..view }
}
