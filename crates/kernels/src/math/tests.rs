//! Comparison of the functions with references in `f64`, over a sample of all `f32` values.

use super::*;
use warpline_runtime::host::LANES;

type Case = (fn(&mut [f32]), fn(f64) -> f64, fn(f64) -> f64);

/// Name of each function, its form over slices, its scalar form, and the reference.
const CASES: [(&str, Case); 10] = [
    ("exp", (exp, functions::exp, f64::exp)),
    ("expm1", (expm1, functions::expm1, f64::exp_m1)),
    ("log", (log, functions::log, f64::ln)),
    ("log1p", (log1p, functions::log1p, f64::ln_1p)),
    ("tanh", (tanh, functions::tanh, f64::tanh)),
    ("erf", (erf, functions::erf, libm::erf)),
    ("sigmoid", (sigmoid, functions::sigmoid, |x| 1.0 / (1.0 + (-x).exp()))),
    ("silu", (silu, functions::silu, |x| x / (1.0 + (-x).exp()))),
    ("gelu", (gelu, functions::gelu, |x| x * 0.5 * libm::erfc(-x * 0.5f64.sqrt()) + 0.0 * x)),
    (
        "gelu_tanh",
        (gelu_tanh, functions::gelu_tanh, |x| {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            x / (1.0 + (-2.0 * u).exp())
        }),
    ),
];

/// Every 1009th bit pattern, and special values.
fn sweep() -> Vec<f32> {
    let special = [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN];
    let ends = [f32::MIN_POSITIVE, f32::MAX, f32::MIN, f32::from_bits(1), -f32::from_bits(1)];
    (0..=u32::MAX).step_by(1009).map(f32::from_bits).chain(special).chain(ends).collect()
}

/// Position of a float in the order of all floats. Both zeros have their own position.
fn ordinal(x: f32) -> i64 {
    let bits = i64::from(x.to_bits() & i32::MAX as u32);
    if x.is_sign_negative() { -1 - bits } else { bits }
}

#[test]
fn functions_are_within_a_unit_in_the_last_place() {
    let inputs = sweep();
    for (name, (all, _, reference)) in CASES {
        let mut outputs = inputs.clone();
        all(&mut outputs);
        for (&x, &y) in inputs.iter().zip(&outputs) {
            let expected = reference(x.into()) as f32;
            let same = if expected.is_nan() {
                y.is_nan()
            } else {
                (ordinal(y) - ordinal(expected)).abs() <= 1 && y.signum() == expected.signum()
            };
            assert!(same, "{name} of {x:e}: {y:e}, not {expected:e}");
        }
    }
}

#[test]
fn slices_of_any_length_agree_with_the_scalar_form() {
    let inputs: Vec<f32> = sweep().into_iter().step_by(97).collect();
    for (name, (all, one, _)) in CASES {
        for n in (1..3 * LANES).chain([inputs.len()]) {
            let mut outputs = inputs[inputs.len() - n..].to_vec();
            all(&mut outputs);
            for (&y, &x) in outputs.iter().zip(&inputs[inputs.len() - n..]) {
                // The scalar form, which the compiler must not vectorize.
                let expected = std::hint::black_box(one)(x.into()) as f32;
                let same = y.to_bits() == expected.to_bits() || y.is_nan() && expected.is_nan();
                assert!(same, "{name} of {x:e} among {n}: {y:e}, not {expected:e}");
            }
        }
    }
}
