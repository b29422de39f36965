//! Entries for losses.

use warpline::functional::*;
use warpline::{DType, Result, Tensor};
use warpline_kernels::autocast::Policy;

use super::entry::{Entry, F32, floats, numbers};
use super::sample::{Arg, indices, positive, within, x};

const REDUCTIONS: [Reduction; 3] = [Reduction::Mean, Reduction::Sum, Reduction::None];

/// Returns samples with input and target.
fn two() -> Vec<Vec<Arg>> {
    vec![vec![x(&[2, 3]), x(&[2, 3])], vec![x(&[]), x(&[])], vec![x(&[4, 1]), x(&[4, 1])]]
}

pub(super) fn entries() -> Vec<Entry> {
    let mut entries: Vec<Entry> = REDUCTIONS.into_iter().flat_map(distances).collect();
    entries.extend(REDUCTIONS.into_iter().flat_map(probabilities));
    entries.extend(REDUCTIONS.into_iter().flat_map(classes));
    entries.push(
        Entry::new(
            "functional::kl_div",
            F32,
            numbers,
            [vec![x(&[2, 3]), positive(&[2, 3])]],
            |x| kl_div(&x[0], &x[1], Reduction::BatchMean),
        )
        .with("BatchMean"),
    );
    entries.into_iter().map(|entry| entry.slack(2.0)).collect()
}

fn distances(reduction: Reduction) -> Vec<Entry> {
    let loss = |name, call: fn(&Tensor, &Tensor, Reduction) -> Result<Tensor>| {
        Entry::new(name, F32, numbers, two(), move |x: &[Tensor]| call(&x[0], &x[1], reduction))
            .with(format!("{reduction:?}"))
    };
    // A mean supports only floats.
    let means = move |dtype: DType| {
        if reduction == Reduction::Mean { floats(dtype) } else { numbers(dtype) }
    };
    vec![
        loss("functional::mse_loss", |a, b, reduction| mse_loss(a, b, reduction)).of(means),
        loss("functional::l1_loss", |a, b, reduction| l1_loss(a, b, reduction)).of(means),
        loss("functional::huber_loss", |a, b, reduction| {
            huber_loss(a, b, HuberLossOptions::from(reduction).delta(0.7))
        }),
        loss("functional::smooth_l1_loss", |a, b, reduction| {
            smooth_l1_loss(a, b, SmoothL1LossOptions::from(reduction).beta(0.7))
        }),
    ]
}

fn probabilities(reduction: Reduction) -> Vec<Entry> {
    let unit = || vec![within(&[2, 3], 0.1..0.9), within(&[2, 3], 0.1..0.9)];
    let weighted = || {
        let mut args = unit();
        args.push(positive(&[3]));
        [args]
    };
    let entries = [
        Entry::new(
            "functional::binary_cross_entropy",
            [Policy::Refuse, Policy::F32],
            numbers,
            [unit()],
            move |x| binary_cross_entropy(&x[0], &x[1], reduction),
        ),
        Entry::new(
            "functional::binary_cross_entropy",
            [Policy::Refuse, Policy::F32],
            numbers,
            weighted(),
            move |x| {
                binary_cross_entropy(&x[0], &x[1], BCELossOptions::from(reduction).weight(&x[2]))
            },
        )
        .with("weight "),
        Entry::new(
            "functional::binary_cross_entropy_with_logits",
            F32,
            floats,
            [vec![x(&[2, 3]), within(&[2, 3], 0.1..0.9)]],
            move |x| binary_cross_entropy_with_logits(&x[0], &x[1], reduction),
        ),
        Entry::new(
            "functional::binary_cross_entropy_with_logits",
            F32,
            floats,
            [vec![x(&[2, 3]), within(&[2, 3], 0.1..0.9), positive(&[3])]],
            move |x| {
                binary_cross_entropy_with_logits(
                    &x[0],
                    &x[1],
                    BCEWithLogitsLossOptions::from(reduction).pos_weight(&x[2]),
                )
            },
        )
        .with("weight of positives "),
        Entry::new(
            "functional::kl_div",
            F32,
            numbers,
            [vec![x(&[2, 3]), positive(&[2, 3])]],
            move |x| kl_div(&x[0], &x[1], reduction),
        ),
        Entry::new("functional::kl_div", F32, numbers, [vec![x(&[2, 3]), x(&[2, 3])]], move |x| {
            kl_div(&x[0], &x[1], KLDivLossOptions::from(reduction).log_target(true))
        })
        .with("logarithm "),
    ];
    entries.map(|entry| named(entry, reduction)).into()
}

fn classes(reduction: Reduction) -> Vec<Entry> {
    let classes = || indices(&[1, 0, 2], &[3]);
    let entries = [
        Entry::new(
            "functional::cross_entropy",
            F32,
            floats,
            [vec![x(&[3, 3]), classes()]],
            move |x| {
                let options = CrossEntropyLossOptions::new().reduction(reduction);
                cross_entropy(&x[0], &x[1], options)
            },
        ),
        Entry::new(
            "functional::cross_entropy",
            F32,
            floats,
            [vec![x(&[3, 4]), indices(&[2, -100, 0], &[3])]],
            move |x| {
                let options =
                    CrossEntropyLossOptions::new().label_smoothing(0.2).reduction(reduction);
                cross_entropy(&x[0], &x[1], options)
            },
        )
        .with("smoothing "),
        Entry::new(
            "functional::cross_entropy",
            F32,
            floats,
            [vec![x(&[3, 3]), classes(), positive(&[3])]],
            move |x| {
                let options = CrossEntropyLossOptions::new()
                    .weight(&x[2])
                    .label_smoothing(0.1)
                    .ignore_index(0)
                    .reduction(reduction);
                cross_entropy(&x[0], &x[1], options)
            },
        )
        .with("weight "),
        Entry::new(
            "functional::cross_entropy",
            F32,
            floats,
            [vec![x(&[3, 3]), positive(&[3, 3])]],
            move |x| {
                let options = CrossEntropyLossOptions::new().reduction(reduction);
                cross_entropy(&x[0], &x[1], options)
            },
        )
        .with("probabilities "),
        Entry::new(
            "functional::cross_entropy",
            F32,
            floats,
            [vec![x(&[3, 3]), positive(&[3, 3]), positive(&[3])]],
            move |x| {
                let options = CrossEntropyLossOptions::new()
                    .weight(&x[2])
                    .label_smoothing(0.1)
                    .reduction(reduction);
                cross_entropy(&x[0], &x[1], options)
            },
        )
        .with("weighted probabilities "),
        Entry::new("functional::nll_loss", F32, numbers, [vec![x(&[3, 3]), classes()]], move |x| {
            nll_loss(&x[0], &x[1], NLLLossOptions::new().reduction(reduction))
        }),
        Entry::new(
            "functional::nll_loss",
            F32,
            numbers,
            [vec![x(&[3, 3]), classes(), positive(&[3])]],
            move |x| {
                let weight = Some(&x[2]);
                nll_loss(
                    &x[0],
                    &x[1],
                    NLLLossOptions::new().weight(weight).ignore_index(0).reduction(reduction),
                )
            },
        )
        .with("weight "),
    ];
    entries.map(|entry| named(entry, reduction)).into()
}

/// Adds the reduction to the description of an entry's parameters.
fn named(entry: Entry, reduction: Reduction) -> Entry {
    let variant = format!("{}{reduction:?}", entry.variant);
    entry.with(variant)
}
