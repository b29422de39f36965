//! Tests that compare the plain backward pass with the recorded pass (`create_graph`). The plain
//! pass may run fused kernels; the recorded pass is composed of ops.

use warpline::autograd::{BackwardTensorsOptions, GradOptions, backward, grad};
use warpline::{DType, Device, Result, SyncPolicy, Tensor};

use super::devices::{difference, tolerance};
use super::entry::Entry;
use super::sample::{Layout, Maker};
use super::{on_simulated_gpu, registry, report};
use crate::common;

/// Runs the forward pass. Returns the leaves whose gradients are wanted, the results that have a
/// gradient, and incoming gradients for these results.
fn forward(
    entry: &Entry,
    args: &[Tensor],
    wanted: &[usize],
    maker: Maker,
) -> Result<(Vec<Tensor>, Vec<Tensor>, Vec<Tensor>)> {
    let inputs: Vec<Tensor> = args.iter().map(Tensor::detach).collect();
    for &k in wanted {
        inputs[k].requires_grad_(true)?;
    }
    let results = (entry.call)(&inputs)?.into_iter().filter(Tensor::requires_grad);
    let results: Vec<Tensor> = results.collect();
    let upstream = results.iter().enumerate().map(|(k, result)| maker.like(k + 5, result));
    let upstream = upstream.collect::<Result<_>>()?;
    Ok((wanted.iter().map(|&k| inputs[k].clone()).collect(), results, upstream))
}

fn compare(
    entry: &Entry,
    args: &[Tensor],
    wanted: &[usize],
    maker: Maker,
) -> Result<Option<String>> {
    let (leaves, results, upstream) = forward(entry, args, wanted, maker)?;
    let results: Vec<&Tensor> = results.iter().collect();
    let upstream: Vec<Option<&Tensor>> = upstream.iter().map(Some).collect();
    if !results.is_empty() {
        backward(&results, BackwardTensorsOptions::new().grad_tensors(&upstream))?;
    }
    let plain: Vec<Option<Tensor>> = leaves.iter().map(Tensor::grad).collect();

    let (leaves, results, upstream) = forward(entry, args, wanted, maker)?;
    let results: Vec<&Tensor> = results.iter().collect();
    let upstream: Vec<Option<&Tensor>> = upstream.iter().map(Some).collect();
    let leaves: Vec<&Tensor> = leaves.iter().collect();
    let options = GradOptions::new().create_graph(true).allow_unused(true);
    let recorded = grad(&results, &leaves, options.grad_outputs(&upstream))?;

    for ((plain, recorded), k) in plain.iter().zip(&recorded).zip(wanted) {
        let different = match (plain, recorded) {
            (Some(plain), Some(recorded)) => {
                difference(plain, recorded, tolerance(maker.dtype) * entry.slack)?
            }
            (None, None) => None,
            (Some(_), None) => Some("only the plain pass has it".into()),
            (None, Some(_)) => Some("only the recorded pass has it".into()),
        };
        if let Some(different) = different {
            return Ok(Some(format!("gradient of argument {k}: {different}")));
        }
    }
    Ok(None)
}

/// Returns the sets of arguments to test: each differentiable argument alone, and all of them.
fn subsets(entry: &Entry) -> Vec<Vec<usize>> {
    let mut subsets: Vec<Vec<usize>> = entry.differentiable.iter().map(|&k| vec![k]).collect();
    if subsets.len() > 1 {
        subsets.push(entry.differentiable.clone());
    }
    subsets
}

fn all(device: Device) -> Result<()> {
    let (mut count, mut failures) = (0, Vec::new());
    for entry in registry() {
        let subsets = subsets(&entry);
        for dtype in DType::ALL.into_iter().filter(|&d| d.is_float() && entry.takes(d)) {
            for layout in Layout::ALL {
                for (i, sample) in entry.samples.iter().enumerate() {
                    let is_new = sample.iter().any(|arg| arg.has(layout));
                    if !is_new && layout != Layout::Contiguous {
                        continue;
                    }
                    for wanted in &subsets {
                        count += 1;
                        let maker = Maker { dtype, device, layout };
                        let outcome = maker
                            .args(sample)
                            .and_then(|args| compare(&entry, &args, wanted, maker));
                        let different = outcome.unwrap_or_else(|error| Some(error.to_string()));
                        if let Some(different) = different {
                            let title = entry.title();
                            failures.push(format!(
                                "{title}, {dtype}, {layout:?}, sample {i}, of {wanted:?}: {different}"
                            ));
                        }
                    }
                }
            }
        }
    }
    report(&format!("backward passes on {device}"), count, &failures);
    Ok(())
}

#[test]
fn plain_and_recorded_backward_passes_agree() {
    common::cpu(|_| all(Device::Cpu));
    on_simulated_gpu(all);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_plain_and_recorded_backward_passes_agree() {
    common::gpu(1, SyncPolicy::Auto, |_| all(Device::cuda(0)));
}
