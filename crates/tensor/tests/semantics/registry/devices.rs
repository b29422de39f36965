//! Tests that compare results on the CPU with results on a GPU, for every dtype and layout.

use warpline::{DType, Device, Result, SyncPolicy, Tensor};

use super::entry::Entry;
use super::sample::{Arg, Layout, Maker};
use super::{on_simulated_gpu, registry, report};
use crate::common;

/// Returns the tolerance of results that are computed in a dtype.
pub(super) fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 4e-3,
        DType::BF16 => 3e-2,
        DType::F32 => 2e-5,
        DType::F64 => 1e-11,
        _ => 0.0,
    }
}

/// Returns the first difference that exceeds `tolerance` times 1 plus the magnitude of the element
/// of `b`.
pub(super) fn difference(a: &Tensor, b: &Tensor, tolerance: f64) -> Result<Option<String>> {
    if (a.dtype(), a.size()) != (b.dtype(), b.size()) {
        let (a, b) = ((a.dtype(), a.size()), (b.dtype(), b.size()));
        return Ok(Some(format!("{a:?} and {b:?}")));
    }
    if !a.dtype().is_float() {
        let [a, b] = [a, b].map(|t| t.to((DType::I64, Device::Cpu))?.to_vec::<i64>());
        let (a, b) = (a?, b?);
        return Ok((a != b).then(|| format!("{a:?} and {b:?}")));
    }
    let [a, b] = [a, b].map(|t| t.to((DType::F64, Device::Cpu))?.to_vec::<f64>());
    let (a, b) = (a?, b?);
    let same = |a: f64, b: f64| {
        a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * (1.0 + b.abs())
    };
    let place = a.iter().zip(&b).position(|(a, b)| !same(*a, *b));
    Ok(place.map(|i| format!("element {i} is {} and {}", a[i], b[i])))
}

/// Runs one call on both devices and compares the results.
fn compare(entry: &Entry, sample: &[Arg], maker: Maker) -> Result<Option<String>> {
    let call = |device| {
        let args = Maker { device, ..maker }.args(sample)?;
        (entry.call)(&args)
    };
    let (cpu, gpu) = (call(Device::Cpu), call(maker.device));
    if !entry.takes(maker.dtype) {
        let refused = [("the CPU", cpu), ("the GPU", gpu)].into_iter().find(|(_, r)| r.is_ok());
        return Ok(refused.map(|(device, _)| format!("not listed, but {device} takes it")));
    }
    let (cpu, gpu) = match (cpu, gpu) {
        (Ok(cpu), Ok(gpu)) => (cpu, gpu),
        (cpu, gpu) => {
            let failed = [("CPU", cpu.err()), ("GPU", gpu.err())].into_iter();
            let failed = failed.filter_map(|(at, e)| Some(format!("{at}: {}", e?)));
            return Ok(Some(failed.collect::<Vec<_>>().join("; ")));
        }
    };
    differences(entry, maker.dtype, &cpu, &gpu)
}

/// Returns the first difference between the results of a call on the CPU and on a GPU. A float result of arguments of
/// `dtype` has the tolerance of the result's dtype or of `dtype`.
pub(super) fn differences(
    entry: &Entry,
    dtype: DType,
    cpu: &[Tensor],
    gpu: &[Tensor],
) -> Result<Option<String>> {
    if cpu.len() != gpu.len() {
        return Ok(Some(format!("{} and {} results", cpu.len(), gpu.len())));
    }
    for (cpu, gpu) in cpu.iter().zip(gpu) {
        let slack = if entry.differs.is_some() { f64::INFINITY } else { entry.slack };
        let tolerance = tolerance(dtype).max(tolerance(gpu.dtype()));
        let different = if entry.differs.is_some() {
            let (a, b) = ((cpu.dtype(), cpu.size()), (gpu.dtype(), gpu.size()));
            (a != b).then(|| format!("{a:?} and {b:?}"))
        } else {
            difference(gpu, cpu, tolerance * slack)?
        };
        if different.is_some() {
            return Ok(different);
        }
    }
    Ok(None)
}

fn all(device: Device) -> Result<()> {
    let (mut count, mut failures) = (0, Vec::new());
    for entry in registry() {
        for dtype in DType::ALL {
            for layout in Layout::ALL {
                for (i, sample) in entry.samples.iter().enumerate() {
                    let is_new = sample.iter().any(|arg| arg.has(layout));
                    if !is_new && layout != Layout::Contiguous {
                        continue;
                    }
                    // Test a dtype that the op does not support only once, in one layout.
                    if !entry.takes(dtype) && (i, layout) != (0, Layout::Contiguous) {
                        continue;
                    }
                    count += 1;
                    let maker = Maker { dtype, device, layout };
                    let outcome = compare(&entry, sample, maker);
                    let different = outcome.unwrap_or_else(|error| Some(error.to_string()));
                    if let Some(different) = different {
                        let title = entry.title();
                        failures
                            .push(format!("{title}, {dtype}, {layout:?}, sample {i}: {different}"));
                    }
                }
            }
        }
    }
    report(&format!("the CPU and {device}"), count, &failures);
    Ok(())
}

#[test]
fn a_gpu_agrees_with_the_cpu() {
    on_simulated_gpu(all);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_a_gpu_agrees_with_the_cpu() {
    common::gpu(1, SyncPolicy::Auto, |_| all(Device::cuda(0)));
}
