//! Tests of gradients at points where a formula overflows, underflows or changes its branch,
//! compared with PyTorch's.

use serde_json::Value;
use warpline::autograd::{self, GradOptions};
use warpline::functional::{HardtanhOptions, SoftplusOptions};
use warpline::{
    DType, Result, Scalar, SyncPolicy, Tensor, TensorOrScalar, apply_elementwise, ones, simulated,
    tensor, with_runtime, zeros,
};
use warpline_kernels::elementwise::table;

use crate::common;

/// Written by `goldens/gradient_edges.py`.
const GOLDENS: &str = include_str!("../../goldens/gradient_edges.json");

fn numbers(values: &Value) -> Vec<f64> {
    let values = values.as_array().expect("a list").iter();
    values.map(|v| v.as_str().expect("text").parse().expect("a number")).collect()
}

fn assert_close(found: &Tensor, expected: &[f64], what: &str) -> Result<()> {
    let rtol = match found.dtype() {
        DType::F64 => 1e-6, // PyTorch has some constants in single precision.
        DType::F32 => 1e-5,
        _ => 4e-3,
    };
    let found = found.to(DType::F64)?.to_vec::<f64>()?;
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = found == expected || (found.is_nan() && expected.is_nan());
        let close = (found - expected).abs() <= rtol * expected.abs() + 1e-30;
        assert!(same || close, "{what}, element {i}: {found} and not {expected}");
    }
    Ok(())
}

fn check(case: &Value, at: &str) -> Result<()> {
    let name = case["op"].as_str().expect("an op");
    let op = table().find(|op| op.name() == name).unwrap_or_else(|| panic!("no op {name}"));
    let mut operands: Vec<(Option<Tensor>, f64)> = Vec::new();
    for operand in case["operands"].as_array().expect("operands") {
        let Some(dtype) = operand["dtype"].as_str() else {
            operands.push((None, operand["number"].as_f64().expect("a number")));
            continue;
        };
        let dtype = DType::from_name(dtype).expect("a dtype");
        let values = tensor(numbers(&operand["values"]), DType::F64)?.to((dtype, at))?;
        operands.push((Some(values.requires_grad_(dtype.is_float())?), 0.0));
    }
    let given: Vec<TensorOrScalar<'_>> = operands
        .iter()
        .map(|(tensor, number)| match tensor {
            Some(tensor) => TensorOrScalar::Tensor(tensor),
            None => TensorOrScalar::Scalar(Scalar::Float(*number)),
        })
        .collect();
    let wanted: Vec<&Tensor> =
        operands.iter().filter_map(|(t, _)| t.as_ref()).filter(|t| t.requires_grad()).collect();
    let out = apply_elementwise(op, &given)?;
    let grad = tensor(numbers(&case["grad"]), DType::F64)?.to((out.dtype(), at))?;
    let second = case["second"].as_array().expect("second gradients");
    let options = GradOptions::new().create_graph(second.iter().any(|second| !second.is_null()));
    let first = autograd::grad(&[&out], &wanted, options.grad_outputs(&[Some(&grad)]))?;
    for (k, (first, expected)) in
        first.iter().flatten().zip(case["first"].as_array().expect("gradients")).enumerate()
    {
        let what = format!("{case}: gradient {k} on {at}");
        assert_close(first, &numbers(expected), &what)?;
        if second[k].is_null() {
            continue;
        }
        let again = first.sum(())?;
        let found = autograd::grad(&[&again], &wanted[k..=k], ())?.remove(0);
        let found = found.expect("a second gradient").to(DType::F64)?.to_vec::<f64>()?;
        let inputs = wanted[k].detach().to(DType::F64)?.to_vec::<f64>()?;
        for ((found, expected), x) in found.iter().zip(numbers(&second[k])).zip(inputs) {
            // The gradient may jump at 0, so any value is accepted there.
            let close = (found - expected).abs() <= 4e-3 * expected.abs() + 1e-6
                || found.is_nan() && expected.is_nan();
            assert!(close || x == 0.0, "{what}, second at {x}: {found} and not {expected}");
        }
    }
    Ok(())
}

fn check_all(at: &str) -> Result<()> {
    let goldens: Value = serde_json::from_str(GOLDENS).expect("json");
    let mut cases = goldens["cases"].as_array().expect("cases").iter();
    cases.try_for_each(|case| check(case, at))
}

