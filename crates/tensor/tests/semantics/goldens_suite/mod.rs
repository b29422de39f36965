//! Runs the golden cases, and compares the results.

mod args;
mod cases;
mod ops;

use std::collections::BTreeMap;

use warpline::autograd::BackwardTensorsOptions;
use warpline::{DType, Device, ErrorKind, Result, ResultExt as _, Tensor};

use cases::{Case, Goldens};

use crate::common;

/// Runs the cases of all known ops on a device. Panics with the list of failures.
pub(crate) fn run(device: Device) {
    run_folder("ops", device);
    // A folder in `WARPLINE_GOLDENS` may lack the subfolder `breadth`.
    if std::env::var_os("WARPLINE_GOLDENS").is_none() || common::goldens().join("breadth").is_dir()
    {
        run_folder("breadth", device);
    }
}

/// Ops in the golden files that Warpline does not have. All are linear algebra.
const MISSING: &[&str] =
    &["cholesky", "det", "eigvalsh", "inv", "solve", "svdvals", "triangular_solve"];

fn run_folder(folder: &str, device: Device) {
    let goldens = Goldens::load(folder);
    let mut unknown: BTreeMap<&str, usize> = BTreeMap::new();
    let mut without_rule: BTreeMap<&str, usize> = BTreeMap::new();
    let mut failures = Vec::new();
    let (mut passed, mut gradients) = (0, 0);
    for case in &goldens.cases {
        let mut leaves = BTreeMap::new();
        let inputs = case.inputs.iter().map(|i| goldens.input(i, device, case, &mut leaves));
        let inputs = inputs.collect::<Result<Vec<_>>>();
        let inputs = inputs.unwrap_or_else(|e| panic!("{}: inputs: {e}", case.id));
        let Some(outcome) = ops::call(&case.op, &inputs, &case.attrs, device) else {
            *unknown.entry(&case.op).or_default() += 1;
            continue;
        };
        if matches!(outcome.kind(), Some(ErrorKind::Gradient { .. })) && !case.grads.is_empty() {
            *without_rule.entry(&case.op).or_default() += 1;
            continue;
        }
        let verdict = match (outcome, &case.error) {
            // PyTorch's CPU library lacks this kernel, so the case has no expected value.
            (Ok(_), Some(error)) if error.contains("not implemented for") => Ok(()),
            (Ok(_), Some(error)) => Err(format!("succeeded where PyTorch raises '{error}'")),
            (Err(_), Some(_)) => Ok(()),
            (Err(error), None) => Err(error.to_string()),
            (Ok(outputs), None) => compare_all(&goldens, case, &outputs, device).and_then(|()| {
                gradients += case.grads.len();
                compare_gradients(&goldens, case, &outputs, &leaves)
            }),
        };
        match verdict {
            Ok(()) => passed += 1,
            Err(why) => failures.push(format!("{} {}{}: {why}", case.id, case.op, case.attrs)),
        }
    }
    let missing: usize = unknown.values().sum();
    println!(
        "{folder} on {device}: {passed} cases passed, with {gradients} gradients; {missing} of {} ops not there yet:",
        unknown.len()
    );
    println!("{unknown:?}");
    assert!(without_rule.is_empty(), "no gradient: {without_rule:?}");
    if std::env::var_os("WARPLINE_GOLDENS").is_none() {
        let missing = if folder == "breadth" { MISSING } else { &[] };
        assert!(unknown.keys().eq(missing), "{folder}: without {:?}", unknown.keys());
    }
    assert!(failures.is_empty(), "{device}: {} failed\n{}", failures.len(), failures.join("\n"));
    assert!(passed > 0 || goldens.cases.is_empty(), "no case was run");
}

fn compare_all(
    goldens: &Goldens,
    case: &Case,
    outputs: &[Tensor],
    device: Device,
) -> Result<(), String> {
    let names = &case.outputs;
    // The golden values come from PyTorch's CPU library, whose `gelu` of infinity is NaN. PyTorch's
    // CUDA kernel returns infinity.
    let nan_or_infinity = case.op == "gelu" && device.is_cuda();
    if outputs.len() != names.len() {
        return Err(format!("{} outputs instead of {}", outputs.len(), names.len()));
    }
    for (name, output) in names.iter().zip(outputs) {
        let expected = goldens.tensor(name).map_err(|e| e.to_string())?;
        let floor = floor(case, &expected);
        if output.device() != device {
            return Err(format!("{name}: on {} instead of {device}", output.device()));
        }
        compare(&expected, output, 1.0, floor, nan_or_infinity)
            .map_err(|e| format!("{name}: {e}"))?;
    }
    Ok(())
}

