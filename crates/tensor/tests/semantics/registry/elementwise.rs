//! Entries for the table of elementwise ops, and for its methods with one and two operands.

use warpline::autograd::GradcheckOptions;
use warpline::{DType, Scalar, Tensor, TensorOrScalar, apply_elementwise};
use warpline_kernels::autocast::Policy;
use warpline_kernels::elementwise::{Op, OperandRule, table};

use super::entry::{Category, Entry};
use super::sample::{Arg, mask, within};
use crate::by_name;

/// Operands of differentiable dtype that have no gradient, each with the reason.
const WITHOUT_GRADIENT: [(&str, &[usize], &str); 13] = [
    ("softplus", &[1, 2], NUMBER),
    ("elu", &[1], NUMBER),
    ("celu", &[1], NUMBER),
    ("leaky_relu", &[1], NUMBER),
    ("softshrink", &[1], NUMBER),
    ("hardshrink", &[1], NUMBER),
    ("threshold", &[1, 2], NUMBER),
    ("nan_to_num", &[1, 2, 3], NUMBER),
    ("logit", &[1], NUMBER),
    ("round_decimals", &[1], NUMBER),
    ("addcmul", &[3], NUMBER),
    ("addcdiv", &[3], NUMBER),
    ("nextafter", &[0, 1], "PyTorch declares it not differentiable"),
];
const NUMBER: &str = "PyTorch takes a number";
const BOOLS: &str = "the result is of bools";

/// Tolerances. Finite differences have an error of about 1e-10 here, but PyTorch's single-precision
/// constants cause an error of 3e-8.
pub(super) const OPTIONS: GradcheckOptions = GradcheckOptions { eps: 1e-5, atol: 1e-7, rtol: 1e-6 };

/// Sizes of the operands. An op with `n` operands uses the last `n` of each row.
const SIZES: [[&[usize]; 4]; 5] = [
    [&[9], &[9], &[9], &[9]],
    [&[3], &[2, 1], &[1, 3], &[2, 3]],
    [&[1], &[], &[2, 2], &[2]],
    [&[], &[], &[], &[]],
    [&[1], &[1, 3], &[0, 1], &[0, 3]],
];

pub(super) fn entries() -> Vec<Entry> {
    let mut entries: Vec<Entry> = table().map(entry_of_table).collect();
    entries.extend(table().flat_map(with_numbers));
    for &(name, method) in by_name::UNARY {
        let op = op_of(name);
        // Predicates of floats, such as `isnan`, also support integers.
        let is_float_predicate = is_bool(op) && op.dtypes(DType::I64).is_err();
        let takes = move |dtype| is_float_predicate || op.dtypes(dtype).is_ok();
        let call = move |x: &[Tensor]| method(&x[0]);
        let entry = Entry::new(format!("Tensor::{name}"), category(op), takes, samples(op), call);
        entries.push(with_gradient(op, entry));
    }
    for &(name, method) in by_name::BINARY {
        let op = op_of(name);
        let call = move |x: &[Tensor]| method(&x[0], (&x[1]).into());
        let entry =
            Entry::new(format!("Tensor::{name}"), category(op), takes(op), samples(op), call);
        entries.push(with_gradient(op, entry));
    }
    entries
}

/// Returns the entry of the table that a method calls.
pub(super) fn op_of(name: &str) -> &'static Op {
    let name = if name == "sgn" { "sign" } else { name };
    table().find(|op| op.name() == name).unwrap_or_else(|| panic!("{name} is not in the table"))
}

pub(super) fn takes(op: &'static Op) -> impl Fn(DType) -> bool {
    // The kernel subtracts bools, but the methods refuse them.
    move |dtype| {
        op.dtypes(dtype).is_ok()
            && !(op.has_rule(OperandRule::RefusesBools) && dtype == DType::Bool)
    }
}

/// Returns the category that the table declares.
fn category(op: &Op) -> Category {
    [op.autocast(), Policy::Keep]
}

fn is_bool(op: &'static Op) -> bool {
    matches!(op.dtypes(DType::F32), Ok((_, DType::Bool)))
}

/// Returns samples from the domains of the operands.
pub(super) fn samples(op: &'static Op) -> Vec<Vec<Arg>> {
    let arg = |k: usize, sizes: &[usize]| {
        if op.is_condition(k) { mask(sizes) } else { within(sizes, op.domain(k)) }
    };
    let row = |row: &[&[usize]; 4]| {
        let sizes = &row[4 - op.inputs()..];
        sizes.iter().enumerate().map(|(k, sizes)| arg(k, sizes)).collect()
    };
    SIZES.iter().map(row).collect()
}

fn differentiable(op: &Op, operand: usize) -> bool {
    op.backward().is_some_and(|backward| backward.formula().gradient(operand).is_some())
}

