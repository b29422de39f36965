//! Tests of fused attention that run on every target.

use super::*;
use warpline_runtime::DType::{BF16, F16, F32};
use warpline_runtime::testing::{Tensor, assert_close, on_every_target, on_gpu};
use warpline_runtime::{ErrorKind, Layout, ResultExt as _};

const SCALE: f64 = 0.25;

/// Outer and inner batches, queries, keys, width. Sizes are below and above a block, and not
/// multiples of a tile. They cover both kernel widths, and more and fewer queries than keys.
const SIZES: [[usize; 5]; 8] = [
    [1, 1, 1, 1, 8],
    [2, 3, 5, 7, 16],
    [1, 2, 64, 64, 64],
    [1, 1, 65, 130, 64],
    [2, 1, 130, 65, 72],
    [1, 1, 3, 200, 128],
    [1, 2, 100, 97, 120],
    [3, 2, 33, 64, 32],
];

/// Small values around zero that every dtype represents exactly.
fn values(n: usize, seed: usize) -> Vec<f64> {
    (0..n).map(|i| ((i * 37 + seed * 11 + i / 97) % 61) as f64 / 32.0 - 0.9375).collect()
}

/// Layout of operands: contiguous, or heads side by side in rows that also hold another operand.
#[derive(Clone, Copy, Debug)]
enum OperandLayout {
    Contiguous,
    Packed,
}

/// Creates a tensor of `[outer, inner, rows, width]`.
fn made(
    target: Target<'_>,
    dtype: DType,
    sizes: [usize; 4],
    layout: OperandLayout,
    values: Option<&[f64]>,
) -> Tensor {
    let [outer, inner, rows, width] = sizes;
    let n = sizes.iter().product::<usize>();
    match layout {
        OperandLayout::Contiguous => match values {
            Some(values) => Tensor::new(target, dtype, &sizes, values),
            None => Tensor::garbage(target, dtype, &sizes),
        },
        OperandLayout::Packed => {
            let mut all = vec![f64::NAN; 2 * n];
            for (i, at) in (0..n).zip(0..) {
                let [w, r, h, o] =
                    [i % width, i / width % rows, i / (width * rows) % inner, at / (n / outer)];
                let to = (((o * rows + r) * 2 + 1) * inner + h) * width + w;
                all[to] = values.map_or(0.0, |values| values[i]);
            }
            let base = Tensor::new(target, dtype, &[outer, rows, 2 * inner, width], &all);
            base.with(|l: &Layout| l.narrow(2, inner as isize, inner)?.transpose(1, 2))
        }
    }
}

/// Expected results in `f64`.
struct Expected {
    out: Vec<f64>,
    lse: Vec<f64>,
    grads: [Vec<f64>; 3],
}

fn expected(
    [outer, inner, queries, keys, width]: [usize; 5],
    [q, k, v, grad]: [&[f64]; 4],
    is_causal: bool,
) -> Expected {
    let batches = outer * inner;
    let (mut out, mut lse) = (vec![0.0; batches * queries * width], Vec::new());
    let mut grads = [queries, keys, keys].map(|rows| vec![0.0; batches * rows * width]);
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    for batch in 0..batches {
        let row =
            |rows: usize, i: usize| (batch * rows + i) * width..(batch * rows + i + 1) * width;
        for i in 0..queries {
            let seen = if is_causal { keys.min(i + 1) } else { keys };
            let own = &q[row(queries, i)];
            let e: Vec<f64> =
                (0..seen).map(|j| (dot(own, &k[row(keys, j)]) * SCALE).exp()).collect();
            let sum: f64 = e.iter().sum();
            lse.push(sum.log2());
            let slope = &grad[row(queries, i)];
            let of_weights: Vec<f64> = (0..seen).map(|j| dot(slope, &v[row(keys, j)])).collect();
            let common: f64 = (0..seen).map(|j| e[j] / sum * of_weights[j]).sum();
            for j in 0..seen {
                let weight = e[j] / sum;
                let of_score = weight * (of_weights[j] - common) * SCALE;
                for d in 0..width {
                    let (at, key) = (row(queries, i).start + d, row(keys, j).start + d);
                    out[at] += weight * v[key];
                    grads[0][at] += of_score * k[key];
                    grads[1][key] += of_score * q[at];
                    grads[2][key] += weight * grad[at];
                }
            }
        }
    }
    Expected { out, lse, grads }
}

fn agrees(target: Target<'_>) {
    for dtype in [F16, BF16] {
        for sizes in SIZES {
            for (is_causal, layout) in [
                (false, OperandLayout::Contiguous),
                (true, OperandLayout::Contiguous),
                (true, OperandLayout::Packed),
            ] {
                agrees_for(target, dtype, sizes, is_causal, layout);
            }
        }
    }
}

