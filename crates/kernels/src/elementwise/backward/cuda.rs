//! Prints the CUDA code of backward passes.

use std::fmt::Write;

use warpline_runtime::module::Source;

use super::Backward;
use crate::elementwise::Op;
use crate::elementwise::cuda::{KernelSource, around};
use crate::elementwise::entry::ResultDType;
use crate::elementwise::formula::{Formula, FormulaStep, MAX_OPERANDS};
use crate::programs::cuda_type;

/// Returns the source of a backward pass's kernels for a dtype.
pub fn source(backward: &Backward, variant: &str) -> Source {
    let formula = backward.formula();
    let (element, ops) = (cuda_type(variant), ops(formula));
    let mut function = format!("typedef compute_t<{element}> C;\n");
    ops.iter().for_each(|op| function += &helper(op));
    let inputs: Vec<(bool, &str)> = (0..backward.kernels.inputs())
        .map(|k| if formula.is_condition(k) { (true, "boolean") } else { (false, element) })
        .collect();
    function += &body(formula, &inputs);
    let kernels = KernelSource {
        name: format!("{}_{variant}", backward.program().name()),
        inputs: &inputs,
        results: &vec![element; formula.differentiable().count()],
        vector: if element == "f64" { 2 } else { 4 },
        run: if element == "f64" { 2 } else { 4 },
    };
    let expressions: Vec<&str> = ops.iter().map(|op| op.entry.cuda).collect();
    around(backward.kernels.structs(), &expressions.join("\n"), &(function + &kernels.text()))
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
    let result = if op.entry.output == ResultDType::Bool { "bool" } else { "C" };
    format!(
        "__device__ __forceinline__ {result} op_{}({}) {{ return ({result})({}); }}\n",
        op.entry.name,
        parameters.join(", "),
        op.entry.cuda
    )
}

/// Returns the CUDA function that computes the gradients of one element.
fn body(formula: &Formula, inputs: &[(bool, &str)]) -> String {
    let mut parameters: Vec<String> =
        inputs.iter().enumerate().map(|(k, (_, ty))| format!("compute_t<{ty}> s{k}")).collect();
    parameters.extend((0..formula.differentiable().count()).map(|k| format!("C& r{k}")));
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
    for (k, step) in (0..MAX_OPERANDS).filter_map(|operand| formula.gradient(operand)).enumerate() {
        let _ = writeln!(text, "    r{k} = s{step};");
    }
    text + "}\n"
}

fn literal(number: f64) -> String {
    match number.is_finite() {
        true => format!("{number:?}"),
        false => format!("__longlong_as_double(0x{:x})", number.to_bits()),
    }
}