#[test]
fn gradients_at_the_edges_of_formulas_are_pytorchs() -> Result<()> {
    check_all("cpu")?;
    with_runtime(&simulated(1)?, || check_all("cuda"))
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_gradients_at_the_edges_of_formulas_are_pytorchs() {
    common::gpu(1, SyncPolicy::Auto, |_| check_all("cuda"));
}

/// The gradient needs the elements that the op overwrites, whichever operand shares memory with the
/// result.
#[test]
fn in_place_ops_keep_the_operands_that_they_overwrite() -> Result<()> {
    with_runtime(&simulated(1)?, || {
        for at in ["cpu", "cuda"] {
            let x = tensor([2.0, 3.0], (DType::F64, at))?.requires_grad_(true)?;
            let a = x.mul(1.0)?;
            a.mul_(&a.detach())?.sum(())?.backward()?;
            assert_eq!(x.grad().expect("a gradient").to_vec::<f64>()?, [2.0, 3.0]);
            let x = tensor([[2.0, 4.0], [3.0, 9.0]], (DType::F64, at))?.requires_grad_(true)?;
            let a = x.mul(1.0)?;
            let divisor = a.detach().narrow(1, 1, 1)?;
            a.div_(&divisor)?.sum(())?.backward()?;
            assert_close(
                &x.grad().expect("a gradient"),
                &[0.25, 0.25, 1.0 / 9.0, 1.0 / 9.0],
                "a division by a part of the dividend",
            )?;
        }
        Ok(())
    })
}

#[test]
fn hardtanh_in_place_has_the_slope_of_hardtanh() -> Result<()> {
    let x = tensor([0.0, 6.0, 3.0, 7.0], DType::F64)?.requires_grad_(true)?;
    x.mul(1.0)?.relu6_()?.sum(())?.backward()?;
    assert_eq!(x.grad().expect("a gradient").to_vec::<f64>()?, [0.0, 0.0, 1.0, 0.0]);
    x.set_grad(None)?;
    x.mul(1.0)?.hardtanh_(HardtanhOptions::new().min_val(3.0).max_val(7.0))?.sum(())?.backward()?;
    assert_eq!(x.grad().expect("a gradient").to_vec::<f64>()?, [0.0, 1.0, 0.0, 0.0]);
    Ok(())
}

/// Returns the gradient of `y.sum()` with respect to `x`.
fn gradient(x: &Tensor, y: &Tensor, create_graph: bool) -> Result<Vec<f64>> {
    let options = GradOptions::new().create_graph(create_graph);
    let found = autograd::grad(&[&y.sum(())?], &[x], options)?.remove(0);
    found.expect("a gradient").to(DType::F64)?.to_vec()
}

fn rounded_bounds(at: &str) -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        // As in PyTorch, the bound is rounded to the dtype of the elements, so it equals the
        // elements 0.3 and 0.1, which are rounded in the same way.
        let x = tensor([0.3, 0.1, -0.2], (dtype, at))?.requires_grad_(true)?;
        for create_graph in [false, true] {
            let gradient = |y: Tensor| gradient(&x, &y, create_graph);
            let what = format!("{at}, {dtype}, create_graph: {create_graph}");
            assert_eq!(gradient(x.clamp(-1.0, 0.3)?)?, [1.0; 3], "{what}");
            assert_eq!(gradient(x.clamp(0.1, 2.0)?)?, [1.0, 1.0, 0.0], "{what}");
            assert_eq!(gradient(x.clamp_max(0.3)?)?, [1.0; 3], "{what}");
            assert_eq!(gradient(x.clamp_min(0.1)?)?, [1.0, 1.0, 0.0], "{what}");
        }
    }
    Ok(())
}

