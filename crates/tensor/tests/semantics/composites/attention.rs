//! Tests that compare attention, which runs in few launches, with separate ops.

use warpline::autograd::{GradOptions, GradcheckOptions, grad, gradcheck, gradgradcheck};
use warpline::functional::{AttentionOptions, scaled_dot_product_attention};
use warpline::{
    DType, Device, IsCloseOptions, Result, SyncPolicy, Tensor, manual_seed, ones, rand, randn,
    tensor, zeros,
};

use crate::common;

fn options(is_causal: bool) -> AttentionOptions<'static> {
    AttentionOptions::new().is_causal(is_causal)
}

/// Splits the result of one linear layer into views: queries, keys and values, each with shape
/// `[batch, heads, time, width]`.
fn heads_of(packed: &Tensor, heads: isize) -> Result<[Tensor; 3]> {
    let [b, l, width] = [0, 1, 2].map(|d| packed.size()[d] as isize);
    let own = width / 3;
    let apart = |i| {
        packed.narrow(2, i * own, own as usize)?.view([b, l, heads, own / heads])?.transpose(1, 2)
    };
    Ok([apart(0)?, apart(1)?, apart(2)?])
}

/// Computes attention with a boolean mask. For operands in `f64`, separate ops compute it. The mask is
/// causal if `is_causal` is true, otherwise it hides nothing.
fn by_mask([q, k, v]: &[Tensor; 3], is_causal: bool) -> Result<Tensor> {
    let sizes = [q.size()[q.dim() - 2], k.size()[k.dim() - 2]];
    let mask = ones(sizes, (DType::Bool, q.device()))?;
    let mask = if is_causal { mask.tril(0)? } else { mask };
    let options = AttentionOptions::new().attn_mask(&mask);
    scaled_dot_product_attention(q, k, v, options)
}

fn close(actual: &Tensor, expected: &Tensor, tolerance: f64, what: &str) -> Result<()> {
    let (actual, expected) = (actual.to((DType::F64, "cpu"))?, expected.to((DType::F64, "cpu"))?);
    let close =
        actual.allclose(&expected, IsCloseOptions::new().rtol(tolerance).atol(tolerance))?;
    assert!(close, "{what}: {actual} instead of {expected}");
    Ok(())
}

/// Compares results and gradients of packed queries, keys and values of each dtype with separate
/// ops in `f64`.
fn packed_views(device: Device) -> Result<()> {
    manual_seed(7);
    // Half-width floats in widths that are multiples of 8 use another kernel.
    for (batch, time, width, is_causal) in [
        (2, 5, 4, true),
        (2, 5, 4, false),
        (1, 70, 4, true),
        (3, 1, 4, true),
        (2, 5, 8, true),
        (2, 70, 72, false),
        (1, 70, 64, true),
        (3, 1, 8, true),
    ] {
        let values = randn([batch, time, 3 * 2 * width], (DType::F64, "cpu"))?;
        let grads = randn([batch, 2, time, width], (DType::F64, "cpu"))?;
        for (dtype, tolerance) in
            [(DType::F64, 1e-12), (DType::F32, 1e-5), (DType::F16, 8e-3), (DType::BF16, 6e-2)]
        {
            let what = format!("{dtype}, {batch} of {time} by {width}, causal {is_causal}");
            let packed = values.detach().to((dtype, device))?.requires_grad_(true)?;
            let heads = heads_of(&packed, 2)?;
            let out =
                scaled_dot_product_attention(&heads[0], &heads[1], &heads[2], options(is_causal))?;
            assert_eq!((out.dtype(), out.size()), (dtype, &[batch, 2, time, width][..]));
            let grad = grads.to((dtype, device))?;
            // Give the gradient the layout that it has if a following op puts the heads side by
            // side again.
            let turned = grad.transpose(1, 2)?.contiguous()?.transpose(1, 2)?;
            out.backward_with(&turned)?;
            // Compute the expected result from the rounded input, so that the rounding of the input
            // is no difference.
            let exact = packed.detach().to((DType::F64, "cpu"))?.requires_grad_(true)?;
            let expected = by_mask(&heads_of(&exact, 2)?, is_causal)?;
            expected.backward_with(&grad.to((DType::F64, "cpu"))?)?;
            close(&out, &expected, tolerance, &what)?;
            let (actual, expected) = (packed.grad().expect("one"), exact.grad().expect("one"));
            close(&actual, &expected, tolerance, &format!("gradient of {what}"))?;
        }
    }
    Ok(())
}

