//! Every op of the table, for every dtype and layout. The CPU's result for contiguous operands is
//! the reference.

use warpline_cuda_sys_safe::DriverError;
use warpline_kernels::elementwise::*;
use warpline_runtime::testing::{
    Shape, Tensor, assert_close, on_every_target, on_gpu, samples, shapes,
};
use warpline_runtime::{DType, ErrorKind, ResultExt as _, Runtime, RuntimeConfig, Scalar, Target};

type Compare = fn(&Op, DType, &[Scalar], &[Scalar], &str);

fn same(_: &Op, _: DType, actual: &[Scalar], expected: &[Scalar], context: &str) {
    assert_eq!(actual.len(), expected.len(), "{context}");
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        let nan = a.to_f64().is_nan() && e.to_f64().is_nan();
        assert!(nan || a == e, "{context}, element {i}: {a:?}, not {e:?}");
    }
}

fn close(op: &Op, dtype: DType, actual: &[Scalar], expected: &[Scalar], context: &str) {
    if !dtype.is_float() {
        return same(op, dtype, actual, expected, context);
    }
    let floats = |values: &[Scalar]| values.iter().map(|v| v.to_f64()).collect::<Vec<_>>();
    let (actual, mut expected) = (floats(actual), floats(expected));
    for (e, &a) in expected.iter_mut().zip(&actual) {
        // As in PyTorch, the CPU returns NaN for infinity, and the CUDA kernel returns infinity.
        if op.name() == "gelu" && e.is_nan() && a == f64::INFINITY {
            *e = a;
        }
    }
    assert_close(dtype, &actual, &expected, context);
}

fn operand_dtype(op: &Op, k: usize, dtype: DType) -> DType {
    if op.is_condition(k) { DType::Bool } else { dtype }
}

/// Computes the op for contiguous operands on the CPU.
fn expected(
    cpu: Target<'_>,
    op: &'static Op,
    dtype: DType,
    operands: &[Vec<Scalar>],
) -> Vec<Scalar> {
    let n = operands[0].len();
    let tensors: Vec<Tensor> = (0..operands.len())
        .map(|k| {
            let values: Vec<f64> = operands[k].iter().map(|v| v.to_f64()).collect();
            Tensor::new(cpu, operand_dtype(op, k, dtype), &[n], &values)
        })
        .collect();
    let args: Vec<Arg<'_>> = tensors.iter().map(|t| t.view().into()).collect();
    let out = Tensor::garbage(cpu, op.dtypes(dtype).unwrap().1, &[n]);
    apply(cpu, op, dtype, &args, out.view()).unwrap();
    out.values(cpu)
}

fn every_layout(
    target: Target<'_>,
    op: &'static Op,
    dtype: DType,
    shape: &Shape,
    compare: Compare,
) {
    let reason = DriverError::NoDevice { reason: "this is the CPU".into() };
    let cpu = Runtime::without_cuda(reason, &RuntimeConfig::default());
    let cpu = Target::Cpu(&cpu);
    let (_, to) = op.dtypes(dtype).unwrap();
    let operands: Vec<Tensor> = (0..op.inputs())
        .map(|k| {
            let dtype = operand_dtype(op, k, dtype);
            let n = shape.memory[k % 2].iter().product();
            Tensor::new(target, dtype, shape.memory[k % 2], &samples(dtype, n, 11 + k as u64))
                .with(shape.views[k % 2])
        })
        .collect();
    let mut values: Vec<Vec<Scalar>> = operands.iter().map(|t| t.values(target)).collect();
    let mut args: Vec<Arg<'_>> = operands.iter().map(|t| t.view().into()).collect();
    let run = |args: &[Arg<'_>]| {
        let out = Tensor::garbage(target, to, shape.memory[2]).with(shape.views[2]);
        apply(target, op, dtype, args, out.view()).unwrap();
        out.values(target)
    };
    let context = format!("{} of {} {dtype}", op.name(), shape.name);
    compare(op, to, &run(&args), &expected(cpu, op, dtype, &values), &context);

    // Do the same with numbers in place of the last operand, of the last two, and so on. The first
    // operand remains a tensor.
    for k in (0..op.inputs()).rev().take(op.inputs() - 1) {
        let number = match operand_dtype(op, k, dtype) {
            DType::Bool => Scalar::Bool(true),
            dtype if dtype.is_float() => Scalar::Float(0.5),
            _ => Scalar::Int(3),
        };
        args[k] = number.into();
        values[k].fill(number);
        let context = format!("{context}, from operand {k} on {number:?}");
        compare(op, to, &run(&args), &expected(cpu, op, dtype, &values), &context);
    }
}

fn all(target: Target<'_>, compare: Compare) {
    // All ops share the loop over threads, which other tests run on many elements.
    let small = |shape: &Shape| shape.memory[2].iter().product::<usize>() < 10_000;
    let shapes: Vec<Shape> = shapes().into_iter().filter(small).collect();
    for op in table() {
        for dtype in DType::ALL {
            if op.dtypes(dtype).is_ok_and(|(compute, _)| compute == dtype) {
                shapes.iter().for_each(|shape| every_layout(target, op, dtype, shape, compare));
            }
        }
    }
}

