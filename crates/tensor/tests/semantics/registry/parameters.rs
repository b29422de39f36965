//! Entries for elementwise methods with parameters, or with operands of different kinds.

use warpline::functional::{HardtanhOptions, SoftplusOptions, silu_mul};
use warpline::{DType, IsCloseOptions, RoundingMode, where_cond};

use super::entry::{Entry, F32_ON_GPU, KEEP, WIDEST_ON_GPU, every, floats, numbers};
use super::sample::{Arg, each, indices, mask, positive, single, within, x};

const BOOLS: &str = "the result is of bools";

/// Returns samples with one operand.
fn one() -> Vec<Vec<Arg>> {
    each(&[&[2, 3], &[], &[1], &[0, 3]])
}

/// Returns samples with two operands that broadcast.
fn two() -> Vec<Vec<Arg>> {
    vec![
        vec![x(&[2, 3]), x(&[2, 3])],
        vec![x(&[2, 1]), x(&[3])],
        vec![x(&[2, 3]), x(&[])],
        vec![x(&[0, 3]), x(&[1])],
    ]
}

/// Returns samples with three operands that broadcast.
fn three() -> Vec<Vec<Arg>> {
    vec![
        vec![x(&[2, 3]), x(&[2, 3]), x(&[2, 3])],
        vec![x(&[2, 3]), x(&[2, 1]), x(&[3])],
        vec![x(&[3]), x(&[1, 1]), x(&[2, 1])],
        vec![x(&[0, 3]), x(&[1]), x(&[3])],
    ]
}

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = activations();
    entries.extend(bounds());
    entries.extend(powers());
    entries.extend(mixtures());
    entries.extend(questions());
    entries
}

fn activations() -> Vec<Entry> {
    vec![
        Entry::new("Tensor::softplus", F32_ON_GPU, floats, one(), |x| {
            x[0].softplus(SoftplusOptions::new().beta(2.0).threshold(1.0))
        }),
        Entry::new("Tensor::elu", KEEP, floats, one(), |x| x[0].elu(0.7)),
        Entry::new("Tensor::celu", KEEP, floats, one(), |x| x[0].celu(0.7)),
        Entry::new("Tensor::leaky_relu", KEEP, floats, one(), |x| x[0].leaky_relu(0.1)),
        Entry::new("Tensor::softshrink", KEEP, floats, one(), |x| x[0].softshrink(0.5)),
        Entry::new("Tensor::hardshrink", KEEP, floats, one(), |x| x[0].hardshrink(0.5)),
        Entry::new("Tensor::threshold", KEEP, numbers, one(), |x| x[0].threshold(1, 3)),
        Entry::new("Tensor::hardtanh", KEEP, numbers, one(), |x| {
            x[0].hardtanh(HardtanhOptions::new().min_val(-0.5).max_val(0.5))
        }),
        Entry::new("Tensor::relu6", KEEP, numbers, one(), |x| x[0].relu6()),
        Entry::new("functional::silu_mul", KEEP, floats, two(), |x| silu_mul(&x[0], &x[1])),
        Entry::new("Tensor::logit", KEEP, every, [vec![within(&[2, 3], 0.05..0.95)]], |x| {
            x[0].logit(())
        }),
        Entry::new("Tensor::logit", KEEP, every, [vec![within(&[2, 3], 0.05..0.95)]], |x| {
            x[0].logit(0.2)
        })
        .with("eps"),
    ]
}

fn bounds() -> Vec<Entry> {
    let chosen = || {
        vec![
            vec![mask(&[2, 3]), x(&[2, 3]), x(&[2, 3])],
            vec![mask(&[2, 1]), x(&[3]), x(&[])],
            vec![mask(&[0, 3]), x(&[3]), x(&[1])],
        ]
    };
    let masked = || {
        vec![
            vec![x(&[2, 3]), mask(&[2, 3])],
            vec![x(&[2, 3]), mask(&[3])],
            vec![x(&[0, 3]), mask(&[3])],
        ]
    };
    vec![
        Entry::new("Tensor::clamp", KEEP, every, one(), |x| x[0].clamp(1, 5)),
        Entry::new("Tensor::clamp", KEEP, every, one(), |x| x[0].clamp(-0.5, 0.5)).with("floats"),
        Entry::new("Tensor::clamp", KEEP, numbers, three(), |x| x[0].clamp(&x[1], &x[2]))
            .with("tensors"),
        Entry::new("Tensor::clamp_min", KEEP, every, one(), |x| x[0].clamp_min(1)),
        Entry::new("Tensor::clamp_min", KEEP, numbers, two(), |x| x[0].clamp_min(&x[1]))
            .with("tensor"),
        Entry::new("Tensor::clamp_max", KEEP, every, one(), |x| x[0].clamp_max(1)),
        Entry::new("Tensor::clamp_max", KEEP, numbers, two(), |x| x[0].clamp_max(&x[1]))
            .with("tensor"),
        Entry::new("where_cond", KEEP, every, chosen(), |x| where_cond(&x[0], &x[1], &x[2])),
        Entry::new("Tensor::where_cond", KEEP, every, chosen(), |x| x[1].where_cond(&x[0], &x[2])),
        Entry::new("Tensor::masked_fill", KEEP, every, masked(), |x| x[0].masked_fill(&x[1], 1)),
        Entry::new("Tensor::nan_to_num", KEEP, every, one(), |x| x[0].nan_to_num(0.5)),
    ]
}

