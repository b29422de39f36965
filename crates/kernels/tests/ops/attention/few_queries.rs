//! Tests attention with few queries on every target.

use warpline_kernels::attention::*;
use warpline_runtime::DType::{BF16, Bool, F16, I64};
use warpline_runtime::testing::{Tensor, on_every_target, on_gpu, stored};
use warpline_runtime::{DType, ErrorKind, ResultExt as _, Target};

const SCALE: f64 = 0.25;

/// Outer batches, heads of keys, heads of queries per head of keys, queries, keys, width.
const SIZES: [[usize; 6]; 9] = [
    [1, 1, 1, 1, 1, 8],
    [2, 3, 2, 3, 7, 16],
    [1, 8, 4, 1, 1024, 64],
    [1, 2, 1, 16, 65, 64],
    [2, 1, 5, 7, 300, 72],
    [1, 1, 8, 8, 2000, 128],
    [3, 1, 1, 2, 33, 256],
    [1, 2, 3, 1, 999, 200],
    [1, 64, 2, 2, 190, 128],
];

/// Small values around zero that every dtype represents exactly.
fn values(n: usize, seed: usize) -> Vec<f64> {
    (0..n).map(|i| ((i * 37 + seed * 11 + i / 97) % 61) as f64 / 32.0 - 0.9375).collect()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum MaskKind {
    None,
    /// One row for all queries, as for padded keys.
    Bools,
    Added,
}

/// The result in `f64`. `attends` returns the value that the mask adds to a score, `None` if the
/// query does not attend to the key.
fn expected(
    [outer, heads, group, queries, keys, width]: [usize; 6],
    [q, k, v]: [&[f64]; 3],
    attends: impl Fn([usize; 4]) -> Option<f64>,
) -> Vec<f64> {
    let mut out = Vec::new();
    for o in 0..outer {
        for h in 0..heads * group {
            let at_key = |key: usize| {
                let at = ((o * heads + h / group) * keys + key) * width;
                at..at + width
            };
            for query in 0..queries {
                let at = ((o * heads * group + h) * queries + query) * width;
                let own = &q[at..at + width];
                let weights: Vec<f64> = (0..keys)
                    .map(|key| {
                        let dot: f64 = own.iter().zip(&k[at_key(key)]).map(|(a, b)| a * b).sum();
                        attends([o, h, query, key]).map_or(0.0, |added| (dot * SCALE + added).exp())
                    })
                    .collect();
                let total: f64 = weights.iter().sum();
                for column in 0..width {
                    let sum: f64 =
                        (0..keys).map(|key| weights[key] * v[at_key(key).start + column]).sum();
                    out.push(if total > 0.0 { sum / total } else { 0.0 });
                }
            }
        }
    }
    out
}

fn agrees_with_definition(target: Target<'_>) {
    for (number, sizes) in SIZES.into_iter().enumerate() {
        let [outer, heads, group, queries, keys, width] = sizes;
        let dtype = [F16, BF16][number % 2];
        let q = values(outer * heads * group * queries * width, 1);
        let [k, v] = [2, 3].map(|seed| values(outer * heads * keys * width, seed));
        let of_q = Tensor::new(target, dtype, &[outer, queries, heads * group, width], &{
            // The heads lie side by side.
            let mut all = vec![0.0; q.len()];
            for (i, &value) in q.iter().enumerate() {
                let [w, r, h] =
                    [i % width, i / width % queries, i / (width * queries) % (heads * group)];
                let o = i / (width * queries * heads * group);
                all[((o * queries + r) * heads * group + h) * width + w] = value;
            }
            all
        });
        let of_q = of_q.with(|l| l.transpose(1, 2));
        let [of_k, of_v] =
            [&k, &v].map(|of| Tensor::new(target, dtype, &[outer, heads, keys, width], of));
        let full = [outer, heads * group, queries, keys];
        for kind in [MaskKind::None, MaskKind::Bools, MaskKind::Added] {
            for causal in [false, true] {
                for limited in [false, true] {
                    let visible =
                        |key: usize| !(key + 2).is_multiple_of(3) || key.is_multiple_of(7);
                    let added =
                        |query: usize, key: usize| ((query * 5 + key) % 9) as f64 / 8.0 - 0.5;
                    let mask = match kind {
                        MaskKind::None => None,
                        MaskKind::Bools => {
                            let bools: Vec<f64> =
                                (0..keys).map(|key| visible(key).into()).collect();
                            let row = Tensor::new(target, Bool, &[1, 1, 1, keys], &bools);
                            Some(row.with(|l| l.expand(&full)))
                        }
                        MaskKind::Added => {
                            let all: Vec<f64> =
                                (0..queries * keys).map(|i| added(i / keys, i % keys)).collect();
                            let rows = Tensor::new(target, dtype, &[1, 1, queries, keys], &all);
                            Some(rows.with(|l| l.expand(&full)))
                        }
                    };
                    // Lengths below the number of keys, of 0, and above the number of keys.
                    let lengths: Vec<f64> =
                        (0..outer).map(|o| [keys / 2 + 1, 0, keys + 5][o % 3] as f64).collect();
                    let of_lengths = Tensor::new(target, I64, &[outer], &lengths);
                    let attends = |[o, _, query, key]: [usize; 4]| {
                        let end = if limited { (lengths[o] as usize).min(keys) } else { keys };
                        let last = if limited { end as i64 - queries as i64 } else { 0 };
                        let hidden = key >= end
                            || causal && key as i64 > last + query as i64
                            || kind == MaskKind::Bools && !visible(key);
                        let added = if kind == MaskKind::Added { added(query, key) } else { 0.0 };
                        (!hidden).then_some(added)
                    };
                    let out =
                        Tensor::garbage(target, dtype, &[outer, heads * group, queries, width]);
                    let score_options = ScoreOptions { scale: SCALE, is_causal: causal };
                    few_queries(
                        target,
                        [of_q.view(), of_k.view(), of_v.view()],
                        score_options,
                        mask.as_ref().map(|mask| mask.view()),
                        limited.then(|| of_lengths.view()),
                        out.view(),
                    )
                    .unwrap();
                    let expected = expected(sizes, [&q, &k, &v], attends);
                    let expected: Vec<f64> = expected.iter().map(|&v| stored(dtype, v)).collect();
                    let found = out.floats(target);
                    let context =
                        format!("{dtype} {sizes:?} {kind:?} causal {causal} limited {limited}");
                    let epsilon = if dtype == BF16 { 0.02 } else { 0.004 };
                    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                        assert!(
                            (found - expected).abs() <= epsilon,
                            "{context}: {i}: {found} {expected}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn attention_of_few_queries_agrees_with_its_definition() {
    on_every_target(agrees_with_definition);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_attention_of_few_queries_agrees_with_its_definition() {
    on_gpu(agrees_with_definition);
}

/// Sums do not depend on the order in which blocks finish.
fn repeats(target: Target<'_>) {
    let [q, k, v] = [[1, 8, 1, 64], [1, 2, 4000, 64], [1, 2, 4000, 64]]
        .map(|sizes| Tensor::new(target, BF16, &sizes, &values(sizes.iter().product(), sizes[2])));
    let run = || {
        let out = Tensor::garbage(target, BF16, &[1, 8, 1, 64]);
        let score_options = ScoreOptions { scale: SCALE, is_causal: false };
        let operands = [q.view(), k.view(), v.view()];
        few_queries(target, operands, score_options, None, None, out.view()).unwrap();
        out.floats(target)
    };
    let first = run();
    (0..20).for_each(|_| assert_eq!(run(), first));
}

#[test]
fn attention_of_few_queries_is_the_same_in_each_run() {
    on_every_target(repeats);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_attention_of_few_queries_is_the_same_in_each_run() {
    on_gpu(repeats);
}

#[test]
fn operands_of_other_sizes_are_refused() {
    on_every_target(|target| {
        let of = |sizes: &[usize]| Tensor::garbage(target, F16, sizes);
        let score_options = ScoreOptions { scale: SCALE, is_causal: false };
        let refused = |q: &Tensor, k: &Tensor, mask: Option<&Tensor>, lengths: Option<&Tensor>| {
            let out = Tensor::garbage(target, F16, q.view().sizes());
            let operands = [q.view(), k.view(), k.view()];
            let (mask, lengths) = (mask.map(Tensor::view), lengths.map(Tensor::view));
            let refused = few_queries(target, operands, score_options, mask, lengths, out.view());
            assert!(matches!(refused.kind(), Some(ErrorKind::ShapeMismatch { .. })), "{refused:?}");
        };
        let (q, k) = (of(&[1, 4, 1, 64]), of(&[1, 2, 9, 64]));
        refused(&of(&[1, 3, 1, 64]), &k, None, None);
        refused(&of(&[1, 2, 65, 64]), &k, None, None);
        refused(&of(&[1, 2, 1, 264]), &of(&[1, 2, 9, 264]), None, None);
        refused(&q, &of(&[1, 0, 9, 64]), None, None);
        refused(&q, &k, Some(&of(&[1, 4, 1, 8])), None);
        refused(&q, &k, None, Some(&Tensor::garbage(target, I64, &[2])));
        assert!(has_few_queries(target, F16, [4, 16, 256]));
        assert!(!has_few_queries(target, F16, [4, 17, 64]));
        assert!(!has_few_queries(target, DType::F32, [4, 1, 64]));
    });
}
