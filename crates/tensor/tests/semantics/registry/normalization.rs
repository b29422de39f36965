//! Entries for layer, group and batch normalization.

use warpline::functional::*;

use super::entry::{Entry, F32_ON_GPU, KEEP, floats};
use super::sample::{Arg, positive, x};

/// Returns a sample with an input, and a weight and a bias of the size `channels`.
fn three(input: &[usize], channels: &[usize]) -> Vec<Arg> {
    vec![x(input), x(channels), x(channels)]
}

/// Returns a sample with an input, a residual, and a weight and a bias of the size `channels`.
fn sum_of(input: &[usize], channels: &[usize]) -> Vec<Arg> {
    vec![x(input), x(input), x(channels), x(channels)]
}

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = rows();
    entries.extend(channels());
    entries.into_iter().map(|entry| entry.slack(4.0)).collect()
}

fn rows() -> Vec<Entry> {
    vec![
        Entry::new(
            "functional::layer_norm",
            F32_ON_GPU,
            floats,
            [three(&[2, 3], &[3]), three(&[2, 1, 4], &[4]), three(&[0, 3], &[3])],
            |x| layer_norm(&x[0], x[1].size(), LayerNormOptions::new().weight(&x[1]).bias(&x[2])),
        ),
        Entry::new(
            "functional::layer_norm",
            F32_ON_GPU,
            floats,
            [three(&[2, 2, 3], &[2, 3])],
            |x| {
                layer_norm(
                    &x[0],
                    [2, 3],
                    LayerNormOptions::new().weight(&x[1]).bias(&x[2]).eps(1e-2),
                )
            },
        )
        .with("of two dimensions"),
        Entry::new("functional::layer_norm", F32_ON_GPU, floats, [vec![x(&[2, 3])]], |x| {
            layer_norm(&x[0], 3, ())
        })
        .with("without weight"),
        Entry::new("functional::rms_norm", KEEP, floats, [vec![x(&[2, 3]), x(&[3])]], |x| {
            rms_norm(&x[0], 3, RMSNormOptions::new().weight(&x[1]).eps(1e-5))
        }),
        Entry::new("functional::rms_norm", KEEP, floats, [vec![x(&[2, 3])]], |x| {
            rms_norm(&x[0], 3, ())
        })
        .with("without weight"),
        Entry::new(
            "functional::add_layer_norm",
            F32_ON_GPU,
            floats,
            [sum_of(&[2, 3], &[3])],
            |x| {
                let options = LayerNormOptions::new().weight(&x[2]).bias(&x[3]);
                add_layer_norm(&x[0], &x[1], 3, options)
            },
        ),
        Entry::new(
            "functional::add_layer_norm",
            F32_ON_GPU,
            floats,
            [vec![x(&[2, 3]), x(&[2, 3])]],
            |x| add_layer_norm(&x[0], &x[1], 3, ()),
        )
        .with("without weight"),
        Entry::new(
            "functional::add_rms_norm",
            KEEP,
            floats,
            [vec![x(&[2, 2, 3]), x(&[2, 2, 3]), x(&[2, 3])]],
            |x| add_rms_norm(&x[0], &x[1], [2, 3], RMSNormOptions::new().weight(&x[2]).eps(1e-5)),
        ),
        Entry::new("functional::group_norm", F32_ON_GPU, floats, [three(&[2, 4, 2], &[4])], |x| {
            group_norm(&x[0], 2, GroupNormOptions::new().weight(&x[1]).bias(&x[2]))
        }),
    ]
}

fn channels() -> Vec<Entry> {
    let evaluated = || {
        let mut args = three(&[4, 3], &[3]);
        args.extend([x(&[3]), positive(&[3])]);
        [args]
    };
    vec![
        Entry::new(
            "functional::batch_norm",
            KEEP,
            floats,
            [three(&[4, 3], &[3]), three(&[3, 2, 2], &[2])],
            |x| {
                let (weight, bias) = (Some(&x[1]), Some(&x[2]));
                let options = BatchNormOptions::new().weight(weight).bias(bias).training(true);
                batch_norm(&x[0], None, None, options)
            },
        )
        .with("training"),
        Entry::new("functional::batch_norm", KEEP, floats, evaluated(), |x| {
            let (weight, bias) = (Some(&x[1]), Some(&x[2]));
            let options = BatchNormOptions::new().weight(weight).bias(bias).training(false);
            batch_norm(&x[0], &x[3], &x[4], options)
        })
        .with("evaluation"),
        Entry::new("functional::instance_norm", KEEP, floats, [vec![x(&[2, 2, 3])]], |x| {
            instance_norm(&x[0], None, None, ())
        }),
        Entry::new(
            "functional::instance_norm",
            KEEP,
            floats,
            [vec![x(&[2, 2, 3]), x(&[2])]],
            |x| {
                let options = InstanceNormOptions::new().weight(&x[1]);
                instance_norm(&x[0], None, None, options)
            },
        )
        .with("weight"),
    ]
}