/// Declares the gradients of an op of the table.
pub(super) fn with_gradient(op: &'static Op, entry: Entry) -> Entry {
    let operands: Vec<usize> = (0..op.inputs()).filter(|&k| differentiable(op, k)).collect();
    let listed = WITHOUT_GRADIENT.iter().find(|(name, ..)| *name == op.name());
    let mut entry = entry.differences(OPTIONS);
    if op.name() == "digamma" {
        // Near a pole, the gradient with `create_graph` of half-width floats amplifies the rounding
        // of its intermediate results. The fused kernel computes in `float32`.
        entry = entry.slack(3.0);
    }
    match listed {
        Some((_, _, reason)) => entry.only(&operands, reason),
        None if is_bool(op) => entry.only(&operands, BOOLS),
        None => {
            entry.differentiable = operands;
            entry
        }
    }
}

fn entry_of_table(op: &'static Op) -> Entry {
    let call = move |x: &[Tensor]| {
        let operands: Vec<TensorOrScalar<'_>> = x.iter().map(Into::into).collect();
        apply_elementwise(op, &operands)
    };
    let name = format!("elementwise::{}", op.name());
    with_gradient(op, Entry::new(name, category(op), takes(op), samples(op), call))
}

/// Returns entries that pass some operands as numbers: all operands without gradient and, if there
/// are several differentiable operands, one of them. There are three entries with different numbers
/// for each choice.
fn with_numbers(op: &'static Op) -> Vec<Entry> {
    let floats = matches!(op.dtypes(DType::F64), Ok((_, DType::F64)));
    let operands: Vec<usize> =
        (0..op.inputs()).filter(|&k| floats && differentiable(op, k)).collect();
    let others = (0..op.inputs()).filter(|&k| !op.is_condition(k)).count() > operands.len();
    let each = operands.iter().filter(|_| operands.len() > 1).copied().map(Some);
    let numbers = each.chain((others && !operands.is_empty()).then_some(None));
    let numbers: Vec<Option<usize>> = numbers.collect();
    let entries = numbers.into_iter().flat_map(|number| (0..3).map(move |i| (number, i)));
    entries.map(|(number, i)| with_number(op, number, i)).collect()
}

/// Returns an entry that passes the differentiable operands as tensors, except operand `number`.
/// All other operands are number `i` of their domains.
fn with_number(op: &'static Op, number: Option<usize>, i: usize) -> Entry {
    let is_tensor =
        move |k: usize| op.is_condition(k) || (differentiable(op, k) && number != Some(k));
    let args = (0..op.inputs())
        .filter(|&k| is_tensor(k))
        .map(|k| if op.is_condition(k) { mask(&[9]) } else { within(&[9], op.domain(k)) });
    let call = move |x: &[Tensor]| {
        let mut tensors = x.iter();
        let operand = |k: usize| match is_tensor(k).then(|| tensors.next()).flatten() {
            Some(tensor) => TensorOrScalar::Tensor(tensor),
            None => TensorOrScalar::Scalar(Scalar::Float(number_of(op, k, i))),
        };
        let operands: Vec<TensorOrScalar<'_>> = (0..op.inputs()).map(operand).collect();
        apply_elementwise(op, &operands)
    };
    // If the tensors are integers or bools, the float number determines the dtype.
    let takes = move |dtype: DType| {
        op.dtypes(if dtype.is_float() { dtype } else { DType::F32 }).is_ok()
            && !(op.has_rule(OperandRule::RefusesBools) && dtype == DType::Bool)
    };
    let name = format!("elementwise::{}", op.name());
    let variant = match number {
        Some(k) => format!("operand {k} is number {i}"),
        None => format!("numbers {i}"),
    };
    // PyTorch divides a number by a tensor with `reciprocal`.
    let inverts = op.name() == "div" && number == Some(0);
    let category = category(if inverts { op_of("reciprocal") } else { op });
    Entry::new(name, category, takes, [args.collect()], call).with(variant).differences(OPTIONS)
}

/// Returns number `i` of an operand's domain. It differs from all elements of samples.
fn number_of(op: &Op, operand: usize, i: usize) -> f64 {
    let range = op.domain(operand);
    let fraction = (0.05 + 0.29 * operand as f64 + 0.618_033_988_749_895 * i as f64).fract();
    range.start + (range.end - range.start) * fraction
}

#[test]
fn operands_without_gradient_are_listed() {
    let floats = || table().filter(|op| matches!(op.dtypes(DType::F64), Ok((_, DType::F64))));
    let listed = |op: &Op, k: usize| {
        WITHOUT_GRADIENT
            .iter()
            .any(|(name, operands, _)| *name == op.name() && operands.contains(&k))
    };
    for op in floats() {
        for k in (0..op.inputs()).filter(|&k| !op.is_condition(k)) {
            assert_ne!(differentiable(op, k), listed(op, k), "operand {k} of {}", op.name());
        }
    }
    for (name, ..) in WITHOUT_GRADIENT {
        assert!(floats().any(|op| op.name() == name), "{name} is not in the table");
    }
}