#[test]
fn every_op_of_the_table_is_right_on_the_cpu_and_on_simulated_devices() {
    on_every_target(|target| all(target, same));
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_every_op_of_the_table_is_right() {
    on_gpu(|target| all(target, close));
}

#[test]
fn every_op_has_a_loop_for_each_dtype_that_it_is_computed_in() {
    let reason = DriverError::NoDevice { reason: "this is the CPU".into() };
    let cpu = Runtime::without_cuda(reason, &RuntimeConfig::default());
    let target = Target::Cpu(&cpu);
    for op in table() {
        for dtype in DType::ALL {
            if op.dtypes(dtype).is_ok_and(|(compute, _)| compute == dtype) {
                let operands = vec![vec![Scalar::Int(1)]; op.inputs()];
                assert_eq!(expected(target, op, dtype, &operands).len(), 1);
            }
        }
    }
}

fn of(op: &'static Op, dtype: DType, operands: &[&[f64]]) -> Vec<f64> {
    let reason = DriverError::NoDevice { reason: "this is the CPU".into() };
    let cpu = Runtime::without_cuda(reason, &RuntimeConfig::default());
    let operands: Vec<Vec<Scalar>> =
        operands.iter().map(|o| o.iter().map(|&v| Scalar::Float(v)).collect()).collect();
    let values = expected(Target::Cpu(&cpu), op, dtype, &operands);
    values.into_iter().map(Scalar::to_f64).collect()
}

#[test]
fn ops_are_right_for_extreme_integers() {
    let least = f64::from(i32::MIN);
    let (x, y) = ([7.0, -7.0, 7.0, -7.0, least, 5.0], [2.0, 2.0, -2.0, -2.0, -1.0, 0.0]);
    assert_eq!(of(&FLOOR_DIVIDE, DType::I32, &[&x, &y]), [3.0, -4.0, -4.0, 3.0, least, -1.0]);
    assert_eq!(of(&DIV_TRUNC, DType::I32, &[&x, &y]), [3.0, -3.0, -3.0, 3.0, least, -1.0]);
    assert_eq!(of(&REMAINDER, DType::I32, &[&x, &y]), [1.0, 1.0, -1.0, -1.0, 0.0, 5.0]);
    assert_eq!(of(&FMOD, DType::I32, &[&x, &y]), [1.0, -1.0, 1.0, -1.0, 0.0, 5.0]);
    assert_eq!(of(&DIV_TRUNC, DType::U8, &[&[200.0, 5.0], &[3.0, 0.0]]), [66.0, 255.0]);

    let (x, y) = (
        [2.0, -3.0, 2.0, -1.0, -1.0, 1.0, 0.0, 3.0],
        [10.0, 3.0, -1.0, -3.0, -2.0, -9.0, 0.0, 41.0],
    );
    let wrapped = f64::from(3i32.wrapping_pow(41));
    assert_eq!(of(&POW, DType::I32, &[&x, &y]), [1024.0, -27.0, 0.0, -1.0, 1.0, 1.0, 1.0, wrapped]);

    let (x, y) = ([1.0, 1.0, 1.0, -8.0, -8.0, 64.0], [7.0, 8.0, -1.0, 1.0, 100.0, -1.0]);
    assert_eq!(of(&LEFT_SHIFT, DType::I8, &[&x, &y]), [-128.0, 0.0, 0.0, -16.0, 0.0, 0.0]);
    assert_eq!(of(&RIGHT_SHIFT, DType::I8, &[&x, &y]), [0.0, 0.0, 0.0, -4.0, -1.0, 0.0]);
    assert_eq!(of(&RIGHT_SHIFT, DType::U8, &[&[200.0, 200.0], &[7.0, 8.0]]), [1.0, 0.0]);

    assert_eq!(of(&THRESHOLD, DType::I16, &[&[-1.0, 2.0], &[1.0; 2], &[9.0; 2]]), [9.0, 2.0]);

    let (x, y) = ([12.0, -12.0, 0.0, 0.0], [18.0, 18.0, 5.0, 0.0]);
    assert_eq!(of(&GCD, DType::I64, &[&x, &y]), [6.0, 6.0, 5.0, 0.0]);
    assert_eq!(of(&LCM, DType::I64, &[&x, &y]), [36.0, 36.0, 0.0, 0.0]);
}

#[test]
fn ops_are_right_for_extreme_floats() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let on = |op, operands: &[&[f64]]| of(op, DType::F64, operands);
    assert_eq!(
        on(&FLOOR_DIVIDE, &[&[7.5, -7.5, 1.0, -1.0], &[2.0, 2.0, 0.0, inf]]),
        [3.0, -4.0, inf, -1.0]
    );
    assert_eq!(on(&REMAINDER, &[&[7.5, -7.5, 7.5], &[2.0, 2.0, -2.0]]), [1.5, 0.5, -0.5]);
    assert_eq!(on(&POW, &[&[-8.0, nan, 0.0], &[2.0, 0.0, -1.0]]), [64.0, 1.0, inf]);
    assert!(on(&POW, &[&[-8.0], &[0.5]])[0].is_nan());
    assert_eq!(on(&FMAX, &[&[nan, 1.0, 2.0], &[1.0, nan, 3.0]]), [1.0, 1.0, 3.0]);
    let clamped =
        on(&CLAMP, &[&[nan, 0.0, 0.0, 5.0], &[0.0, nan, 0.0, 3.0], &[1.0, 1.0, nan, 2.0]]);
    assert!(clamped[..3].iter().all(|x| x.is_nan()) && clamped[3] == 2.0, "{clamped:?}");
    assert_eq!(on(&XLOGY, &[&[0.0, 0.0, 2.0], &[0.0, inf, 1.0]]), [0.0; 3]);
    assert!(on(&XLOGY, &[&[0.0], &[nan]])[0].is_nan());
    assert_eq!(on(&LOGADDEXP, &[&[inf, -inf, -inf], &[inf, -inf, 1.0]]), [inf, -inf, 1.0]);
    assert_eq!(on(&HEAVISIDE, &[&[-1.0, 0.0, 2.0, nan], &[9.0; 4]]), [0.0, 9.0, 1.0, 0.0]);
    assert_eq!(
        on(&NAN_TO_NUM, &[&[nan, inf, -inf, 1.0], &[4.0; 4], &[5.0; 4], &[6.0; 4]]),
        [4.0, 5.0, 6.0, 1.0]
    );
    assert_eq!(on(&ERFINV, &[&[1.0, -1.0, 0.0]]), [inf, -inf, 0.0]);
    assert!(on(&ERFINV, &[&[1.5]])[0].is_nan());
    assert_eq!(on(&DIGAMMA, &[&[0.0]]), [-inf]);
    assert!(on(&DIGAMMA, &[&[-3.0]])[0].is_nan());
    assert_eq!(on(&SINC, &[&[0.0]]), [1.0]);
    assert_eq!(on(&SIGNBIT, &[&[-0.0, 0.0, -inf]]), [1.0, 0.0, 1.0]);
    assert_eq!(on(&NEXTAFTER, &[&[1.0], &[2.0]]), [1.0 + f64::EPSILON]);
    let x = [nan, 1.0, 0.5, -0.5, -2.0, inf];
    let [soft, hard] = [&SOFTSHRINK, &HARDSHRINK].map(|op| on(op, &[&x, &[0.5; 6]]));
    assert_eq!((&soft[1..], soft[0].is_nan()), (&[0.5, 0.0, 0.0, -1.5, inf][..], true));
    assert_eq!((&hard[1..], hard[0].is_nan()), (&[1.0, 0.0, 0.0, -2.0, inf][..], true));
    let above = on(&THRESHOLD, &[&x, &[0.5; 6], &[7.0; 6]]);
    assert_eq!((&above[1..], above[0].is_nan()), (&[1.0, 7.0, 7.0, 7.0, inf][..], true));
    let x = [0.125, 2.5, -2.5, 1234.5, -0.04];
    assert_eq!(on(&ROUND_DECIMALS, &[&x, &[10.0; 5]]), [0.1, 2.5, -2.5, 1234.5, -0.0]);
    assert_eq!(on(&ROUND_DECIMALS, &[&x, &[-10.0; 5]]), [0.0, 0.0, -0.0, 1230.0, -0.0]);
    // Log-sigmoid is finite where the direct formula overflows.
    assert_eq!(on(&LOGSIGMOID, &[&[-1000.0]]), [-1000.0]);
    assert!(on(&LOGSIGMOID, &[&[nan]])[0].is_nan());
}

