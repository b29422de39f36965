//! Attention.

use warpline::Tensor;
use warpline::functional::{AttentionOptions, scaled_dot_product_attention};

use super::entry::{Entry, floats};
use super::sample::{Arg, mask, x};

const NAME: &str = "functional::scaled_dot_product_attention";

fn attention(x: &[Tensor], options: &AttentionOptions<'_>) -> warpline::Result<Tensor> {
    scaled_dot_product_attention(&x[0], &x[1], &x[2], options)
}

pub(super) fn entries() -> Vec<Entry> {
    let three = |q: &[usize], k: &[usize], v: &[usize]| -> Vec<Arg> { vec![x(q), x(k), x(v)] };
    let plain = three(&[1, 2, 3, 2], &[1, 2, 4, 2], &[1, 2, 4, 3]);
    let with = |mask: Arg| {
        let mut args = plain.clone();
        args.push(mask);
        [args]
    };
    let grouped = three(&[1, 4, 3, 2], &[1, 2, 4, 2], &[1, 2, 4, 3]);
    let causal = three(&[1, 2, 3, 4], &[1, 1, 3, 4], &[1, 1, 3, 2]);
    let entries = vec![
        Entry::new(NAME, floats, [plain.clone(), three(&[2, 3], &[2, 3], &[2, 3])], |x| {
            attention(x, &AttentionOptions::default())
        }),
        Entry::new(NAME, floats, [three(&[1, 2, 3, 2], &[1, 2, 3, 2], &[1, 2, 3, 2])], |x| {
            attention(x, &AttentionOptions { is_causal: true, ..Default::default() })
        })
        .with("causal"),
        Entry::new(NAME, floats, with(x(&[3, 4])), |x| {
            let (attn_mask, scale) = (Some(&x[3]), Some(0.3));
            attention(x, &AttentionOptions { attn_mask, scale, ..Default::default() })
        })
        .with("mask of numbers"),
        Entry::new(NAME, floats, with(mask(&[3, 4])), |x| {
            attention(x, &AttentionOptions { attn_mask: Some(&x[3]), ..Default::default() })
        })
        .with("mask of bools"),
        Entry::new(NAME, floats, [grouped], |x| {
            attention(x, &AttentionOptions { enable_gqa: true, ..Default::default() })
        })
        .with("groups"),
        Entry::new(NAME, floats, [causal], |x| {
            let options =
                AttentionOptions { is_causal: true, enable_gqa: true, ..Default::default() };
            attention(x, &options)
        })
        .with("causal groups"),
    ];
    entries.into_iter().map(|entry| entry.slack(4.0)).collect()
}
