//! Entries for attention, and for the rotation of queries and keys.

use warpline::Tensor;
use warpline::functional::{
    AttentionOptions, RotaryEmbeddingOptions, rotary_embedding, scaled_dot_product_attention,
};

use super::entry::{Entry, KEEP, LOW, floats};
use super::sample::{Arg, mask, x};

const NAME: &str = "functional::scaled_dot_product_attention";

fn attention<'a>(
    x: &'a [Tensor],
    options: impl Into<AttentionOptions<'a>>,
) -> warpline::Result<Tensor> {
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
        Entry::new(NAME, LOW, floats, [plain.clone(), three(&[2, 3], &[2, 3], &[2, 3])], |x| {
            attention(x, ())
        }),
        Entry::new(NAME, LOW, floats, [three(&[1, 2, 3, 2], &[1, 2, 3, 2], &[1, 2, 3, 2])], |x| {
            attention(x, AttentionOptions::new().is_causal(true))
        })
        .with("causal"),
        Entry::new(NAME, LOW, floats, with(x(&[3, 4])), |x| {
            let (attn_mask, scale) = (Some(&x[3]), Some(0.3));
            attention(x, AttentionOptions::new().attn_mask(attn_mask).scale(scale))
        })
        .with("mask of numbers"),
        Entry::new(NAME, LOW, floats, with(mask(&[3, 4])), |x| {
            attention(x, AttentionOptions::new().attn_mask(&x[3]))
        })
        .with("mask of bools"),
        Entry::new(NAME, LOW, floats, [grouped], |x| {
            attention(x, AttentionOptions::new().enable_gqa(true))
        })
        .with("groups"),
        Entry::new(NAME, LOW, floats, [causal], |x| {
            let options = AttentionOptions::new().is_causal(true).enable_gqa(true);
            attention(x, options)
        })
        .with("causal groups"),
    ];
    entries.into_iter().chain(rotations()).map(|entry| entry.slack(4.0)).collect()
}

fn rotations() -> Vec<Entry> {
    const NAME: &str = "functional::rotary_embedding";
    const ANGLES: &str = "the cosines and sines of positions are no parameters";
    let three = |input: &[usize], angles: &[usize]| vec![x(input), x(angles), x(angles)];
    let halves = [
        three(&[2, 3, 4], &[3, 2]),
        three(&[2, 2, 3, 4], &[2, 3, 4]),
        three(&[0, 3, 4], &[3, 2]),
        three(&[3, 6], &[1, 3]),
    ];
    let entries = vec![
        Entry::new(NAME, KEEP, floats, halves, |x| rotary_embedding(&x[0], &x[1], &x[2], ())),
        Entry::new(NAME, KEEP, floats, [three(&[2, 3, 4], &[3, 4])], |x| {
            let pairs = RotaryEmbeddingOptions::new().interleaved(true);
            rotary_embedding(&x[0], &x[1], &x[2], pairs)
        })
        .with("of neighbours"),
        Entry::new(NAME, KEEP, floats, [three(&[2, 3, 5], &[3, 1])], |x| {
            let part = RotaryEmbeddingOptions::new().rotary_dim(2);
            rotary_embedding(&x[0], &x[1], &x[2], part)
        })
        .with("of a part"),
    ];
    entries.into_iter().map(|entry| entry.only(&[0], ANGLES)).collect()
}
