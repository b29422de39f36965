//! Tests of the formulas and fused kernels of backward passes.

use warpline_kernels::elementwise::*;

/// Returns all backward passes: those of ops, and those of functions that have no op.
fn all() -> impl Iterator<Item = &'static Backward> {
    table().filter_map(|op| op.backward()).chain([&CLAMP_MIN, &CLAMP_MAX, &HARDTANH])
}

#[test]
fn a_gradient_that_is_not_computed_is_that_of_the_result() {
    for backward in table().filter_map(|op| op.backward()) {
        let formula = backward.formula();
        for operand in (0..MAX_OPERANDS).filter(|k| !formula.computed().contains(k)) {
            let step = formula.gradient(operand).map(|step| formula.steps()[step]);
            assert!(matches!(step, None | Some(FormulaStep::Gradient)), "{}", backward.name());
        }
    }
}

#[test]
fn inputs_and_results_are_counted_as_the_formulas_declare_them() {
    use FormulaStep::{Gradient, Operand, Result};
    for backward in all() {
        let formula = backward.formula();
        let is_leaf = |step: &&FormulaStep| matches!(step, Gradient | Operand(_) | Result);
        let leaves = formula.steps().iter().take_while(is_leaf).count();
        let gradients = (0..MAX_OPERANDS).filter(|&k| formula.gradient(k).is_some()).count();
        let counts = backward.inputs_and_views();
        assert_eq!(counts, (leaves, leaves + gradients), "{}", backward.name());
    }
}

#[test]
fn every_formula_of_several_launches_has_kernels() {
    let fused = all().filter(|backward| backward.is_fused()).count();
    assert!(fused > 60, "{fused}");
    for backward in all().filter(|backward| backward.formula().launches(0..MAX_OPERANDS) > 1) {
        assert!(backward.is_fused(), "{}", backward.name());
        for (variant, suffix) in ["f16", "bf16", "f32", "f64"].iter().enumerate() {
            let kernel = format!("{}_{suffix}_flat(", backward.program().name());
            let source = backward.program().source(variant).text();
            assert!(source.contains(&kernel), "{source}");
        }
    }
}
