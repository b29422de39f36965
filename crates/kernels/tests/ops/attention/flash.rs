//! Tests of fused attention that run on every target.

use warpline_kernels::attention::*;
use warpline_runtime::DType::{BF16, F16, F32};
use warpline_runtime::testing::{Tensor, assert_close, on_every_target, on_gpu};
use warpline_runtime::{DType, ErrorKind, Layout, ResultExt as _, Target};

const SCALE: f64 = 0.25;

/// Outer and inner batches, queries, keys, width. Some sizes are below and some above a block, and
/// most are not multiples of a tile. They cover both kernel widths, and more and fewer queries than
/// keys.
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

/// Computes the results for `inner` heads of queries. Each `group` consecutive heads attend to the same keys. `added`
/// returns the value that a mask adds to a score, or `None` if the query does not attend to the key.
fn expected(
    [outer, inner, queries, keys, width]: [usize; 5],
    group: usize,
    [q, k, v, grad]: [&[f64]; 4],
    added: impl Fn([usize; 4]) -> Option<f64>,
) -> Expected {
    let batches = outer * inner;
    let (mut out, mut lse) = (vec![0.0; batches * queries * width], Vec::new());
    let mut grads = [batches * queries, batches / group * keys, batches / group * keys]
        .map(|rows| vec![0.0; rows * width]);
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    for batch in 0..batches {
        let row = |batch: usize, rows: usize, i: usize| {
            (batch * rows + i) * width..(batch * rows + i + 1) * width
        };
        let (row_of_query, row_of_key) =
            (|i| row(batch, queries, i), |j| row(batch / group, keys, j));
        for i in 0..queries {
            let own = &q[row_of_query(i)];
            let weight = |j| {
                let added = added([batch / inner, batch % inner, i, j]);
                added.map_or(0.0, |added| (dot(own, &k[row_of_key(j)]) * SCALE + added).exp())
            };
            let e: Vec<f64> = (0..keys).map(weight).collect();
            let sum: f64 = e.iter().sum();
            lse.push(if sum == 0.0 { f64::INFINITY } else { sum.log2() });
            let sum = if sum == 0.0 { 1.0 } else { sum };
            let slope = &grad[row_of_query(i)];
            let of_weights: Vec<f64> = (0..keys).map(|j| dot(slope, &v[row_of_key(j)])).collect();
            let common: f64 = (0..keys).map(|j| e[j] / sum * of_weights[j]).sum();
            for j in 0..keys {
                let weight = e[j] / sum;
                let of_score = weight * (of_weights[j] - common) * SCALE;
                for d in 0..width {
                    let (at, key) = (row_of_query(i).start + d, row_of_key(j).start + d);
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

/// A mask of tests. All heads share it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum MaskKind {
    None,
    Causal,
    /// The same keys for all queries of a batch, except one query that attends to no key.
    Bools,
    /// Numbers that are added to the scores.
    Added,
}

impl MaskKind {
    /// Returns the value that the mask adds to a score, `None` where a query does not attend to a key.
    fn added(self, [outer, _, query, key]: [usize; 4]) -> Option<f64> {
        match self {
            Self::None => Some(0.0),
            Self::Causal => (key <= query).then_some(0.0),
            Self::Bools => (query != 2 && !(key + outer + 2).is_multiple_of(3)).then_some(0.0),
            Self::Added => Some(((query * 5 + key) % 9) as f64 / 8.0 - 0.5),
        }
    }

    /// Makes the mask of `[outer, inner, queries, keys]`. `None` if the mask needs no tensor.
    fn view(self, target: Target<'_>, dtype: DType, sizes: [usize; 4]) -> Option<Tensor> {
        let [outer, inner, queries, keys] = sizes;
        let dtype = match self {
            Self::None | Self::Causal => return None,
            Self::Bools => DType::Bool,
            Self::Added => dtype,
        };
        let mut values = Vec::new();
        for o in 0..outer {
            for (query, key) in (0..queries).flat_map(|i| (0..keys).map(move |j| (i, j))) {
                let added = self.added([o, 0, query, key]);
                values.push(if dtype == DType::Bool { added.is_some().into() } else { added? });
            }
        }
        let heads = Tensor::new(target, dtype, &[outer, 1, queries, keys], &values);
        Some(heads.with(|l| l.expand(&[outer, inner, queries, keys])))
    }
}

fn agrees(target: Target<'_>) {
    for dtype in [F16, BF16] {
        for sizes in SIZES {
            for (mask, layout) in [
                (MaskKind::None, OperandLayout::Contiguous),
                (MaskKind::Causal, OperandLayout::Contiguous),
                (MaskKind::Causal, OperandLayout::Packed),
                (MaskKind::Bools, OperandLayout::Contiguous),
                (MaskKind::Added, OperandLayout::Packed),
            ] {
                // All divisors of the heads, among them one head of keys for all heads of queries.
                for group in (1..=sizes[1]).filter(|group| sizes[1].is_multiple_of(*group)) {
                    agrees_for(target, dtype, (sizes, group), mask, layout);
                }
            }
        }
    }
}

fn agrees_for(
    target: Target<'_>,
    dtype: DType,
    (sizes, group): ([usize; 5], usize),
    mask: MaskKind,
    layout: OperandLayout,
) {
    let [outer, inner, queries, keys, width] = sizes;
    let context = format!("{dtype} {sizes:?} in groups of {group}, {mask:?}, {layout:?}");
    let of = |(heads, rows)| [outer, heads, rows, width];
    let (queries, keys) = ((inner, queries), (inner / group, keys));
    let numbers = [queries, keys, keys, queries].map(of).map(|s| s.iter().product::<usize>());
    let numbers: Vec<Vec<f64>> =
        numbers.iter().zip(1..).map(|(&n, seed)| values(n, seed)).collect();
    let input = |i: usize, rows| made(target, dtype, of(rows), layout, Some(&numbers[i]));
    let [q, k, v, grad] = [input(0, queries), input(1, keys), input(2, keys), input(3, queries)];
    let result = |rows| made(target, dtype, of(rows), layout, None);
    let [out, dq, dk, dv] = [queries, queries, keys, keys].map(result);
    let [lse, delta] = [(); 2].map(|()| Tensor::garbage(target, F32, &[outer, inner, queries.1]));
    let operands = [q.view(), k.view(), v.view()];
    let score_options = ScoreOptions { scale: SCALE, is_causal: mask == MaskKind::Causal };
    let made = mask.view(target, dtype, [outer, inner, queries.1, keys.1]);
    let of_mask = made.as_ref().map(Tensor::view);
    attention(target, operands, of_mask, score_options, out.view(), lse.view()).unwrap();
    let [a, b, c, d] = [0, 1, 2, 3].map(|i| &numbers[i][..]);
    let expected = expected(sizes, group, [a, b, c, d], |at| mask.added(at));
    assert_close(dtype, &out.floats(target), &expected.out, &format!("result, {context}"));
    for (i, (a, b)) in lse.floats(target).iter().zip(&expected.lse).enumerate() {
        assert!(a == b || (a - b).abs() <= 1e-4, "logarithm {i} is {a}, not {b}: {context}");
    }
    let grads = [&dq, &dk, &dv].map(Tensor::view);
    let sums = [lse.view(), delta.view()];
    let of_out = [out.view(), grad.view()];
    attention_backward(target, operands, of_mask, score_options, of_out, sums, grads).unwrap();
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

/// Tests scores that are far apart, and infinite scores.
pub(super) fn extremes(target: Target<'_>) {
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
    let score_options = ScoreOptions { scale: 1.0, is_causal: false };
    attention(target, [q.view(), k.view(), v.view()], None, score_options, out.view(), lse.view())
        .unwrap();
    let mean = ((50..100).sum::<usize>() - 70) as f64 / 49.0;
    for row in out.floats(target).chunks(8) {
        assert!((row[0] - mean).abs() < 0.5 && row[1..].iter().all(|&x| x == 1.0), "{row:?}");
    }
}

pub(super) fn rejected_operands(target: Target<'_>) {
    let of = |dtype, sizes: &[usize]| Tensor::garbage(target, dtype, sizes);
    let lse = of(F32, &[2, 3]);
    let score_options = ScoreOptions { scale: 1.0, is_causal: false };
    let run = |[q, k, v]: [&Tensor; 3], out: &Tensor| {
        attention(target, [q, k, v].map(|t| t.view()), None, score_options, out.view(), lse.view())
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
