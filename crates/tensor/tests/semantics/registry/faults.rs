//! Tests in which each driver call of each op fails, in the forward and the backward pass, once or
//! every time from then on. The op must then give the right result, or fail with an error that
//! names the called function and the line of the call. No memory may remain in use, and the next op
//! must work.
//!
//! With `WARPLINE_TEST_FAULTS=all`, each call fails with each of its errors, otherwise with one of them.

use std::panic::Location;

use warpline::autograd::{BackwardTensorsOptions, backward};
use warpline::{DType, Device, Error, Result, Tensor, cuda};
use warpline_cuda_sys_safe::sim::Fault;

use super::entry::Entry;
use super::sample::{Layout, Maker};
use super::{registry, report};
use crate::boxes::SimBox;

/// Reads the results of an op, and the gradients of its arguments.
fn pass(entry: &Entry, args: &[Tensor], maker: Maker) -> Result<Vec<Vec<f64>>> {
    let inputs: Vec<Tensor> = args.iter().map(|arg| arg.copy()).collect::<Result<_>>()?;
    for &k in entry.differentiable.iter().filter(|&&k| inputs[k].dtype().is_float()) {
        inputs[k].requires_grad_(true)?;
    }
    let results = (entry.call)(&inputs)?;
    let roots: Vec<&Tensor> = results.iter().filter(|t| t.requires_grad()).collect();
    let upstream = roots.iter().enumerate().map(|(k, root)| maker.like(k, root));
    let upstream = upstream.collect::<Result<Vec<_>>>()?;
    if !roots.is_empty() {
        let upstream: Vec<Option<&Tensor>> = upstream.iter().map(Some).collect();
        backward(&roots, BackwardTensorsOptions::new().grad_tensors(&upstream))?;
    }
    let gradients = inputs.iter().filter_map(Tensor::grad);
    let all: Vec<Tensor> = results.into_iter().chain(gradients).collect();
    all.iter().map(|t| t.detach().to((DType::F64, "cpu"))?.to_vec()).collect()
}

/// Functions whose errors use the name of PyTorch's function.
const PYTORCHS_NAMES: [(&str, &str); 6] = [
    ("where_cond", "where"),
    ("arange_start", "arange"),
    ("arange_start_step", "arange"),
    ("to_non_blocking", "to"),
    ("cpu_async", "to"),
    ("contiguous_in", "contiguous"),
];

/// Other ops that some entries call.
const CALLED_BESIDES: [&str; 4] = ["copy", "cpu", "mul", "wait"];

/// Returns whether an error names the op of `entry` and a line of the tests. If an entry calls a
/// method of `unary.rs` through a function pointer, the error names a line of that file instead.
/// Errors of the calls around the op, in this file and in `sample.rs`, may name any op.
fn names_the_call(error: &Error, entry: &Entry) -> bool {
    let name = entry.name.rsplit("::").next().expect("a name");
    let pytorchs = PYTORCHS_NAMES.iter().find(|(own, _)| *own == name);
    let name = pytorchs.map_or(name, |(_, pytorchs)| pytorchs);
    let file = error.location().map_or("", Location::file);
    let is_around = ["faults.rs", "sample.rs"].iter().any(|name| file.ends_with(name));
    let is_ours = file.contains("tensor/src/") && !file.ends_with("unary.rs");
    let is_known = error.op() == name || CALLED_BESIDES.contains(&error.op());
    is_around || (!is_ours && is_known)
}

fn same(a: &[Vec<f64>], b: &[Vec<f64>]) -> bool {
    let equal = |a: &f64, b: &f64| a == b || (a.is_nan() && b.is_nan());
    let lists = |a: &Vec<f64>, b: &Vec<f64>| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
    };
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| lists(a, b))
}

/// Injects each failure into an op. Returns the number of failures.
fn faults(world: &SimBox, entry: &Entry, all: bool, failures: &mut Vec<String>) -> Result<usize> {
    let Some(dtype) = [DType::F32, DType::I64, DType::Bool].into_iter().find(|d| entry.takes(*d))
    else {
        return Ok(0);
    };
    let maker = Maker { dtype, device: Device::cuda(0), layout: Layout::Contiguous };
    let args = maker.args(&entry.samples[0])?;
    // The first pass loads kernels, so do not count its driver calls.
    pass(entry, &args, maker)?;
    let before = world.sim.usage().calls;
    let expected = pass(entry, &args, maker)?;
    let after = world.sim.usage().calls;
    cuda::synchronize(0)?;
    let base = cuda::memory_allocated(0)?;
    let right = |values: &[Vec<f64>]| entry.differs.is_some() || same(values, &expected);
    let mut count = 0;
    for (&call, &times) in &after {
        let times = (times - before.get(&call).copied().unwrap_or(0)) as usize;
        let fault = |code: usize, n| Fault::new(call, call.errors()[code]).after(n);
        let codes = call.errors().len();
        let faults = (0..if all { codes } else { 1 })
            .flat_map(|code| (0..times).map(move |n| ((code + n + count) % codes, n)))
            .flat_map(|(code, n)| [fault(code, n), fault(code, n).times(usize::MAX)]);
        for fault in faults.collect::<Vec<_>>() {
            count += 1;
            let title = || format!("{}: {fault:?} of {times} calls", entry.title());
            world.sim.inject(fault);
            let outcome = pass(entry, &args, maker);
            world.sim.clear_faults();
            match outcome {
                Ok(values) if right(&values) => {}
                Ok(_) => failures.push(format!("{}: other values", title())),
                Err(error) if names_the_call(&error, entry) => {}
                Err(error) => failures.push(format!("{}: not under its name: {error}", title())),
            }
            match pass(entry, &args, maker) {
                Ok(values) if right(&values) => {}
                Ok(_) => failures.push(format!("{}: other values afterwards", title())),
                Err(error) => failures.push(format!("{}: afterwards {error}", title())),
            }
            if let Err(error) = cuda::synchronize(0) {
                failures.push(format!("{}: afterwards {error}", title()));
            }
            let bytes = cuda::memory_allocated(0)?;
            if bytes != base {
                failures.push(format!("{}: {bytes} bytes in use, not {base}", title()));
                return Ok(count);
            }
        }
    }
    Ok(count)
}

#[test]
fn each_driver_call_of_each_op_may_fail() {
    let world = SimBox::lazy(1);
    let all = std::env::var("WARPLINE_TEST_FAULTS").is_ok_and(|value| value == "all");
    let (mut count, mut failures) = (0, Vec::new());
    world.enter(|| {
        for entry in registry() {
            match faults(&world, &entry, all, &mut failures) {
                Ok(faults) => count += faults,
                Err(error) => failures.push(format!("{}: {error}", entry.title())),
            }
        }
        Ok(())
    });
    report("failed driver calls", count, &failures);
    assert!(count > 1000, "only {count} failures were injected");
}