#[test]
fn views_of_packed_heads_agree_with_separate_ops() {
    common::worlds(1, |world| world.places().into_iter().try_for_each(packed_views));
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_views_of_packed_heads_agree_with_separate_ops() {
    common::gpu(1, SyncPolicy::Auto, |_| packed_views(Device::cuda(0)));
}

#[test]
fn gradients_are_those_of_differences() {
    common::worlds(1, |world| {
        for place in world.places() {
            manual_seed(3);
            // More keys than queries, fewer keys, and one head of keys for two of queries.
            for [q, k] in [[[2, 3, 4], [2, 5, 4]], [[2, 4, 3], [2, 2, 3]], [[2, 3, 2], [1, 3, 2]]] {
                let leaf =
                    |sizes: [usize; 3]| rand(sizes, (DType::F64, place))?.requires_grad_(true);
                let inputs = [leaf(q)?, leaf(k)?, leaf([k[0], k[1], 2])?];
                for (is_causal, scale) in [(true, None), (false, Some(-0.7))] {
                    let enable_gqa = q[0] != k[0];
                    let options = AttentionOptions::new()
                        .is_causal(is_causal)
                        .scale(scale)
                        .enable_gqa(enable_gqa);
                    let f = |x: &[Tensor]| {
                        Ok(vec![scaled_dot_product_attention(&x[0], &x[1], &x[2], options)?])
                    };
                    gradcheck(f, &inputs, GradcheckOptions::default())?;
                    gradgradcheck(f, &inputs, GradcheckOptions::default())?;
                }
            }
        }
        Ok(())
    });
}

#[test]
fn only_operands_that_require_a_gradient_get_one() {
    common::worlds(1, |world| {
        for place in world.places() {
            manual_seed(4);
            let cases = (0..3).flat_map(|i| [(i, DType::F32, 1e-5), (i, DType::BF16, 6e-2)]);
            for (wanting, dtype, tolerance) in cases {
                let make = |_| randn([2, 6, 8], (dtype, place));
                let all = [make(0)?, make(1)?, make(2)?];
                let one = all[wanting].detach().requires_grad_(true)?;
                let mut given = all.clone();
                given[wanting] = one.clone();
                let [q, k, v] = &given;
                scaled_dot_product_attention(q, k, v, options(true))?
                    .square()?
                    .sum(())?
                    .backward()?;
                let other = all[wanting].detach().requires_grad_(true)?;
                given[wanting] = other.clone();
                by_mask(&given, true)?.square()?.sum(())?.backward()?;
                let (actual, expected) = (one.grad().expect("one"), other.grad().expect("one"));
                close(&actual, &expected, tolerance, &format!("{dtype}, operand {wanting}"))?;
                assert!(given.iter().enumerate().all(|(i, t)| i == wanting || t.grad().is_none()));
            }
        }
        Ok(())
    });
}

/// Compares second gradients of half-width floats with those of `f64`.
#[test]
fn gradients_of_gradients_of_halves_agree_with_separate_ops() {
    common::worlds(1, |world| {
        for place in world.places() {
            manual_seed(6);
            let all = [(); 3].map(|()| randn([2, 6, 8], (DType::F16, place)));
            let second = |dtype, is_causal| -> Result<Vec<Tensor>> {
                let leaf = |t: &Result<Tensor>| {
                    t.as_ref().expect("one").detach().to(dtype)?.requires_grad_(true)
                };
                let x = [leaf(&all[0])?, leaf(&all[1])?, leaf(&all[2])?];
                let out = scaled_dot_product_attention(&x[0], &x[1], &x[2], options(is_causal))?;
                let inputs = [&x[0], &x[1], &x[2]];
                let again = GradOptions::new().create_graph(true);
                let first = grad(&[&out.square()?.sum(())?], &inputs, again)?;
                let size = |t: &Option<Tensor>| t.as_ref().expect("one").square()?.sum(());
                let sizes = size(&first[0])?.add(&size(&first[1])?)?.add(&size(&first[2])?)?;
                let grads = grad(&[&sizes], &inputs, ())?;
                Ok(grads.into_iter().map(|t| t.expect("one")).collect())
            };
            for is_causal in [false, true] {
                let (actual, expected) =
                    (second(DType::F16, is_causal)?, second(DType::F64, is_causal)?);
                for (i, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
                    let most = expected.abs()?.amax(())?.item::<f64>()?;
                    let (actual, expected) =
                        (actual.to(DType::F64)?.div(most)?, expected.div(most)?);
                    close(&actual, &expected, 1e-2, &format!("operand {i}, causal {is_causal}"))?;
                }
            }
        }
        Ok(())
    });
}

#[test]
fn attention_without_keys_queries_or_width() {
    common::worlds(1, |world| {
        for place in world.places() {
            for dtype in [DType::F32, DType::BF16] {
                let of = |sizes: [usize; 3]| zeros(sizes, (dtype, place));
                let attend = |q: &Tensor, k: &Tensor, v: &Tensor| {
                    let out = scaled_dot_product_attention(q, k, v, options(true))?;
                    out.to(DType::F32)?.to_vec::<f32>()
                };
                // No keys, no queries, and a width of 0, where all keys have equal weight.
                let q = of([1, 2, 3])?;
                assert_eq!(attend(&q, &of([1, 0, 3])?, &of([1, 0, 2])?)?, [0.0; 4]);
                assert_eq!(attend(&of([1, 0, 3])?, &q, &q)?, [0.0; 0]);
                let eight = of([1, 2, 8])?;
                let none = of([1, 0, 8])?;
                assert_eq!(attend(&eight, &none, &none)?, [0.0; 16]);
                assert_eq!(attend(&none, &eight, &eight)?, [0.0; 0]);
                let v = of([1, 2, 1])?.add(1.0)?;
                assert_eq!(attend(&of([1, 2, 0])?, &of([1, 2, 0])?, &v)?, [1.0; 2]);
            }
        }
        Ok(())
    });
}

/// Tests rows that start inside a vector, rows whose elements are not adjacent, and expanded rows.
#[test]
fn halves_may_have_any_layout() {
    common::worlds(1, |world| {
        for place in world.places() {
            manual_seed(8);
            let shifted = || randn([97], (DType::F16, place))?.narrow(0, 1, 96)?.view([2, 6, 8]);
            let apart = randn([2, 6, 16], (DType::F16, place))?.slice(2, .., 2)?;
            let turned = randn([2, 8, 6], (DType::F16, place))?.transpose(1, 2)?;
            let same = randn([1, 1, 8], (DType::F16, place))?.expand([2, 6, 8])?;
            for all in [
                [shifted()?, apart, turned.clone()],
                [same.clone(), shifted()?, same],
                [turned, shifted()?, shifted()?],
            ] {
                let all = all.map(|t| t.detach().requires_grad_(true).expect("floats"));
                let [q, k, v] = &all;
                let out = scaled_dot_product_attention(q, k, v, options(true))?;
                out.sum(())?.backward()?;
                let of = |t: &Tensor| t.detach().to((DType::F64, "cpu"))?.requires_grad_(true);
                let exact = [of(q)?, of(k)?, of(v)?];
                let expected = by_mask(&exact, true)?;
                expected.sum(())?.backward()?;
                close(&out, &expected, 8e-3, "result")?;
                for (actual, expected) in all.iter().zip(&exact) {
                    let (actual, expected) = (actual.grad(), expected.grad());
                    close(&actual.expect("one"), &expected.expect("one"), 8e-3, "gradient")?;
                }
            }
        }
        Ok(())
    });
}

#[test]
fn broadcast_batches_agree_with_separate_ops() {
    common::cpu(|_| {
        manual_seed(5);
        let of = |sizes: &[usize]| randn(sizes, DType::F64);
        let all = [of(&[3, 2, 5, 4])?, of(&[2, 5, 4])?, of(&[1, 2, 5, 4])?];
        let [q, k, v] = &all;
        let out = scaled_dot_product_attention(q, k, v, options(true))?;
        close(&out, &by_mask(&all, true)?, 1e-12, "broadcast")
    });
}

/// On a GPU, a separate kernel computes attention for few queries of half-width floats without
/// gradients. Compares it with separate ops in `f64`, for every combination of masks and lengths, and
/// without a mask also for causal attention.
fn few_queries(device: Device) -> Result<()> {
    manual_seed(9);
    for ([batch, heads, own, queries, keys, width], dtype, tolerance) in [
        ([1, 32, 8, 1, 130, 64], DType::BF16, 6e-2),
        ([2, 4, 4, 3, 40, 8], DType::F16, 8e-3),
        ([3, 6, 2, 2, 17, 136], DType::F16, 8e-3),
        ([2, 4, 2, 1, 9, 4], DType::F32, 1e-5),
    ] {
        let of = |rows: usize, heads: usize| randn([batch, heads, rows, width], (dtype, device));
        let (q, k, v) = (of(queries, heads)?, of(keys, own)?, of(keys, own)?);
        let padded = rand([batch, 1, 1, keys], (DType::F32, device))?.gt(0.3)?;
        let added = randn([queries, keys], (dtype, device))?;
        let lengths: Vec<i64> =
            (0..batch as i64).map(|b| [keys as i64 - 3, 0, 99][b as usize]).collect();
        let lengths = tensor(lengths, device)?;
        let exact = |t: &Tensor| t.to((DType::F64, "cpu"));
        let repeat = |t: &Tensor| exact(t)?.repeat_interleave(heads / own, 1);
        for mask in [None, Some(&padded), Some(&added)] {
            for key_lengths in [None, Some(&lengths)] {
                for is_causal in [false, true] {
                    if is_causal && mask.is_some() {
                        continue;
                    }
                    let options = AttentionOptions::new()
                        .attn_mask(mask)
                        .key_lengths(key_lengths)
                        .is_causal(is_causal)
                        .enable_gqa(true);
                    let out = scaled_dot_product_attention(&q, &k, &v, options)?;
                    // Compute the mask on the host, from its definition.
                    let mut values = Vec::new();
                    let bools = padded.cpu()?.to_vec::<bool>()?;
                    let numbers = exact(&added)?.to_vec::<f64>()?;
                    let counts = lengths.cpu()?.to_vec::<i64>()?;
                    for (b, query, key) in (0..batch).flat_map(|b| {
                        (0..queries)
                            .flat_map(move |query| (0..keys).map(move |key| (b, query, key)))
                    }) {
                        let end = key_lengths.map_or(keys as i64, |_| counts[b].min(keys as i64));
                        let last = if key_lengths.is_some() { end - queries as i64 } else { 0 };
                        let hidden = key as i64 >= end
                            || is_causal && key as i64 > last + query as i64
                            || mask.is_some_and(|m| m.dtype() == DType::Bool)
                                && !bools[b * keys + key];
                        let number = match mask {
                            Some(m) if m.dtype() != DType::Bool => numbers[query * keys + key],
                            _ => 0.0,
                        };
                        values.push(if hidden { f64::NEG_INFINITY } else { number });
                    }
                    let full = tensor(values, ())?.view([batch, 1, queries, keys])?;
                    let options = AttentionOptions::new().attn_mask(&full);
                    let expected = scaled_dot_product_attention(
                        &exact(&q)?,
                        &repeat(&k)?,
                        &repeat(&v)?,
                        options,
                    )?;
                    let what = format!(
                        "{dtype}, {queries} of {keys}, causal {is_causal}, {mask:?}, {key_lengths:?}"
                    );
                    assert_eq!(out.dtype(), dtype);
                    close(&out, &expected, tolerance, &what)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn few_queries_agree_with_separate_ops_under_masks_and_lengths() {
    common::worlds(1, |world| world.places().into_iter().try_for_each(few_queries));
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_few_queries_agree_with_separate_ops_under_masks_and_lengths() {
    common::gpu(1, SyncPolicy::Auto, |_| few_queries(Device::cuda(0)));
}

/// A mask with more or larger dimensions than the scores broadcasts the scores, also of half-width
/// floats.
#[test]
fn a_mask_may_broadcast_the_scores() {
    common::worlds(1, |world| {
        for place in world.places() {
            for dtype in [DType::F32, DType::BF16] {
                let of = |sizes: &[usize]| ones(sizes, (dtype, place));
                let mask = ones([2, 3, 4, 5], (DType::Bool, place))?;
                let options = AttentionOptions::new().attn_mask(&mask);
                for (batch, expected) in [(&[3][..], [2, 3, 4, 8]), (&[1, 3], [2, 3, 4, 8])] {
                    let sized = |rows: usize| of(&[batch, &[rows, 8]].concat());
                    let (q, k) = (sized(4)?, sized(5)?);
                    let out = scaled_dot_product_attention(&q, &k, &k, options)?;
                    assert_eq!(out.size(), expected);
                    close(&out, &ones(expected, dtype)?, 1e-2, "equal values")?;
                }
            }
        }
        Ok(())
    });
}
