//! Tests of `expr!`: operators, operands, control flow and locations of errors.

use warpline::{DType, ErrorKind, Result, Scalar, Tensor, cat, expr, tensor};

fn vector(values: &[f32]) -> Tensor {
    tensor(values, ()).unwrap()
}

fn values(t: Result<Tensor>) -> Vec<f32> {
    t.unwrap().to_vec().unwrap()
}

#[test]
fn operators_have_rusts_precedence_and_move_nothing() {
    let (a, b, x, c) = (vector(&[1.0]), vector(&[2.0]), vector(&[3.0]), 0.5);
    assert_eq!(values(expr!(a + b * x + c * x.pow(2))), [11.5]);
    assert_eq!(values(expr!((a - b).pow(2).sum(()) / 4)), [0.25]);
    assert_eq!(values(expr!(-x % 2 - -b)), [3.0]);
    assert_eq!(values(expr!(1 / b + 2f32 * b - 1u64 * x)), [1.5]);
    assert_eq!(values(expr!((1.0 / b).square() * 2)), [0.5]);
}

#[test]
fn operands_are_tensors_references_fields_and_elements() {
    struct Layer {
        scale: Tensor,
    }
    let layer = Layer { scale: vector(&[2.0]) };
    let mut owned = vector(&[3.0]);
    let (list, reference) = (vec![vector(&[5.0])], &&vector(&[7.0]));
    assert_eq!(values(expr!(layer.scale * owned + list[0] * reference)), [41.0]);
    let changed = &mut owned;
    assert_eq!(values(expr!(changed + &list[list.len() - 1] + *reference)), [15.0]);
    let boxed = Box::new(vector(&[1.0]));
    assert_eq!(values(expr!(*boxed + 1)), [2.0]);
}

#[test]
fn numbers_of_every_type_combine_as_in_rust() {
    let x = vector(&[2.0]);
    let (n, m, half) = (3usize, -1i8, half::f16::from_f32(0.5));
    assert_eq!(values(expr!(x * n + m)), [5.0]);
    assert_eq!(values(expr!((2 * n + 1) * x * half)), [7.0]);
    assert_eq!(values(expr!(1 / 2 * x)), [0.0]);
    assert_eq!(expr!(n % 2 + 2 * n).unwrap(), 7usize);
    assert!(expr!(n as f64 / 2.0 > 1.0).unwrap());
    assert_eq!(values(expr!(x + x.numel() as f32 / 2.0)), [2.5]);
    assert_eq!(values(expr!(x.narrow(0, 1 - 1, n - 2) + u64::MAX)), [u64::MAX as f32]);
    let ints = tensor(1u8, ()).unwrap();
    assert_eq!(expr!(ints + 1u16).unwrap().dtype(), DType::U8);
}

#[test]
fn outside_formulas_some_numbers_may_be_left_operands() {
    let x = vector(&[2.0]);
    let (half, brain) = (half::f16::from_f32(0.5), half::bf16::from_f32(4.0));
    assert_eq!(values((half * &x).and_then(|y| brain / y)), [4.0]);
    assert_eq!(values((Scalar::Int(3) - &x).and_then(|y| Scalar::Float(2.5) % y)), [0.5]);
    let bits = (Scalar::Int(6) & tensor![3, 5].unwrap()).unwrap();
    assert_eq!(bits.to_vec::<i64>().unwrap(), [2, 4]);
    assert_eq!(values((1.0 / &x).and_then(|y| 3 - y)), [2.5]);
    // The compiler knows the type of the result before it infers the type of the literal.
    let y = (1.0 - x).unwrap();
    assert_eq!(values(y.abs()), [1.0]);
}

#[test]
fn comparisons_and_bits_give_masks() {
    let x = vector(&[-1.0, 0.5, 2.0]);
    let inside = expr!((x > 0) & (x <= 1)).unwrap();
    assert_eq!(inside.to_vec::<bool>().unwrap(), [false, true, false]);
    assert_eq!(expr!(!inside | (2 == x)).unwrap().to_vec::<bool>().unwrap(), [true, false, true]);
    let n = 1;
    let bits = expr!(tensor![1, 6] << n ^ 2).unwrap();
    assert_eq!(bits.to_vec::<i64>().unwrap(), [0, 14]);
}

#[test]
fn calls_give_their_values() {
    let (x, y) = (vector(&[1.0, 2.0]), vector(&[3.0]));
    assert_eq!(values(expr!(cat(&[x.square().sqrt(), y * 2], 0))), [1.0, 2.0, 6.0]);
    assert_eq!(expr!(x.matmul(&(x * 2)).item::<f32>()).unwrap(), 10.0);
    assert_eq!(expr!(x.numel() + 1).unwrap(), 3);
    assert_eq!(values(expr!(Some(x + 1).unwrap().sum(()).neg())), [-5.0]);
}

#[test]
fn control_flow_leaves_a_formula_like_a_block() {
    fn early(x: &Tensor, stop: bool) -> std::result::Result<f32, Box<dyn std::error::Error>> {
        let number: f32 = "2".parse()?;
        let y = expr!(x * if stop { return Ok(0.0) } else { number } + "x3"[1..].parse::<f32>()?)?;
        Ok(y.item()?)
    }
    let x = vector(&[1.0]);
    assert_eq!(early(&x, false).unwrap(), 5.0);
    assert_eq!(early(&x, true).unwrap(), 0.0);

    let mut sum = vector(&[0.0]);
    'numbers: for n in 0..10 {
        sum = expr!(
            sum + match n {
                1 => continue 'numbers,
                4 => break 'numbers,
                n => n,
            }
        )
        .unwrap();
    }
    assert_eq!(values(Ok(sum)), [5.0]);
    let squares = expr!({
        let mut total = x * 0;
        for n in 1..=3 {
            total = total + n * n;
        }
        total
    });
    assert_eq!(values(squares), [14.0]);
}

#[test]
fn an_error_names_the_operator() {
    let (a, b, wrong) = (vector(&[1.0; 2]), vector(&[1.0; 2]), vector(&[1.0; 3]));
    let line = line!();
    #[rustfmt::skip]
    let error = expr!(
        a * b
            + a
            - (b
                * wrong)
    )
    .unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::BroadcastMismatch { .. }));
    let location = error.location().unwrap();
    assert_eq!((location.file(), location.line(), location.column()), (file!(), line + 6, 17));

    let error = expr!(a + b.pow(2) / 3 + b.matmul(&wrong)).unwrap_err();
    assert_eq!((error.op(), error.location().unwrap().column()), ("matmul", 44));
    let error = expr!(!a).unwrap_err();
    assert_eq!((error.op(), error.location().unwrap().column()), ("bitwise_not", 23));
    let error = expr!((1.5 > a) == wrong).unwrap_err();
    assert_eq!(error.location().unwrap().column(), 33);
}
