//! Tests that compare gradients, and gradients of gradients, with central differences.

use warpline::autograd::{gradcheck, gradgradcheck};
use warpline::{DType, Device, ErrorKind, Result, SyncPolicy, Tensor};

use super::entry::Entry;
use super::sample::{Layout, Maker};
use super::{on_simulated_gpu, registry, report};
use crate::common;

fn check(entry: &Entry, maker: Maker, failures: &mut Vec<String>) -> Result<usize> {
    for (i, sample) in entry.samples.iter().enumerate() {
        let inputs = maker.args(sample)?;
        for &k in &entry.differentiable {
            inputs[k].requires_grad_(true)?;
        }
        for (order, outcome) in [
            ("gradient", gradcheck(&entry.call, &inputs, entry.differences)),
            ("gradient of gradient", gradgradcheck(&entry.call, &inputs, entry.differences)),
        ] {
            if let Err(error) = outcome {
                failures.push(format!("{}, sample {i}, {order}: {error}", entry.title()));
            }
        }
        // If no result had a gradient, the check above would compare nothing.
        let tracked = (entry.call)(&inputs)?.iter().any(Tensor::requires_grad);
        if !tracked {
            failures.push(format!("{}, sample {i}: no result has a gradient", entry.title()));
        }
    }
    Ok(entry.samples.len())
}

fn all(device: Device) -> Result<()> {
    let maker = Maker { dtype: DType::F64, device, layout: Layout::Contiguous };
    let (mut count, mut failures) = (0, Vec::new());
    for entry in registry() {
        if entry.takes(DType::F64) && !entry.differentiable.is_empty() {
            match check(&entry, maker, &mut failures) {
                Ok(checks) => count += checks,
                Err(error) => failures.push(format!("{}: {error}", entry.title())),
            }
        }
    }
    report(&format!("differences on {device}"), count, &failures);
    assert!(count > 900, "{count} checks");
    Ok(())
}

#[test]
fn gradients_agree_with_differences() {
    common::cpu(|_| all(Device::Cpu));
    on_simulated_gpu(all);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_gradients_agree_with_differences() {
    common::gpu(1, SyncPolicy::Auto, |_| all(Device::cuda(0)));
}

/// Requires a gradient of an argument that is declared to have none. Returns a description if a result
/// has a gradient, or if the call fails for another reason.
fn granted(entry: &Entry, maker: Maker, k: usize, i: usize) -> Result<Option<String>> {
    let inputs = maker.args(&entry.samples[i])?;
    inputs[k].requires_grad_(true)?;
    match (entry.call)(&inputs) {
        Ok(results) if results.iter().any(Tensor::requires_grad) => {
            Ok(Some("a result has a gradient".into()))
        }
        Err(error) if !matches!(error.kind(), ErrorKind::Gradient { .. }) => {
            Ok(Some(error.to_string()))
        }
        _ => Ok(None),
    }
}

#[test]
fn arguments_without_gradient_are_listed_and_give_none() {
    common::cpu(|_| {
        let mut failures = Vec::new();
        for entry in registry() {
            let Some(dtype) = [DType::F64, DType::F32].into_iter().find(|&d| entry.takes(d)) else {
                continue;
            };
            let maker = Maker { dtype, device: Device::Cpu, layout: Layout::Contiguous };
            for (i, sample) in entry.samples.iter().enumerate() {
                let numeric = (0..sample.len()).filter(|&k| sample[k].is_numeric());
                for k in numeric.filter(|k| !entry.differentiable.contains(k)) {
                    if entry.without_gradient.is_none() {
                        failures.push(format!("{}: argument {k} has no reason", entry.title()));
                    }
                    if let Some(why) = granted(&entry, maker, k, i)? {
                        let title = entry.title();
                        failures.push(format!("{title}, sample {i}, argument {k}: {why}"));
                    }
                }
            }
        }
        report("arguments without gradient", failures.len(), &failures);
        Ok(())
    });
}
