//! Entries for pools, resizing, padding, and pixel shuffles.

use warpline::functional::*;
use warpline::{Result, Scalar, Tensor};

use super::entry::{
    Category, Entry, F32_ON_CPU, F32_ON_GPU, KEEP, LOW, Results, every, floats, numbers,
};
use super::sample::{Arg, x};

fn rows() -> [Vec<Arg>; 2] {
    [vec![x(&[1, 2, 6])], vec![x(&[2, 5])]]
}

fn images() -> [Vec<Arg>; 2] {
    [vec![x(&[1, 2, 4, 5])], vec![x(&[2, 4, 5])]]
}

fn volumes() -> [Vec<Arg>; 1] {
    [vec![x(&[1, 1, 3, 2, 4])]]
}

fn of<R: Results>(
    name: &'static str,
    category: Category,
    samples: impl IntoIterator<Item = Vec<Arg>>,
    call: fn(&Tensor) -> Result<R>,
) -> Entry {
    Entry::new(name, category, floats, samples, move |x: &[Tensor]| call(&x[0]))
}

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = largest();
    entries.extend(averages());
    entries.extend(resized());
    entries.extend(padded());
    entries
}

fn largest() -> Vec<Entry> {
    fn options() -> MaxPoolOptions<2> {
        MaxPoolOptions::new().stride([1, 2]).padding(1).ceil_mode(true)
    }
    vec![
        of("functional::max_pool1d", KEEP, rows(), |x| max_pool1d(x, [2], ())),
        of("functional::max_pool1d_with_indices", KEEP, rows(), |x| {
            max_pool1d_with_indices(x, [2], ())
        }),
        of("functional::max_pool2d", KEEP, images(), |x| max_pool2d(x, [2, 3], options())),
        of("functional::max_pool2d_with_indices", KEEP, images(), |x| {
            max_pool2d_with_indices(x, [2, 3], options())
        }),
        of("functional::max_pool3d", F32_ON_CPU, volumes(), |x| max_pool3d(x, [2, 1, 2], ())),
        of("functional::max_pool3d_with_indices", F32_ON_CPU, volumes(), |x| {
            max_pool3d_with_indices(x, [2, 1, 2], ())
        }),
        of("functional::adaptive_max_pool1d", KEEP, rows(), |x| adaptive_max_pool1d(x, [3])),
        of("functional::adaptive_max_pool1d_with_indices", KEEP, rows(), |x| {
            adaptive_max_pool1d_with_indices(x, [3])
        }),
        of("functional::adaptive_max_pool2d", KEEP, images(), |x| adaptive_max_pool2d(x, [3, 2])),
        of("functional::adaptive_max_pool2d_with_indices", KEEP, images(), |x| {
            adaptive_max_pool2d_with_indices(x, [3, 2])
        }),
        of("functional::adaptive_max_pool3d", F32_ON_CPU, volumes(), |x| {
            adaptive_max_pool3d(x, [2, 1, 2])
        }),
        of("functional::adaptive_max_pool3d_with_indices", F32_ON_CPU, volumes(), |x| {
            adaptive_max_pool3d_with_indices(x, [2, 1, 2])
        }),
    ]
}

fn averages() -> Vec<Entry> {
    fn options() -> AvgPoolOptions<2> {
        AvgPoolOptions::new().stride(2).padding(1).ceil_mode(true).count_include_pad(false)
    }
    vec![
        of("functional::avg_pool1d", KEEP, rows(), |x| avg_pool1d(x, [2], ())),
        of("functional::avg_pool2d", KEEP, images(), |x| avg_pool2d(x, [2, 3], options())),
        of("functional::avg_pool3d", F32_ON_CPU, volumes(), |x| avg_pool3d(x, [2, 1, 2], ())),
        of("functional::adaptive_avg_pool1d", KEEP, rows(), |x| adaptive_avg_pool1d(x, [3])),
        of("functional::adaptive_avg_pool2d", KEEP, images(), |x| adaptive_avg_pool2d(x, [3, 2])),
        of("functional::adaptive_avg_pool3d", F32_ON_CPU, volumes(), |x| {
            adaptive_avg_pool3d(x, [2, 1, 2])
        }),
    ]
}

fn resized() -> Vec<Entry> {
    let images = [
        InterpolateMode::Nearest,
        InterpolateMode::NearestExact,
        InterpolateMode::Bilinear,
        InterpolateMode::Bicubic,
        InterpolateMode::Area,
    ]
    .map(|mode| (mode, &[1, 1, 2, 3][..], vec![3, 5]));
    let others = [
        (InterpolateMode::Linear, &[1, 2, 3][..], vec![5]),
        (InterpolateMode::Trilinear, &[1, 1, 2, 3, 2], vec![3, 2, 4]),
    ];
    let entries = images.into_iter().chain(others).map(|(mode, sizes, size)| {
        let options = InterpolateOptions::new().size(size).mode(mode);
        let category = if mode == InterpolateMode::Area { KEEP } else { F32_ON_GPU };
        Entry::new(
            "functional::interpolate",
            category,
            floats,
            [vec![x(sizes)]],
            move |x: &[Tensor]| interpolate(&x[0], options.clone()),
        )
        .with(format!("{mode:?}"))
    });
    entries.collect()
}

fn padded() -> Vec<Entry> {
    let modes = [
        (PadMode::Constant(Scalar::Int(2)), KEEP),
        (PadMode::Reflect, F32_ON_CPU),
        (PadMode::Replicate, F32_ON_CPU),
        (PadMode::Circular, KEEP),
    ];
    let modes = modes.map(|(mode, category)| {
        Entry::new(
            "functional::pad",
            category,
            every,
            [vec![x(&[1, 1, 3, 3])]],
            move |x: &[Tensor]| pad(&x[0], [1, 2, 2, 1], mode),
        )
        .with(format!("{mode:?}"))
    });
    let others = [
        Entry::new("functional::pad", KEEP, every, [vec![x(&[3, 3])]], |x| pad(&x[0], [-1, 2], ()))
            .with("negative"),
        Entry::new("functional::pixel_shuffle", KEEP, every, [vec![x(&[1, 4, 2, 2])]], |x| {
            pixel_shuffle(&x[0], 2)
        }),
        Entry::new("functional::pixel_unshuffle", KEEP, every, [vec![x(&[1, 1, 4, 2])]], |x| {
            pixel_unshuffle(&x[0], 2)
        }),
        Entry::new("functional::glu", KEEP, every, [vec![x(&[2, 4])], vec![x(&[0, 2])]], |x| {
            glu(&x[0], 1)
        }),
        Entry::new(
            "functional::prelu",
            LOW,
            numbers,
            [vec![x(&[3, 3]), x(&[3])], vec![x(&[2, 2, 3]), x(&[1])], vec![x(&[2]), x(&[])]],
            |x| prelu(&x[0], &x[1]),
        ),
    ];
    modes.into_iter().chain(others).collect()
}
