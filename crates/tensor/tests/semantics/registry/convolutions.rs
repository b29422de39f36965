//! Entries for convolutions, transposed convolutions, and columns of images.

use warpline::Tensor;
use warpline::functional::*;

use super::entry::{Entry, KEEP, LOW, floats};
use super::sample::{Arg, x};

/// Returns a sample with image, weight and bias.
fn three(image: &[usize], weight: &[usize], bias: usize) -> [Vec<Arg>; 1] {
    [vec![x(image), x(weight), x(&[bias])]]
}

/// Returns a sample with image and weight.
fn two(image: &[usize], weight: &[usize]) -> [Vec<Arg>; 1] {
    [vec![x(image), x(weight)]]
}

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = convolutions();
    entries.extend(transposed());
    entries.extend(columns());
    entries.into_iter().map(|entry| entry.slack(4.0)).collect()
}

fn convolutions() -> Vec<Entry> {
    let all = || ConvOptions::new().stride([2, 1]).padding([1, 2]).dilation([1, 2]).groups(2);
    vec![
        Entry::new("functional::conv1d", LOW, floats, two(&[1, 2, 5], &[2, 2, 3]), |x| {
            let options = ConvOptions::new().padding(Padding::Same);
            conv1d(&x[0], &x[1], None, options)
        }),
        Entry::new(
            "functional::conv2d",
            LOW,
            floats,
            three(&[2, 4, 3, 4], &[2, 4, 2, 2], 2),
            |x| conv2d(&x[0], &x[1], Some(&x[2]), ()),
        ),
        Entry::new(
            "functional::conv2d",
            LOW,
            floats,
            three(&[2, 4, 3, 4], &[2, 2, 2, 2], 2),
            move |x| conv2d(&x[0], &x[1], Some(&x[2]), all()),
        )
        .with("all options"),
        Entry::new(
            "functional::conv2d",
            LOW,
            floats,
            two(&[2, 3, 4], &[3, 2, 1, 1]),
            |x: &[Tensor]| conv2d(&x[0], &x[1], None, ()),
        )
        .with("without batch"),
        Entry::new(
            "functional::conv3d",
            LOW,
            floats,
            two(&[1, 1, 2, 3, 2], &[2, 1, 2, 2, 1]),
            |x| conv3d(&x[0], &x[1], None, ()),
        ),
    ]
}

fn transposed() -> Vec<Entry> {
    let all = || {
        ConvTransposeOptions::new()
            .stride([2, 1])
            .padding([1, 0])
            .output_padding([1, 0])
            .dilation([1, 2])
            .groups(2)
    };
    vec![
        Entry::new("functional::conv_transpose1d", LOW, floats, two(&[1, 2, 4], &[2, 2, 3]), |x| {
            conv_transpose1d(&x[0], &x[1], None, ())
        }),
        Entry::new(
            "functional::conv_transpose2d",
            LOW,
            floats,
            three(&[1, 2, 2, 3], &[2, 2, 2, 2], 4),
            move |x| conv_transpose2d(&x[0], &x[1], Some(&x[2]), all()),
        ),
        Entry::new(
            "functional::conv_transpose3d",
            LOW,
            floats,
            two(&[1, 1, 2, 2, 2], &[1, 2, 2, 1, 2]),
            |x| conv_transpose3d(&x[0], &x[1], None, ()),
        ),
    ]
}

fn columns() -> Vec<Entry> {
    let padded = || FoldOptions::new().padding([1, 0]).stride([2, 1]);
    vec![
        Entry::new("functional::unfold", KEEP, floats, [vec![x(&[1, 2, 4, 5])]], |x| {
            unfold(&x[0], [2, 2], ())
        }),
        Entry::new("functional::unfold", KEEP, floats, [vec![x(&[1, 2, 4, 5])]], move |x| {
            unfold(&x[0], [2, 2], padded())
        })
        .with("padded"),
        Entry::new("functional::fold", KEEP, floats, [vec![x(&[1, 4, 4])]], |x| {
            fold(&x[0], [3, 3], [2, 2], ())
        }),
    ]
}
