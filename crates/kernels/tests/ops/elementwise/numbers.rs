//! A number as an operand gives the same result as a tensor filled with that number.

use warpline_kernels::elementwise::*;
use warpline_kernels::fill::fill;
use warpline_runtime::testing::{Tensor, on_every_target, samples};
use warpline_runtime::{DType, Scalar, Target};

/// More than a vector, so that some elements are beside whole vectors.
const N: usize = 37;

/// Values at the edges of a dtype, which the dtype represents exactly.
fn edges(dtype: DType) -> Vec<Scalar> {
    let ints = |least: i64, most: i64| [least, most, 0, 1].map(Scalar::Int).to_vec();
    let floats = |least: f64, most: f64| {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        [least, -least, most, -0.0, 0.0, 1.0, inf, -inf, nan].map(Scalar::Float).to_vec()
    };
    match dtype {
        DType::Bool => [false, true].map(Scalar::Bool).to_vec(),
        DType::U8 => ints(0, 255),
        DType::I8 => ints(-128, 127),
        DType::I16 => ints(i16::MIN.into(), i16::MAX.into()),
        DType::I32 => ints(i32::MIN.into(), i32::MAX.into()),
        DType::I64 => ints(i64::MIN, i64::MAX),
        DType::F16 => floats(2f64.powi(-24), 65504.0),
        DType::BF16 => floats(2f64.powi(-133), 2f64.powi(127)),
        DType::F32 => floats(2f64.powi(-149), f32::MAX.into()),
        DType::F64 => floats(5e-324, f64::MAX),
    }
}

fn of_op(target: Target<'_>, op: &'static Op, dtype: DType) {
    let (_, to) = op.dtypes(dtype).unwrap();
    let own = |k: usize| if op.is_condition(k) { DType::Bool } else { dtype };
    for place in 0..op.inputs() {
        for number in edges(own(place)) {
            let full = Tensor::garbage(target, own(place), &[N]);
            fill(target, full.view(), number).unwrap();
            let tensors: Vec<Tensor> = (0..op.inputs())
                .map(|k| match k == place {
                    true => full.clone(),
                    false => Tensor::new(target, own(k), &[N], &samples(own(k), N, 3 + k as u64)),
                })
                .collect();
            let mut args: Vec<Arg<'_>> = tensors.iter().map(|t| t.view().into()).collect();
            let run = |args: &[Arg<'_>], step: usize| {
                let out = Tensor::garbage(target, to, &[N * step])
                    .with(|l| l.slice(0, 0, N * step, step));
                apply(target, op, dtype, args, out.view()).unwrap();
                // Formats the values, so that NaN equals NaN and zeros show their signs.
                format!("{:?}", out.values(target))
            };
            let expected = run(&args, 1);
            args[place] = number.into();
            let context = format!("{} of {dtype}, operand {place} {number:?}", op.name());
            for step in [1, 2] {
                assert_eq!(run(&args, step), expected, "{context}, every {step}. result");
            }
        }
    }
}

#[test]
fn numbers_are_like_tensors_filled_with_them() {
    on_every_target(|target| {
        // A unary op with a number has no tensor to determine the dtype.
        for op in table().filter(|op| op.inputs() > 1) {
            for dtype in DType::ALL {
                if op.dtypes(dtype).is_ok_and(|(compute, _)| compute == dtype) {
                    of_op(target, op, dtype);
                }
            }
        }
    });
}