#[test]
fn a_condition_is_of_bools() {
    on_every_target(|target| {
        let f = Tensor::garbage(target, DType::F32, &[4]);
        let operands = [f.view().into(); 3];
        let wrong = apply(target, &WHERE, DType::F32, &operands, f.view());
        assert!(matches!(wrong.kind(), Some(ErrorKind::DTypeMismatch { .. })));
        let few = apply(target, &WHERE, DType::F32, &operands[..1], f.view());
        assert!(matches!(few.kind(), Some(ErrorKind::InvalidArgument { .. })));
    });
}

#[allow(unreachable_pub)] // the macro declares public ops
mod many_gradients {
    warpline_kernels::elementwise_ops! {
        // SAFETY: the CUDA expression is arithmetic on the operands.
        unsafe;

        /// `w x + y z`.
        SUM_OF_PRODUCTS = "sum_of_products"(w, x, y, z), FLOATS => Same, Keep, "w * x + y * z", {
            float => w * x + y * z
        }, gradients(g) { w: g * x, x: g * w, y: g * z, z: g * y }
    }
}

#[test]
fn gradients_with_more_than_eight_inputs_and_results_are_not_fused() {
    let backward = many_gradients::SUM_OF_PRODUCTS.backward().unwrap();
    assert_eq!((backward.formula().leaves().len(), backward.formula().computed().len()), (5, 4));
    assert!(!backward.is_fused());
}
