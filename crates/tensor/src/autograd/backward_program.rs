//! Backward passes of elementwise ops in one launch, with the op's backward program.
//!
//! The problem: the gradient formulas of an op such as `mish` have many steps. Computed by tensor ops (`formula.rs`),
//! each step would be a launch that reads and writes memory. The approach: kernels are committed that compute all
//! gradients of an op at once (`kernels/src/elementwise/backward`). This module collects their inputs, which are the
//! incoming gradient and the saved values that the wanted gradients read, chooses the dtype of the results, and
//! launches the program with one result for each wanted gradient.
//!
//! Limits: `formula.rs` computes gradients in four cases: in a pass with `create_graph`, because a launch cannot
//! be differentiated; if the formulas take at most one launch anyway; if the program would have more than eight
//! inputs and results; and if no input of the program is a tensor. The engine sums gradients over broadcast dimensions
//! afterwards.

use smallvec::SmallVec;
use warpline_kernels::elementwise::{self as entries, Arg, Formula, FormulaStep, apply_backward};
use warpline_runtime::{Layout, View};

use super::Gradients;
use super::formula::{FormulaLeaves, StepValue, leaf_value};
use crate::methods::{common_dtype, counts_as_number};
use crate::{Result, Scalar, Tensor, TensorOrScalar};

/// A value that the program reads.
enum ProgramInput {
    Tensor(Tensor, Layout),
    Number(Scalar),
}

/// Computes the gradients of the operands in `wanted` with the op's backward program. Returns one gradient for
/// each element of `wanted`.
///
/// Returns `None` if the op has no fused program, if separate ops compute the gradients in at most one launch,
/// or if no input of the program is a tensor.
pub(super) fn evaluate(
    backward: &'static entries::Backward,
    wanted: &[Option<usize>],
    leaves: &FormulaLeaves,
    grad: &Tensor,
) -> Result<Option<Gradients>> {
    let formula = backward.formula();
    let operands = || wanted.iter().flatten().copied();
    if !backward.is_fused() || formula.launches(operands()) < 2 {
        return Ok(None);
    }
    let uses = formula.uses(operands());
    let mut inputs: SmallVec<[ProgramInput; 4]> = SmallVec::new();
    for &step in formula.leaves() {
        let tensor = match formula.steps()[step] {
            _ if uses[step] == 0 => None,
            FormulaStep::Gradient => Some(grad.clone()),
            _ => match leaf_value(leaves, step)? {
                StepValue::Number(number) => {
                    inputs.push(ProgramInput::Number(*number));
                    continue;
                }
                StepValue::Tensor(tensor) => Some(tensor.clone()),
            },
        };
        inputs.push(match tensor {
            // Formulas compute half-width floats in `float32`, but comparisons read tensors in their own
            // dtype.
            Some(tensor)
                if !counts_as_number(&tensor, grad, grad.dtype(), || {
                    !is_compared(formula, step)
                }) =>
            {
                let layout = tensor.layout().expand(grad.size())?;
                ProgramInput::Tensor(tensor, layout)
            }
            Some(tensor) => ProgramInput::Number(tensor.to_scalar()?),
            None => ProgramInput::Number(Scalar::Int(0)),
        });
    }
    let mut numbers_of: SmallVec<[TensorOrScalar<'_>; 4]> = SmallVec::new();
    let mut layouts: SmallVec<[&Layout; 4]> = SmallVec::new();
    for (input, &step) in inputs.iter().zip(formula.leaves()) {
        if let ProgramInput::Tensor(tensor, layout) = input {
            layouts.push(layout);
            if !formula.is_condition(step) {
                numbers_of.push(tensor.into());
            }
        }
    }
    if layouts.is_empty() {
        return Ok(None);
    }
    let dtype = common_dtype(&numbers_of);
    let exec = grad.exec()?;
    let mut computed: SmallVec<[Option<Tensor>; 4]> = SmallVec::new();
    for operand in formula.computed() {
        let is_wanted = operands().any(|wanted| wanted == *operand);
        computed.push(is_wanted.then(|| exec.empty_for(&layouts, dtype)).transpose()?);
    }
    let args: SmallVec<[Arg<'_>; 4]> = inputs
        .iter()
        .map(|input| match input {
            ProgramInput::Tensor(tensor, layout) => {
                Arg::Tensor(View { layout, ..tensor.as_view() })
            }
            ProgramInput::Number(number) => Arg::Number(*number),
        })
        .collect();
    let results: SmallVec<[Option<View<'_>>; 4]> =
        computed.iter().map(|tensor| tensor.as_ref().map(Tensor::as_view)).collect();
    apply_backward(exec.target(), backward, dtype, &args, &results)?;
    let gradient = |operand: &Option<usize>| {
        let operand = (*operand)?;
        match formula.computed().iter().position(|computed| *computed == operand) {
            Some(k) => computed[k].clone(),
            // A gradient that the program does not compute equals the result's gradient.
            None => formula.gradient(operand).map(|_| grad.clone()),
        }
    };
    Ok(Some(wanted.iter().map(gradient).collect()))
}

/// Returns whether a comparison reads the leaf.
fn is_compared(formula: &Formula, leaf: usize) -> bool {
    formula.steps().iter().any(
        |step| matches!(step, FormulaStep::Apply(op, _) if op.returns_bools() && step.reads().contains(&leaf)),
    )
}
