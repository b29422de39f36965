//! Prints the CUDA code of backward passes.

use std::fmt::Write;

use warpline_runtime::iter::{Flat, Index, Params};
use warpline_runtime::module::Source;

use super::Backward;
use super::run::Fused;
use crate::elementwise::Op;
use crate::elementwise::cuda::{Kernels, around};
use crate::elementwise::entry::Output;
use crate::elementwise::formula::{Formula, FormulaStep, MAX_OPERANDS};
use crate::programs::cuda_type;

/// Calls a macro with the numbers of inputs and results for which programs exist. There are at most
/// five inputs and three results, because their dtype codes share 32 bits, four bits each.
macro_rules! for_counts {
    ($macro:ident) => {
        $macro! {
            (1, 1) (1, 2) (1, 3) (2, 1) (2, 2) (2, 3) (3, 1) (3, 2) (3, 3) (4, 1) (4, 2) (4, 3) (5, 1) (5, 2) (5, 3)
        }
    };
}
pub(super) use for_counts;

/// Returns the source of a backward pass's kernels for a dtype. `None` has no kernels.
pub fn source(backward: Option<&Backward>, variant: &str) -> Source {
    let Some(backward) = backward else { return Source::new() };
    let formula = backward.formula();
    let (leaves, computed) = (formula.leaves(), formula.computed());
    let (element, ops) = (cuda_type(variant), ops(formula));
    let mut function = format!("typedef compute_t<{element}> C;\n");
    ops.iter().for_each(|op| function += &helper(op));
    let inputs: Vec<(bool, &str)> = leaves
        .iter()
        .map(|&leaf| if formula.is_condition(leaf) { (true, "boolean") } else { (false, element) })
        .collect();
    function += &body(formula, &inputs);
    let kernels = Kernels {
        name: format!("{}_{variant}", backward.program().name()),
        args: ("Fused", "p.args.numbers"),
        inputs: &inputs,
        results: &vec![element; computed.len()],
        vector: if element == "f64" { 2 } else { 4 },
        run: if element == "f64" { 2 } else { 4 },
    };
    let expressions: Vec<&str> = ops.iter().map(|op| op.entry.cuda).collect();
    let structs = structs(leaves.len(), computed.len());
    around(structs, &expressions.join("\n"), &(function + &kernels.source()))
}

/// Returns the ops of a formula, without duplicates.
fn ops(formula: &Formula) -> Vec<&'static Op> {
    let uses = formula.uses(0..MAX_OPERANDS);
    let mut ops: Vec<&Op> = Vec::new();
    for (step, uses) in formula.steps().iter().zip(uses) {
        if let FormulaStep::Apply(op, _) = step
            && uses > 0
            && !ops.iter().any(|other| std::ptr::eq(*other, *op))
        {
            ops.push(op);
        }
    }
    ops
}

/// Returns a CUDA function with an op's expression.
fn helper(op: &Op) -> String {
    let parameters: Vec<String> = op
        .entry
        .inputs
        .iter()
        .map(|input| format!("{} {}", if input.is_bool { "bool" } else { "C" }, input.name))
        .collect();
    let result = if op.entry.output == Output::Bool { "bool" } else { "C" };
    format!(
        "__device__ __forceinline__ {result} op_{}({}) {{ return ({result})({}); }}\n",
        op.entry.name,
        parameters.join(", "),
        op.entry.cuda
    )
}

/// Returns the CUDA function that computes the gradients of one element.
fn body(formula: &Formula, inputs: &[(bool, &str)]) -> String {
    let leaves = formula.leaves();
    let mut parameters: Vec<String> = leaves
        .iter()
        .zip(inputs)
        .map(|(leaf, (_, ty))| format!("compute_t<{ty}> s{leaf}"))
        .collect();
    parameters.extend((0..formula.computed().len()).map(|k| format!("C& r{k}")));
    let mut text =
        format!("__device__ __forceinline__ void function({}) {{\n", parameters.join(", "));
    let uses = formula.uses(0..MAX_OPERANDS);
    for (k, step) in formula.steps().iter().enumerate().filter(|(k, _)| uses[*k] > 0) {
        let _ = match step {
            FormulaStep::Gradient | FormulaStep::Operand(_) | FormulaStep::Result => Ok(()),
            FormulaStep::Constant(number) => {
                writeln!(text, "    const C s{k} = (C){};", literal(*number))
            }
            FormulaStep::Single(step) => writeln!(text, "    const C s{k} = (C)(f32)s{step};"),
            FormulaStep::Apply(op, _) => {
                let reads: Vec<String> = step.reads().iter().map(|s| format!("s{s}")).collect();
                writeln!(text, "    const auto s{k} = op_{}({});", op.entry.name, reads.join(", "))
            }
        };
    }
    for (k, &operand) in formula.computed().iter().enumerate() {
        if let Some(step) = formula.gradient(operand) {
            let _ = writeln!(text, "    r{k} = s{step};");
        }
    }
    text + "}\n"
}

fn literal(number: f64) -> String {
    match number.is_finite() {
        true => format!("{number:?}"),
        false => format!("__longlong_as_double(0x{:x})", number.to_bits()),
    }
}

/// Returns whether kernels exist for this number of inputs and results.
pub(super) fn has_kernels(inputs: usize, results: usize) -> bool {
    macro_rules! find {
        ($($counts:tt)*) => {
            [$($counts),*].contains(&(inputs, results))
        };
    }
    for_counts!(find)
}

fn structs(inputs: usize, results: usize) -> Source {
    fn of<const I: usize, const N: usize>() -> Source {
        Source::new().with::<Params<Flat, Fused<I>>>().with::<Params<Index<N>, Fused<I>>>()
    }
    macro_rules! choose {
        ($(($i:literal, $k:literal))*) => {
            match (inputs, results) {
                $(($i, $k) => of::<$i, { $i + $k }>(),)*
                _ => Source::new(),
            }
        };
    }
    for_counts!(choose)
}
