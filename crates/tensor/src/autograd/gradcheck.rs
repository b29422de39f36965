//! Comparison of gradients with finite differences.

use super::mode;
use super::tensor_methods::{GradOptions, grad};
#[cfg(doc)]
use crate::ErrorKind;
use crate::{DType, Error, Result, Tensor, tensor};

/// Tolerances of [`gradcheck`]. The defaults are PyTorch's.
#[derive(Clone, Copy, Debug)]
pub struct GradcheckOptions {
    /// Step by which each element is increased and decreased. Default: 1e-6.
    pub eps: f64,
    /// Absolute tolerance between gradient and finite difference. Default: 1e-5.
    pub atol: f64,
    /// Tolerance relative to the finite difference. Default: 1e-3.
    pub rtol: f64,
}

impl Default for GradcheckOptions {
    fn default() -> Self {
        Self { eps: 1e-6, atol: 1e-5, rtol: 1e-3 }
    }
}

/// Compares the gradients of `f` at `inputs` with central differences, element by element
/// (`torch.autograd.gradcheck`). Inputs that require a gradient must be `float64`.
///
/// ```
/// use warpline::autograd::{GradcheckOptions, gradcheck};
/// use warpline::{DType, Device, randn};
///
/// let x = randn([3, 2], DType::F64)?.requires_grad_(true)?;
/// gradcheck(|x| Ok(vec![x[0].tanh()?.softmax(1)?]), &[x], GradcheckOptions::default())?;
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Gradient`] if a gradient is not within the tolerances of the finite difference; the message names the
/// first such element and both numbers. [`ErrorKind::Gradient`] if an input that requires a gradient is not `float64`.
/// Errors of `f`.
#[track_caller]
pub fn gradcheck(
    f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
    inputs: &[Tensor],
    options: GradcheckOptions,
) -> Result<()> {
    let tracked: Vec<usize> = (0..inputs.len()).filter(|&i| inputs[i].requires_grad()).collect();
    for &i in &tracked {
        if inputs[i].dtype() != DType::F64 {
            let reason = format!(
                "input {i} has dtype {}, which is too imprecise for differences",
                inputs[i].dtype()
            );
            return Err(Error::gradient("gradcheck", reason));
        }
    }
    let outputs = f(inputs)?;
    for (o, output) in outputs.iter().enumerate().filter(|(_, output)| output.requires_grad()) {
        let analytic = analytic(output, inputs, &tracked)?;
        for (t, &i) in tracked.iter().enumerate() {
            for element in 0..inputs[i].numel() {
                let numeric = difference(&f, inputs, (i, element), o, options.eps)?;
                for (row, (gradients, numeric)) in analytic.iter().zip(numeric).enumerate() {
                    let found = gradients[t][element];
                    let close =
                        (found - numeric).abs() <= options.atol + options.rtol * numeric.abs();
                    if !close {
                        let reason = format!(
                            "element {row} of output {o} changes by {numeric} with element {element} of input {i}, \
                             but its gradient is {found}"
                        );
                        return Err(Error::gradient("gradcheck", reason));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Compares the gradients of the gradients of `f` with central differences (`torch.autograd.gradgradcheck`).
/// The gradients of the outputs are fixed positive numbers.
///
/// # Errors
/// [`ErrorKind::Gradient`] if a second gradient is not within the tolerances of the finite difference, or if an input
/// that requires a gradient is not `float64`. Errors of `f` and of the gradients' ops.
#[track_caller]
pub fn gradgradcheck(
    f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
    inputs: &[Tensor],
    options: GradcheckOptions,
) -> Result<()> {
    // Results such as indices have no gradient.
    let differentiable = |inputs: &[Tensor]| -> Result<Vec<Tensor>> {
        Ok(f(inputs)?.into_iter().filter(Tensor::requires_grad).collect())
    };
    let outputs = differentiable(inputs)?;
    let (count, mut all) = (inputs.len(), inputs.to_vec());
    for (o, output) in outputs.iter().enumerate() {
        let made_up = |i: usize| 0.5 + ((i * 7 + o * 3) % 11) as f64 / 11.0;
        let values: Vec<f64> = (0..output.numel()).map(made_up).collect();
        let sizes: Vec<isize> = output.size().iter().map(|&n| n as isize).collect();
        let upstream = tensor(values, ())?.to(output.device())?.reshape(&sizes)?;
        all.push(upstream.requires_grad_(true)?);
    }
    let gradients = |all: &[Tensor]| {
        let outputs = differentiable(&all[..count])?;
        let outputs: Vec<&Tensor> = outputs.iter().collect();
        let upstream: Vec<Option<&Tensor>> = all[count..].iter().map(Some).collect();
        let tracked: Vec<&Tensor> = all[..count].iter().filter(|t| t.requires_grad()).collect();
        let options =
            GradOptions::new().create_graph(true).allow_unused(true).grad_outputs(&upstream);
        let grads = grad(&outputs, &tracked, options)?;
        Ok(grads.into_iter().flatten().collect())
    };
    gradcheck(gradients, &all, options)
}

/// Returns the gradients of the tracked inputs for each element of `output`.
fn analytic(output: &Tensor, inputs: &[Tensor], tracked: &[usize]) -> Result<Vec<Vec<Vec<f64>>>> {
    let sizes: Vec<isize> = output.size().iter().map(|&n| n as isize).collect();
    let inputs: Vec<&Tensor> = tracked.iter().map(|&i| &inputs[i]).collect();
    let row = |row: usize| {
        let mut values = vec![0.0; output.numel()];
        values[row] = 1.0;
        let upstream =
            tensor(values, ())?.to((output.dtype(), output.device()))?.reshape(&sizes)?;
        let options = GradOptions::new().retain_graph(true).allow_unused(true);
        let grads = grad(&[output], &inputs, options.grad_outputs(&[Some(&upstream)]))?;
        let values = grads.iter().zip(&inputs).map(|(grad, input)| match grad {
            Some(grad) => grad.to_vec::<f64>(),
            None => Ok(vec![0.0; input.numel()]),
        });
        values.collect()
    };
    (0..output.numel()).map(row).collect()
}

/// Returns the central differences of all elements of output `o` with respect to one element of input `i`.
fn difference(
    f: &impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
    inputs: &[Tensor],
    (i, element): (usize, usize),
    o: usize,
    eps: f64,
) -> Result<Vec<f64>> {
    let moved = |by: f64| {
        let mut values = inputs[i].detach().to_vec::<f64>()?;
        values[element] += by;
        let sizes: Vec<isize> = inputs[i].size().iter().map(|&n| n as isize).collect();
        let mut inputs: Vec<Tensor> = inputs.to_vec();
        let tracked = tensor(values, ())?.to(inputs[i].device())?.reshape(&sizes)?;
        inputs[i] = tracked.detach().requires_grad_(true)?;
        // Enables recording, because `f` may run a backward pass itself.
        let outputs = mode::enable_grad(|| f(&inputs))?;
        outputs[o].detach().to(DType::F64)?.to_vec::<f64>()
    };
    let (above, below) = (moved(eps)?, moved(-eps)?);
    Ok(above.iter().zip(below).map(|(a, b)| (a - b) / (2.0 * eps)).collect())
}
