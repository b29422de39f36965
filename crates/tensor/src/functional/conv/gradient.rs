//! The convolution and its two gradients.
//!
//! Each of these three ops is linear in both operands, and its gradients are the other two ops. Gradients of
//! gradients therefore need no further code. A convolution saves the images if the weight requires a
//! gradient, and the weight if the images require a gradient. Columns (im2col) are recomputed instead of
//! saved.

use warpline_kernels::conv::{Window, conv, conv_input_backward, conv_weight_backward};
use warpline_runtime::{Layout, MemoryFormat, Sizes};

use crate::autograd::{
    Gradients, NodeInputs, OpBackward, Saved, no_grad, record, saved, should_record,
};
use crate::{DType, Result, Tensor};

/// A convolution of `[batch, channels, …]` to `[batch, outputs, …]`, with `dims` spatial dimensions.
#[derive(Clone, Copy)]
pub(super) struct ConvGeometry {
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
    of: ConvGeometry,
) -> Result<Tensor> {
    let out = of.forward(x, weight)?;
    of.add_bias(&out, bias)?;
    let inputs: Vec<&Tensor> = [x, weight].into_iter().chain(bias).collect();
    if !should_record(&inputs) {
        return Ok(out);
    }
    record(
        "convolution",
        out,
        &inputs,
        Convolution { operands: BilinearOperands::new(x, weight, of) },
    )
}

/// Computes the gradient of the images from the gradient of the results, and adds the bias. This is also the transposed
/// convolution.
#[track_caller]
pub(super) fn transposed(
    y: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    of: ConvGeometry,
) -> Result<Tensor> {
    let out = of.backward(y, weight)?;
    of.add_bias(&out, bias)?;
    let inputs: Vec<&Tensor> = [y, weight].into_iter().chain(bias).collect();
    if !should_record(&inputs) {
        return Ok(out);
    }
    record(
        "convolution",
        out,
        &inputs,
        Transposed { operands: BilinearOperands::new(y, weight, of) },
    )
}

/// Computes the gradient of the weight from the images and the gradient of the results.
#[track_caller]
fn weight_gradient(x: &Tensor, y: &Tensor, of: ConvGeometry) -> Result<Tensor> {
    let out = of.weight(x, y)?;
    if !should_record(&[x, y]) {
        return Ok(out);
    }
    record(
        "convolution_backward",
        out,
        &[x, y],
        WeightGradient { operands: BilinearOperands::new(x, y, of) },
    )
}

saved! {
    /// The operands of a bilinear op. Each operand is saved if the other operand requires a gradient.
    struct BilinearOperands { first: Option<Tensor>, second: Option<Tensor>, of: ConvGeometry }
}

impl Saved for ConvGeometry {}

impl BilinearOperands {
    fn new(first: &Tensor, second: &Tensor, of: ConvGeometry) -> Self {
        let kept = |t: &Tensor, other: &Tensor| other.requires_grad().then(|| t.clone());
        Self { first: kept(first, second), second: kept(second, first), of }
    }

    /// Returns the gradients of the operands, each computed from the other operand, and of the bias, if any.
    fn gradients(
        &self,
        grad: &Tensor,
        inputs: &NodeInputs<'_>,
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
    struct Convolution { operands: BilinearOperands }

    struct Transposed { operands: BilinearOperands }

    struct WeightGradient { operands: BilinearOperands }
}

impl OpBackward for Convolution {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let of = self.operands.of;
        let of_x = |weight: &Tensor| transposed(grad, weight, None, of);
        self.operands.gradients(grad, inputs, of_x, |x| weight_gradient(x, grad, of))
    }
}

impl OpBackward for Transposed {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let of = self.operands.of;
        let of_y = |weight: &Tensor| convolution(grad, weight, None, of);
        self.operands.gradients(grad, inputs, of_y, |y| weight_gradient(grad, y, of))
    }
}

impl OpBackward for WeightGradient {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let of = self.operands.of;
        let of_x = |y: &Tensor| transposed(y, grad, None, of);
        self.operands.gradients(grad, inputs, of_x, |x| convolution(x, grad, None, of))
    }
}

// Autograd records none of these methods but `bias_gradient`.
impl ConvGeometry {
    /// Returns the shape of a batch: batch size, channels, and the last `dims` dimensions of `window`.
    fn sizes(&self, batch: usize, channels: usize, window: &[usize; 3]) -> Sizes {
        [batch, channels].iter().chain(&window[3 - self.dims..]).copied().collect()
    }

    /// Returns the layout of a result in the memory format that the operands suggest. As in PyTorch, `float64` is
    /// always row-major.
    #[track_caller]
    fn layout(&self, sizes: &[usize], operands: [&Tensor; 2]) -> Result<Layout> {
        if operands[0].dtype() == DType::F64 {
            return Layout::contiguous(sizes);
        }
        let formats = operands.map(|t| t.as_view().layout.suggested_format());
        let last = formats.into_iter().find(|format| *format != MemoryFormat::Contiguous);
        Layout::in_format(sizes, last.unwrap_or(MemoryFormat::Contiguous))
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

    #[track_caller]
    fn forward(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let (exec, window) = (x.exec()?, &self.window);
        let sizes = self.sizes(x.size()[0], self.outputs, &window.output);
        let out = exec.empty_in(self.layout(&sizes, [x, weight])?, x.dtype())?;
        let [input, kernel] = [x, weight].map(Tensor::as_view);
        conv(exec.target(), input, kernel, window, self.groups, out.as_view())?;
        Ok(out)
    }

    #[track_caller]
    fn backward(&self, y: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let (exec, window) = (y.exec()?, &self.window);
        let sizes = self.sizes(y.size()[0], self.channels, &window.input);
        let out = exec.empty_in(self.layout(&sizes, [y, weight])?, y.dtype())?;
        let [grad, kernel] = [y, weight].map(Tensor::as_view);
        conv_input_backward(exec.target(), grad, kernel, window, self.groups, out.as_view())?;
        Ok(out)
    }

    #[track_caller]
    fn weight(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let (exec, window) = (x.exec()?, &self.window);
        let sizes = self.sizes(self.outputs, self.channels / self.groups, &window.kernel);
        let mut layout = self.layout(&sizes, [x, y])?;
        if layout.is_contiguous() {
            // The layout of a 1 × 1 weight is contiguous in both memory formats. Use the row-major strides.
            layout = Layout::contiguous(&sizes)?;
        }
        let out = exec.empty_in(layout, x.dtype())?;
        let [input, grad] = [x, y].map(Tensor::as_view);
        conv_weight_backward(exec.target(), input, grad, window, self.groups, out.as_view())?;
        Ok(out)
    }
}
