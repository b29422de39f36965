//! Entries for reductions over dimensions, and for softmax.

use warpline::functional::softmin;
use warpline::{Result, Tensor};

use super::entry::{Category, Entry, F32, F32_ON_GPU, KEEP, Results, every, floats, numbers};
use super::sample::{Arg, each, positive, x};

const BOOLS: &str = "the result is of bools";
const INDICES: &str = "the results are indices";

/// Returns samples with at least two dimensions.
fn matrices() -> Vec<Vec<Arg>> {
    each(&[&[2, 3], &[3, 1], &[2, 3, 2]])
}

/// Returns entries of a reduction over one dimension, over all dimensions, and over several.
fn over<R: Results>(
    name: &'static str,
    category: Category,
    takes: fn(warpline::DType) -> bool,
    call: fn(&Tensor, &[isize]) -> Result<R>,
) -> Vec<Entry> {
    [(&[1][..], "of 1"), (&[0], "of 0"), (&[], "of all"), (&[0, -1], "of several")]
        .map(|(dims, variant)| {
            Entry::new(name, category, takes, matrices(), move |x: &[Tensor]| call(&x[0], dims))
                .with(variant)
        })
        .into()
}

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = Vec::new();
    entries.extend(over("Tensor::sum", F32_ON_GPU, every, |x, dims| x.sum(dims)));
    entries.extend(over("Tensor::sum_keepdim", F32_ON_GPU, every, |x, dims| x.sum_keepdim(dims)));
    entries.extend(over("Tensor::prod", F32, every, |x, dims| x.prod(dims)));
    entries.extend(over("Tensor::prod_keepdim", F32, every, |x, dims| x.prod_keepdim(dims)));
    entries.extend(over("Tensor::mean", KEEP, floats, |x, dims| x.mean(dims)));
    entries.extend(over("Tensor::mean_keepdim", KEEP, floats, |x, dims| x.mean_keepdim(dims)));
    entries.extend(over("Tensor::amax", KEEP, every, |x, dims| x.amax(dims)));
    entries.extend(over("Tensor::amax_keepdim", KEEP, every, |x, dims| x.amax_keepdim(dims)));
    entries.extend(over("Tensor::amin", KEEP, every, |x, dims| x.amin(dims)));
    entries.extend(over("Tensor::amin_keepdim", KEEP, every, |x, dims| x.amin_keepdim(dims)));
    let truths = over("Tensor::any", KEEP, every, |x, dims| x.any(dims))
        .into_iter()
        .chain(over("Tensor::any_keepdim", KEEP, every, |x, dims| x.any_keepdim(dims)))
        .chain(over("Tensor::all", KEEP, every, |x, dims| x.all(dims)))
        .chain(over("Tensor::all_keepdim", KEEP, every, |x, dims| x.all_keepdim(dims)));
    entries.extend(truths.map(|entry| entry.constant(BOOLS)));
    entries.extend(empty());
    entries.extend(largest());
    entries.extend(normalized());
    entries
}

/// Returns entries of reductions over no elements or a single element.
fn empty() -> Vec<Entry> {
    let none = || each(&[&[0], &[2, 0]]);
    vec![
        Entry::new("Tensor::sum", F32_ON_GPU, every, none(), |x| x[0].sum(-1)).with("of nothing"),
        Entry::new("Tensor::prod", F32, every, none(), |x| x[0].prod(-1)).with("of nothing"),
        Entry::new("Tensor::mean", KEEP, floats, none(), |x| x[0].mean(-1)).with("of nothing"),
        Entry::new("Tensor::any", KEEP, every, none(), |x| x[0].any(-1))
            .with("of nothing")
            .constant(BOOLS),
        Entry::new("Tensor::all", KEEP, every, none(), |x| x[0].all(-1))
            .with("of nothing")
            .constant(BOOLS),
        Entry::new("Tensor::sum", F32_ON_GPU, every, each(&[&[]]), |x| x[0].sum(()))
            .with("of one element"),
        Entry::new("Tensor::prod", F32, every, each(&[&[]]), |x| x[0].prod(()))
            .with("of one element"),
    ]
}

fn largest() -> Vec<Entry> {
    let index = |name, call: fn(&Tensor) -> Result<Tensor>| {
        Entry::new(name, KEEP, numbers, matrices(), move |x: &[Tensor]| call(&x[0]))
            .constant(INDICES)
    };
    vec![
        index("Tensor::argmax", |x| x.argmax(1)),
        index("Tensor::argmax", |x| x.argmax(())).with("of all"),
        index("Tensor::argmax_keepdim", |x| x.argmax_keepdim(0)),
        index("Tensor::argmin", |x| x.argmin(1)),
        index("Tensor::argmin", |x| x.argmin(())).with("of all"),
        index("Tensor::argmin_keepdim", |x| x.argmin_keepdim(0)),
        Entry::new("Tensor::max", KEEP, numbers, matrices(), |x| x[0].max(1)),
        Entry::new("Tensor::min", KEEP, numbers, matrices(), |x| x[0].min(1)),
        Entry::new("Tensor::aminmax", KEEP, every, matrices(), |x| x[0].aminmax(1)),
        Entry::new("Tensor::aminmax", KEEP, every, matrices(), |x| x[0].aminmax(())).with("of all"),
        Entry::new("Tensor::aminmax_keepdim", KEEP, every, matrices(), |x| x[0].aminmax_keepdim(0)),
    ]
}

fn normalized() -> Vec<Entry> {
    let samples = || each(&[&[2, 3], &[3, 1], &[2, 3, 2], &[0, 3], &[1]]);
    let matrix = || each(&[&[2, 3], &[2, 3, 2]]);
    vec![
        Entry::new("Tensor::softmax", F32_ON_GPU, floats, samples(), |x| x[0].softmax(-1)),
        Entry::new("Tensor::softmax", F32_ON_GPU, floats, samples(), |x| x[0].softmax(0))
            .with("of 0"),
        Entry::new("Tensor::log_softmax", F32_ON_GPU, floats, samples(), |x| x[0].log_softmax(-1)),
        Entry::new("Tensor::log_softmax", F32_ON_GPU, floats, samples(), |x| x[0].log_softmax(0))
            .with("of 0"),
        Entry::new("functional::softmin", F32_ON_GPU, floats, samples(), |x| softmin(&x[0], -1)),
        Entry::new("Tensor::logsumexp", F32_ON_GPU, every, matrix(), |x| x[0].logsumexp(1)),
        Entry::new("Tensor::logsumexp", F32_ON_GPU, every, matrix(), |x| x[0].logsumexp([0, 1]))
            .with("of several"),
        Entry::new("Tensor::logsumexp_keepdim", F32_ON_GPU, every, matrix(), |x| {
            x[0].logsumexp_keepdim(0)
        }),
        Entry::new("Tensor::prod", F32, every, [vec![positive(&[2, 3])]], |x| x[0].prod(1))
            .with("of positive numbers"),
        Entry::new("Tensor::sum", F32_ON_GPU, every, [vec![x(&[37, 5])]], |x| x[0].sum(0))
            .with("of columns"),
        Entry::new("Tensor::sum", F32_ON_GPU, every, [vec![x(&[3, 70])]], |x| x[0].sum(1))
            .with("of rows"),
    ]
}