fn powers() -> Vec<Entry> {
    let powers = || {
        vec![
            vec![positive(&[2, 3]), x(&[2, 3])],
            vec![positive(&[3]), x(&[2, 1])],
            vec![positive(&[0, 3]), x(&[])],
        ]
    };
    let quotients = || {
        vec![vec![x(&[2, 3]), within(&[2, 3], 0.5..2.0)], vec![x(&[2, 1]), within(&[3], 0.5..2.0)]]
    };
    let mut entries = vec![
        Entry::new("Tensor::pow", F32_ON_GPU, numbers, powers(), |x| x[0].pow(&x[1])),
        Entry::new("Tensor::rpow", F32_ON_GPU, every, one(), |x| x[0].rpow(2.0)),
        Entry::new("Tensor::div_rounded", KEEP, numbers, quotients(), |x| {
            x[0].div_rounded(&x[1], RoundingMode::Trunc)
        })
        .with("trunc"),
        Entry::new("Tensor::div_rounded", KEEP, numbers, quotients(), |x| {
            x[0].div_rounded(&x[1], RoundingMode::Floor)
        })
        .with("floor"),
        Entry::new("Tensor::round_decimals", KEEP, floats, one(), |x| x[0].round_decimals(1)),
        Entry::new("Tensor::fmax", KEEP, every, two(), |x| x[0].fmax(&x[1])),
        Entry::new("Tensor::fmin", KEEP, every, two(), |x| x[0].fmin(&x[1])),
    ];
    for exponent in [2, 3] {
        let call = move |x: &[warpline::Tensor]| x[0].pow(exponent);
        entries.push(
            Entry::new("Tensor::pow", F32_ON_GPU, every, one(), call)
                .with(format!("of {exponent}")),
        );
    }
    for exponent in [-3.0, -0.5, 0.5, 1.5] {
        let samples = [vec![positive(&[2, 3])], vec![positive(&[])]];
        let call = move |x: &[warpline::Tensor]| x[0].pow(exponent);
        entries.push(
            Entry::new("Tensor::pow", F32_ON_GPU, every, samples, call)
                .with(format!("of {exponent:?}")),
        );
    }
    entries
}

fn mixtures() -> Vec<Entry> {
    let divided = || {
        vec![
            vec![x(&[2, 3]), x(&[2, 3]), positive(&[3])],
            vec![x(&[]), x(&[2, 1]), positive(&[1, 3])],
        ]
    };
    vec![
        Entry::new("Tensor::lerp", KEEP, floats, three(), |x| x[0].lerp(&x[1], &x[2])),
        Entry::new("Tensor::lerp", KEEP, floats, two(), |x| x[0].lerp(&x[1], 0.3)).with("number"),
        Entry::new("Tensor::addcmul", WIDEST_ON_GPU, numbers, three(), |x| {
            x[0].addcmul(&x[1], &x[2], 2)
        }),
        Entry::new("Tensor::addcmul", WIDEST_ON_GPU, floats, three(), |x| {
            x[0].addcmul(&x[1], &x[2], 0.7)
        })
        .with("float"),
        Entry::new("Tensor::addcdiv", WIDEST_ON_GPU, floats, divided(), |x| {
            x[0].addcdiv(&x[1], &x[2], 0.7)
        }),
        Entry::new("Tensor::add_scaled", KEEP, numbers, two(), |x| x[0].add_scaled(&x[1], 2)),
        Entry::new("Tensor::add_scaled", KEEP, floats, two(), |x| x[0].add_scaled(&x[1], 0.7))
            .with("float"),
        Entry::new("Tensor::add", KEEP, every, [vec![x(&[2, 3])]], |x| x[0].add(2)).with("number"),
        Entry::new("Tensor::mul", KEEP, every, [vec![x(&[2, 3])]], |x| x[0].mul(2)).with("number"),
        Entry::new(
            "Tensor::add",
            KEEP,
            every,
            [vec![x(&[2, 3]), indices(&[3, 1, 2], &[3])]],
            |x| x[0].add(&x[1]),
        )
        .with("mixed with int64"),
        Entry::new("Tensor::mul", KEEP, every, [vec![x(&[2, 3]), single(&[3])]], |x| {
            x[0].mul(&x[1])
        })
        .with("mixed with float32"),
    ]
}

fn questions() -> Vec<Entry> {
    let one = one();
    vec![
        Entry::new("Tensor::signbit", KEEP, every, one, |x| x[0].signbit()).constant(BOOLS),
        Entry::new("Tensor::isclose", KEEP, every, two(), |x| {
            x[0].isclose(&x[1], IsCloseOptions::new().rtol(0.1).atol(0.5))
        })
        .constant(BOOLS),
        Entry::new(
            "Tensor::nextafter",
            KEEP,
            |dtype| !matches!(dtype, DType::F16 | DType::BF16),
            [vec![x(&[2, 3])]],
            |x| x[0].nextafter(2.0),
        )
        .with("number")
        .constant("PyTorch declares it not differentiable"),
    ]
}