#[test]
fn the_backward_pass_rounds_a_bound_of_halves_as_the_forward_pass() -> Result<()> {
    rounded_bounds("cpu")?;
    with_runtime(&simulated(1)?, || rounded_bounds("cuda"))
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_the_backward_pass_rounds_a_bound_of_halves_as_the_forward_pass() {
    common::gpu(1, SyncPolicy::Auto, |_| rounded_bounds("cuda"));
}

/// As in PyTorch's kernels, these ops compare in `float32` with the exact bound. The `float16`
/// nearest to 0.1 is below 0.1, and the `bfloat16` nearest to 0.3 is above 0.3.
fn exact_bounds(at: &str) -> Result<()> {
    type Case = (DType, f64, fn(&Tensor) -> Result<Tensor>, f64);
    let cases: [Case; 4] = [
        (DType::F16, 0.1, |x| x.hardtanh(HardtanhOptions::new().min_val(-0.1).max_val(0.1)), 1.0),
        (DType::BF16, 0.3, |x| x.hardtanh(HardtanhOptions::new().min_val(0.3)), 1.0),
        (DType::BF16, 0.3, |x| x.softplus(SoftplusOptions::new().threshold(0.3)), 1.0),
        (DType::F16, 0.1, |x| x.logit(0.1), 0.0),
    ];
    for (k, (dtype, value, f, expected)) in cases.into_iter().enumerate() {
        for create_graph in [false, true] {
            let x = tensor([value], (dtype, at))?.requires_grad_(true)?;
            let found = gradient(&x, &f(&x)?, create_graph)?;
            assert_eq!(found, [expected], "case {k} on {at}, create_graph: {create_graph}");
        }
    }
    Ok(())
}

#[test]
fn the_backward_pass_keeps_a_bound_exact_if_the_forward_pass_does() -> Result<()> {
    exact_bounds("cpu")?;
    with_runtime(&simulated(1)?, || exact_bounds("cuda"))
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_the_backward_pass_keeps_a_bound_exact_if_the_forward_pass_does() {
    common::gpu(1, SyncPolicy::Auto, |_| exact_bounds("cuda"));
}

#[test]
fn a_bool_operand_counts_as_a_number_in_recorded_gradients() -> Result<()> {
    let x = tensor([2.0, 3.0], DType::F32)?.requires_grad_(true)?;
    let end = tensor([4.0, 4.0], DType::F32)?;
    for create_graph in [false, true] {
        let gradient = |y: Tensor| gradient(&x, &y, create_graph);
        assert_eq!(gradient(x.pow(true)?)?, [1.0, 1.0]);
        assert_eq!(gradient(x.lerp(&end, true)?)?, [0.0, 0.0]);
    }
    Ok(())
}

#[test]
fn a_bound_in_place_has_the_gradient_of_the_bound() -> Result<()> {
    let x = tensor([1.0, 3.0], DType::F64)?;
    let bound = tensor(f64::INFINITY, ())?.requires_grad_(true)?;
    x.copy()?.clamp_min_(&bound)?.sum(())?.backward()?;
    assert_eq!(bound.grad().expect("a gradient").item::<f64>()?, 2.0);
    Ok(())
}

#[test]
fn an_operand_that_no_gradient_reads_may_change() -> Result<()> {
    let weight = tensor([[2.0]], DType::F64)?;
    let x = tensor([[3.0]], DType::F64)?.requires_grad_(true)?;
    let input = x.mul(1.0)?;
    let product = input.matmul(&weight)?;
    input.detach().zero_()?;
    product.sum(())?.backward()?;
    assert_eq!(x.grad().expect("a gradient").item::<f64>()?, 2.0);
    let x = zeros([4], DType::F64)?.requires_grad_(true)?;
    let (index, source) = (tensor([0i64, 1], ())?, ones([2], DType::F64)?);
    let sums = [x.scatter_add(0, &index, &source)?, x.index_add(0, &index, &source)?];
    index.add_(1)?;
    sums[0].add(&sums[1])?.sum(())?.backward()?;
    assert_eq!(x.grad().expect("a gradient").to_vec::<f64>()?, [2.0; 4]);
    Ok(())
}

/// The forward pass, and backward passes with and without `create_graph`, round a bound without
/// dimensions to the half-width dtype.
#[test]
fn a_bound_without_dimensions_is_rounded_to_halves() -> Result<()> {
    let x = tensor([0.1], DType::F16)?.requires_grad_(true)?;
    let bound = tensor(0.1, DType::F32)?;
    for create_graph in [false, true] {
        let gradient = |y: Tensor| gradient(&x, &y, create_graph);
        assert_eq!(gradient(x.maximum(&bound)?)?, [0.5], "create_graph: {create_graph}");
        assert_eq!(gradient(x.clamp_min(&bound)?)?, [1.0], "create_graph: {create_graph}");
    }
    Ok(())
}

#[test]
fn a_gradient_does_not_depend_on_which_others_are_wanted() -> Result<()> {
    let gradient = |wanted: bool| -> Result<Vec<f32>> {
        let x = tensor([1.0, 3.0], DType::F16)?.requires_grad_(true)?;
        let y = tensor(0.123_456_7f32, ())?.requires_grad_(wanted)?;
        x.mul(&y)?.sum(())?.backward()?;
        x.grad().expect("a gradient").to(DType::F32)?.to_vec()
    };
    assert_eq!(gradient(true)?, gradient(false)?);
    Ok(())
}
