//! Tests of binary ops that run on every target.

use warpline_kernels::elementwise::*;
use warpline_runtime::testing::{
    Tensor, assert_close, on_every_target, on_gpu, samples, shapes, stored,
};
use warpline_runtime::{DType, ErrorKind, Layout, ResultExt as _, Scalar, Target};

const OPS: [&Op; 12] = [&ADD, &SUB, &MUL, &DIV, &MAXIMUM, &MINIMUM, &EQ, &NE, &LT, &LE, &GT, &GE];

/// Computes one op in `f64`. The caller rounds the result to the dtype; integers wrap.
fn reference(op: &str, dtype: DType, a: f64, b: f64) -> f64 {
    if dtype == DType::Bool {
        let (a, b) = (a != 0.0, b != 0.0);
        return f64::from(u8::from(match op {
            "add" | "maximum" => a | b,
            "mul" | "minimum" => a & b,
            _ => return compare(op, f64::from(u8::from(a)), f64::from(u8::from(b))),
        }));
    }
    match op {
        "add" => a + b,
        "sub" => a - b,
        "mul" => a * b,
        "div" => a / b,
        "maximum" if a.is_nan() || b.is_nan() => f64::NAN,
        "minimum" if a.is_nan() || b.is_nan() => f64::NAN,
        "maximum" => a.max(b),
        "minimum" => a.min(b),
        _ => compare(op, a, b),
    }
}

fn compare(op: &str, a: f64, b: f64) -> f64 {
    f64::from(u8::from(match op {
        "eq" => a == b,
        "ne" => a != b,
        "lt" => a < b,
        "le" => a <= b,
        "gt" => a > b,
        _ => a >= b,
    }))
}

fn supported(op: &Op, dtype: DType) -> bool {
    op.dtypes(dtype).is_ok_and(|(compute, _)| compute == dtype)
}

fn every_shape_and_dtype(target: Target<'_>) {
    for shape in shapes() {
        for dtype in DType::ALL {
            let operand = |k: usize, seed| {
                let n = shape.memory[k].iter().product();
                Tensor::new(target, dtype, shape.memory[k], &samples(dtype, n, seed))
                    .with(shape.views[k])
            };
            let (a, b) = (operand(0, 1), operand(1, 2));
            let (x, y) = (a.floats(target), b.floats(target));
            for op in OPS.into_iter().filter(|op| supported(op, dtype)) {
                let (_, to) = op.dtypes(dtype).unwrap();
                let out = Tensor::garbage(target, to, shape.memory[2]).with(shape.views[2]);
                let run = |x: Arg<'_>, y: Arg<'_>| {
                    apply(target, op, dtype, &[x, y], out.view()).unwrap();
                };
                run(a.view().into(), b.view().into());
                let expected: Vec<f64> =
                    x.iter().zip(&y).map(|(&x, &y)| reference(op.name(), dtype, x, y)).collect();
                let context = format!("{} of {} {dtype}", op.name(), shape.name);
                assert_close(to, &out.floats(target), &expected, &context);

                // Do the same with a number as either operand.
                for (i, number) in [Scalar::Int(3), Scalar::Float(0.5), Scalar::Bool(true)]
                    .into_iter()
                    .filter(|s| s.category() <= dtype.category())
                    .enumerate()
                {
                    let s = number.to_f64();
                    let reversed = i % 2 == 1;
                    if reversed {
                        run(number.into(), a.view().into());
                    } else {
                        run(a.view().into(), number.into());
                    }
                    let expected: Vec<f64> = x
                        .iter()
                        .map(|&x| {
                            let (l, r) = if reversed { (s, x) } else { (x, s) };
                            reference(op.name(), dtype, l, r)
                        })
                        .collect();
                    let context = format!("{context} with {number:?}");
                    assert_close(to, &out.floats(target), &expected, &context);
                }
            }
        }
    }
}

fn in_place(target: Target<'_>) {
    for n in [40, 100_003] {
        let (x, y) = (samples(DType::F32, n, 3), samples(DType::F32, n, 4));
        let a = Tensor::new(target, DType::F32, &[n], &x);
        let b = Tensor::new(target, DType::F32, &[n], &y);
        let run = |op, x: &Tensor, y: &Tensor, out: &Tensor| {
            let operands = [x.view().into(), y.view().into()];
            apply(target, op, DType::F32, &operands, out.view()).unwrap();
        };
        run(&SUB, &a, &b, &a);
        run(&MUL, &a, &b, &b);
        run(&ADD, &b, &b, &b);
        let difference: Vec<f64> = x.iter().zip(&y).map(|(x, y)| x - y).collect();
        assert_close(DType::F32, &a.floats(target), &difference, "a -= b");
        let product: Vec<f64> =
            difference.iter().zip(&y).map(|(d, y)| 2.0 * (stored(DType::F32, *d) * y)).collect();
        assert_close(DType::F32, &b.floats(target), &product, "b *= a; b += b");
    }
}