/// Runs the backward pass, and compares the gradients of the inputs, with ten times the tolerance
/// of results.
fn compare_gradients(
    goldens: &Goldens,
    case: &Case,
    outputs: &[Tensor],
    leaves: &BTreeMap<String, Tensor>,
) -> Result<(), String> {
    if case.grads.is_empty() {
        return Ok(());
    }
    let fail = |e: warpline::Error| format!("backward: {e}");
    let (mut roots, mut gradients) = (Vec::new(), Vec::new());
    for (number, name) in &case.upstream {
        let output = number.parse().ok().and_then(|i: usize| outputs.get(i));
        let output = output.ok_or_else(|| format!("no output {number}"))?;
        roots.push(output);
        gradients.push(goldens.tensor(name).and_then(|g| g.to(output.device())).map_err(fail)?);
    }
    let gradients: Vec<Option<&Tensor>> = gradients.iter().map(Some).collect();
    let options = BackwardTensorsOptions::new().grad_tensors(&gradients);
    warpline::autograd::backward(&roots, options).map_err(fail)?;
    for (leaf, name) in &case.grads {
        let expected = goldens.tensor(name).map_err(fail)?;
        let grad = leaves.get(leaf).and_then(Tensor::grad);
        let grad = grad.ok_or_else(|| format!("{leaf} has no gradient"))?;
        let floor = floor(case, &expected);
        compare(&expected, &grad, 10.0, floor, false).map_err(|e| format!("{name}: {e}"))?;
    }
    Ok(())
}

/// Returns the magnitude to which the tolerance of smaller elements is relative.
fn floor(case: &Case, expected: &Tensor) -> f64 {
    if !SUMS.contains(&case.op.as_str()) {
        return 1.0;
    }
    let values = expected.to_scalars().unwrap_or_default();
    let magnitudes = values.iter().map(|v| v.to_f64().abs()).filter(|v| v.is_finite());
    magnitudes.fold(0.0, f64::max)
}

/// Ops that sum products or many terms. The tolerance of each of their elements is relative to the
/// largest element.
const SUMS: &[&str] = &[
    "addmm",
    "avg_pool1d",
    "avg_pool2d",
    "adaptive_avg_pool2d",
    "baddbmm",
    "batch_norm",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "bmm",
    "cdist",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose2d",
    "cosine_similarity",
    "cross_entropy",
    "cumprod",
    "cumsum",
    "dot",
    "einsum",
    "group_norm",
    "huber_loss",
    "instance_norm",
    "interpolate",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "linear",
    "logsumexp",
    "matmul",
    "mean",
    "mm",
    "mse_loss",
    "mv",
    "nanmean",
    "nansum",
    "nll_loss",
    "norm",
    "normalize",
    "outer",
    "prod",
    "rms_norm",
    "scaled_dot_product_attention",
    "smooth_l1_loss",
    "std",
    "std_mean",
    "sum",
    "tensordot",
    "trace",
    "var",
    "var_mean",
    "vector_norm",
];

fn compare(
    expected: &Tensor,
    actual: &Tensor,
    times: f64,
    floor: f64,
    nan_or_infinity: bool,
) -> Result<(), String> {
    if expected.size() != actual.size() {
        return Err(format!("size {:?} instead of {:?}", actual.size(), expected.size()));
    }
    if expected.dtype() != actual.dtype() {
        return Err(format!("{} instead of {}", actual.dtype(), expected.dtype()));
    }
    let tolerance = times
        * match expected.dtype() {
            DType::F64 => 1e-12,
            DType::F32 => 1e-5,
            DType::F16 => 2e-3,
            DType::BF16 => 1.6e-2,
            _ => 0.0,
        };
    let (want, got) = (expected.to_scalars(), actual.to_scalars());
    let (want, got) = (want.map_err(|e| e.to_string())?, got.map_err(|e| e.to_string())?);
    for (i, (want, got)) in want.iter().zip(&got).enumerate() {
        if want == got {
            continue;
        }
        let (w, g) = (want.to_f64(), got.to_f64());
        let close = (w - g).abs() <= tolerance * (floor + w.abs());
        let both_nan = w.is_nan() && (g.is_nan() || nan_or_infinity && g == f64::INFINITY);
        if tolerance == 0.0 || !(close || w == g || both_nan) {
            return Err(format!("element {i} is {got:?} instead of {want:?}"));
        }
    }
    Ok(())
}