fn agrees_for(
    target: Target<'_>,
    dtype: DType,
    sizes: [usize; 5],
    is_causal: bool,
    layout: OperandLayout,
) {
    let [outer, inner, queries, keys, width] = sizes;
    let context = format!("{dtype} {sizes:?}, causal {is_causal}, {layout:?}");
    let of = |rows| [outer, inner, rows, width];
    let numbers = [queries, keys, keys, queries].map(of).map(|s| s.iter().product::<usize>());
    let numbers: Vec<Vec<f64>> =
        numbers.iter().zip(1..).map(|(&n, seed)| values(n, seed)).collect();
    let input = |i: usize, rows| made(target, dtype, of(rows), layout, Some(&numbers[i]));
    let [q, k, v, grad] = [input(0, queries), input(1, keys), input(2, keys), input(3, queries)];
    let result = |rows| made(target, dtype, of(rows), layout, None);
    let [out, dq, dk, dv] = [queries, queries, keys, keys].map(result);
    let [lse, delta] = [(); 2].map(|()| Tensor::garbage(target, F32, &[outer, inner, queries]));
    let operands = [q.view(), k.view(), v.view()];
    let weighing = Weighing { scale: SCALE, is_causal };
    attention(target, operands, weighing, out.view(), lse.view()).unwrap();
    let [a, b, c, d] = [0, 1, 2, 3].map(|i| &numbers[i][..]);
    let expected = expected(sizes, [a, b, c, d], is_causal);
    assert_close(dtype, &out.floats(target), &expected.out, &format!("result, {context}"));
    for (i, (a, b)) in lse.floats(target).iter().zip(&expected.lse).enumerate() {
        assert!((a - b).abs() <= 1e-4, "logarithm {i} is {a}, not {b}: {context}");
    }
    let grads = [&dq, &dk, &dv].map(Tensor::view);
    let sums = [lse.view(), delta.view()];
    attention_backward(target, operands, weighing, [out.view(), grad.view()], sums, grads).unwrap();
    for (name, grad, expected) in [
        ("q", &dq, &expected.grads[0]),
        ("k", &dk, &expected.grads[1]),
        ("v", &dv, &expected.grads[2]),
    ] {
        assert_close(
            dtype,
            &grad.floats(target),
            expected,
            &format!("gradient of {name}, {context}"),
        );
    }
}

#[test]
fn fused_attention_agrees_with_its_formula() {
    on_every_target(agrees);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_fused_attention_agrees_with_its_formula() {
    on_gpu(agrees);
}

/// Scores that are far apart, and infinite ones.
pub(in crate::attention) fn extremes(target: Target<'_>) {
    let mut q = vec![0.0; 3 * 8];
    q[0] = 1000.0;
    q[8] = 1.0;
    q[16] = 1.0;
    let mut k = vec![0.0; 100 * 8];
    (0..100).for_each(|i| k[i * 8] = if i < 50 { -50.0 } else { 50.0 });
    k[70 * 8] = f64::NEG_INFINITY;
    let v: Vec<f64> = (0..800).map(|i| if i % 8 == 0 { (i / 8) as f64 } else { 1.0 }).collect();
    let [q, k, v] = [(3, &q), (100, &k), (100, &v)]
        .map(|(rows, values)| Tensor::new(target, BF16, &[1, rows, 8], values));
    let (out, lse) =
        (Tensor::garbage(target, BF16, &[1, 3, 8]), Tensor::garbage(target, F32, &[1, 3]));
    let weighing = Weighing { scale: 1.0, is_causal: false };
    attention(target, [q.view(), k.view(), v.view()], weighing, out.view(), lse.view()).unwrap();
    let mean = ((50..100).sum::<usize>() - 70) as f64 / 49.0;
    for row in out.floats(target).chunks(8) {
        assert!((row[0] - mean).abs() < 0.5 && row[1..].iter().all(|&x| x == 1.0), "{row:?}");
    }
}

pub(in crate::attention) fn rejected_operands(target: Target<'_>) {
    let of = |dtype, sizes: &[usize]| Tensor::garbage(target, dtype, sizes);
    let lse = of(F32, &[2, 3]);
    let weighing = Weighing { scale: 1.0, is_causal: false };
    let run = |[q, k, v]: [&Tensor; 3], out: &Tensor| {
        attention(target, [q, k, v].map(|t| t.view()), weighing, out.view(), lse.view())
    };
    let (q, k, out) = (of(F16, &[2, 3, 16]), of(F16, &[2, 5, 16]), of(F16, &[2, 3, 16]));
    run([&q, &k, &k], &out).unwrap();
    run([&q, &q, &q], &out).unwrap();
    let floats = of(F32, &[2, 3, 16]);
    assert!(matches!(run([&floats; 3], &floats).kind(), Some(ErrorKind::UnsupportedDType { .. })));
    assert!(matches!(run([&q, &floats, &k], &out).kind(), Some(ErrorKind::DTypeMismatch { .. })));
    let none = of(F16, &[2, 0, 16]);
    let odd = of(F16, &[2, 3, 12]);
    let wide = of(F16, &[2, 3, 136]);
    let turned = of(F16, &[2, 16, 3]).with(|l| l.transpose(1, 2));
    for (operands, result) in [
        ([&q, &k, &q], &out),
        ([&q, &none, &none], &out),
        ([&odd; 3], &odd),
        ([&wide; 3], &wide),
        ([&turned, &k, &k], &out),
    ] {
        let error = run(operands, result).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::ShapeMismatch { .. }), "{error}");
    }
    assert!(matches!(run([&q; 3], &q).kind(), Some(ErrorKind::OverlappingOperands)));
    assert!(has_attention(target, F16, 128));
    for (dtype, width) in [(F32, 64), (BF16, 0), (BF16, 12), (F16, 136)] {
        assert!(!has_attention(target, dtype, width), "{dtype} {width}");
    }
    assert!(!attention_takes(turned.view()));
}