#[test]
fn binary_ops_are_right_on_the_cpu_and_on_simulated_devices() {
    on_every_target(every_shape_and_dtype);
    on_every_target(in_place);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_binary_ops_are_right() {
    on_gpu(every_shape_and_dtype);
    on_gpu(in_place);
}

#[test]
fn integers_wrap_at_the_ends_of_their_range() {
    on_every_target(|target| {
        let a = Tensor::new(target, DType::I32, &[2], &[f64::from(i32::MAX), f64::from(i32::MIN)]);
        let one = Tensor::new(target, DType::I32, &[2], &[1.0, -1.0]);
        apply(target, &ADD, DType::I32, &[a.view().into(), one.view().into()], a.view()).unwrap();
        assert_eq!(a.floats(target), [f64::from(i32::MIN), f64::from(i32::MAX)]);
        // Exact integers beyond the precision of floats.
        let big = Tensor::new(target, DType::I64, &[1], &[(1u64 << 62) as f64]);
        let operands = [big.view().into(), Scalar::Int(1).into()];
        apply(target, &ADD, DType::I64, &operands, big.view()).unwrap();
        assert_eq!(big.values(target), [Scalar::Int((1 << 62) + 1)]);
    });
}

#[test]
fn a_number_meets_half_floats_unrounded_in_arithmetic_and_rounded_in_comparisons() {
    on_every_target(|target| {
        let tenth = stored(DType::F16, 0.1);
        let a = Tensor::new(target, DType::F16, &[1], &[3.0]);
        let operands = [a.view().into(), Scalar::Float(0.1).into()];
        apply(target, &MUL, DType::F16, &operands, a.view()).unwrap();
        assert_eq!(a.floats(target), [stored(DType::F16, 0.3)]);
        assert_ne!(stored(DType::F16, 3.0 * tenth), stored(DType::F16, 0.3));
        let b = Tensor::new(target, DType::F16, &[1], &[0.1]);
        let out = Tensor::garbage(target, DType::Bool, &[1]);
        let operands = [b.view().into(), Scalar::Float(0.1).into()];
        apply(target, &EQ, DType::F16, &operands, out.view()).unwrap();
        assert_eq!(out.values(target), [Scalar::Bool(true)]);
    });
}

#[test]
fn impossible_operands_are_refused() {
    on_every_target(|target| {
        let f = Tensor::garbage(target, DType::F32, &[4]);
        let i = Tensor::garbage(target, DType::I32, &[4]);
        let b = Tensor::garbage(target, DType::Bool, &[4]);
        let run = |op: &'static Op, x: &Tensor, y: &Tensor, out: &Tensor| {
            apply(target, op, x.view().dtype, &[x.view().into(), y.view().into()], out.view())
        };
        assert!(matches!(run(&SUB, &b, &b, &b).kind(), Some(ErrorKind::UnsupportedDType { .. })));
        let operands = [i.view().into(), Scalar::Float(0.5).into()];
        let float = apply(target, &ADD, DType::I32, &operands, i.view());
        assert!(matches!(float.kind(), Some(ErrorKind::CannotCast { .. })));

        let short = f.with(|l| l.narrow(0, 0, 3));
        assert!(matches!(run(&ADD, &f, &short, &f).kind(), Some(ErrorKind::ShapeMismatch { .. })));
        let later = f.with(|l| l.narrow(0, 1, 3));
        assert!(matches!(
            run(&ADD, &short, &short, &later).kind(),
            Some(ErrorKind::OverlappingOperands)
        ));
        let one = f.with(|l| l.narrow(0, 0, 1)?.expand(&[4]));
        let other = Tensor::garbage(target, DType::F32, &[4]);
        assert!(matches!(
            run(&ADD, &other, &other, &one).kind(),
            Some(ErrorKind::OverlappingWrite)
        ));
        let outside = Tensor {
            layout: Layout::from_parts([4].into_iter().collect(), [2].into_iter().collect(), 0),
            ..f.clone()
        };
        assert!(matches!(
            run(&ADD, &outside, &other, &other).kind(),
            Some(ErrorKind::OutOfStorage { .. })
        ));
    });
}

#[test]
fn dtypes_follow_pytorch() {
    assert_eq!(DIV.dtypes(DType::I64).unwrap(), (DType::F32, DType::F32));
    assert_eq!(DIV.dtypes(DType::F16).unwrap(), (DType::F16, DType::F16));
    assert_eq!(LT.dtypes(DType::I64).unwrap(), (DType::I64, DType::Bool));
    assert_eq!(ADD.dtypes(DType::Bool).unwrap(), (DType::Bool, DType::Bool));
    assert!(SUB.dtypes(DType::Bool).is_err());
}

#[test]
fn tensors_beyond_32_bits_are_computed_in_parts() {
    on_every_target(|target| {
        let Target::Cpu(runtime) = target else { return };
        // Three bytes a gibibyte apart. The op does not touch the memory between them.
        let storage = warpline_runtime::Storage::pageable(runtime, (1 << 31) + 1).unwrap();
        let layout =
            Layout::from_parts([3].into_iter().collect(), [1 << 30].into_iter().collect(), 0);
        let far = Tensor { storage, layout, dtype: DType::U8 };
        let near = Tensor::new(target, DType::U8, &[3], &[1.0, 2.0, 3.0]);
        for _ in 0..2 {
            let operands = [far.view().into(), near.view().into()];
            apply(target, &ADD, DType::U8, &operands, far.view()).unwrap();
        }
        assert_eq!(far.floats(target), [2.0, 4.0, 6.0]);
    });
}
