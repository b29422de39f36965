//! Entries for ops that read and write elements at indices and masks.

use warpline::embedding;
use warpline::functional::{self, one_hot};
use warpline_kernels::autocast::Policy;

use super::entry::{Entry, KEEP, WIDEST_ON_GPU, every, numbers};
use super::in_place::on_copy;
use super::sample::{Arg, indices, mask, x};

/// Row indices, one of which occurs twice.
fn rows() -> Arg {
    indices(&[0, 2, 0], &[3])
}

/// Row indices without duplicates.
fn distinct() -> Arg {
    indices(&[2, 0], &[2])
}

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = read();
    entries.extend(written());
    entries.extend(masked());
    entries
}

fn read() -> Vec<Entry> {
    let places = || indices(&[0, 2, 0, 1, 1, 1], &[2, 3]);
    let embedded = "the result is of integers";
    vec![
        Entry::new("Tensor::index_select", KEEP, every, [vec![x(&[3, 2]), rows()]], |x| {
            x[0].index_select(0, &x[1])
        }),
        Entry::new("Tensor::index_select", KEEP, every, [vec![x(&[2, 3]), rows()]], |x| {
            x[0].index_select(1, &x[1])
        })
        .with("of 1"),
        Entry::new(
            "Tensor::gather",
            KEEP,
            every,
            [vec![x(&[3, 3]), places()], vec![x(&[3, 3]), indices(&[], &[0, 3])]],
            |x| x[0].gather(0, &x[1]),
        ),
        Entry::new("embedding", KEEP, every, [vec![x(&[3, 2]), places()]], |x| {
            embedding(&x[0], &x[1])
        }),
        Entry::new("functional::embedding", KEEP, every, [vec![x(&[3, 2]), places()]], |x| {
            functional::embedding(&x[1], &x[0], ())
        }),
        Entry::new("functional::one_hot", KEEP, every, [vec![places()]], |x| one_hot(&x[0], 4))
            .constant(embedded),
        Entry::new(
            "Tensor::take",
            KEEP,
            every,
            [vec![x(&[2, 3]), indices(&[0, 5, 0], &[3])]],
            |x| x[0].take(&x[1]),
        ),
        Entry::new(
            "Tensor::take_along_dim",
            KEEP,
            every,
            [vec![x(&[2, 3]), indices(&[0, 2, 1, 1], &[2, 2])]],
            |x| x[0].take_along_dim(&x[1], 1),
        ),
        Entry::new(
            "Tensor::index",
            KEEP,
            every,
            [vec![x(&[3, 2]), rows(), indices(&[0, 1, 0], &[3])]],
            |x| x[0].index(&[Some(&x[1]), Some(&x[2])]),
        ),
        Entry::new("Tensor::index", KEEP, every, [vec![x(&[3, 2]), mask(&[3])]], |x| {
            x[0].index(&[Some(&x[1])])
        })
        .with("mask"),
        Entry::new("Tensor::index", KEEP, every, [vec![x(&[2, 3]), rows()]], |x| {
            x[0].index(&[None, Some(&x[1])])
        })
        .with("of 1"),
    ]
}

fn written() -> Vec<Entry> {
    let added = || [vec![x(&[3, 2]), rows(), x(&[3, 2])]];
    let copied = || [vec![x(&[3, 2]), distinct(), x(&[2, 2])]];
    let filled = || [vec![x(&[3, 2]), distinct()]];
    let put = || [vec![x(&[3, 2]), distinct(), indices(&[0, 1], &[2]), x(&[2])]];
    let accumulated = || [vec![x(&[3, 2]), rows(), indices(&[0, 1, 0], &[3]), x(&[3])]];
    vec![
        Entry::new("Tensor::index_add", KEEP, every, added(), |x| x[0].index_add(0, &x[1], &x[2])),
        Entry::new("Tensor::index_add_", KEEP, every, added(), |x| {
            on_copy(x, |t| t.index_add_(0, &x[1], &x[2]))
        }),
        Entry::new("Tensor::index_add_scaled", KEEP, numbers, added(), |x| {
            x[0].index_add_scaled(0, &x[1], &x[2], 2)
        }),
        Entry::new("Tensor::index_add_scaled_", KEEP, numbers, added(), |x| {
            on_copy(x, |t| t.index_add_scaled_(0, &x[1], &x[2], 2))
        }),
        Entry::new("Tensor::index_copy", [Policy::Keep, Policy::Widest], every, copied(), |x| {
            x[0].index_copy(0, &x[1], &x[2])
        }),
        Entry::new("Tensor::index_copy_", KEEP, every, copied(), |x| {
            on_copy(x, |t| t.index_copy_(0, &x[1], &x[2]))
        }),
        Entry::new("Tensor::index_fill", KEEP, every, filled(), |x| x[0].index_fill(0, &x[1], 1)),
        Entry::new("Tensor::index_fill_", KEEP, every, filled(), |x| {
            on_copy(x, |t| t.index_fill_(0, &x[1], 1))
        }),
        Entry::new("Tensor::index_put", WIDEST_ON_GPU, every, put(), |x| {
            x[0].index_put(&[Some(&x[1]), Some(&x[2])], &x[3], ())
        }),
        Entry::new("Tensor::index_put", WIDEST_ON_GPU, every, accumulated(), |x| {
            x[0].index_put(&[Some(&x[1]), Some(&x[2])], &x[3], true)
        })
        .with("accumulate"),
        Entry::new("Tensor::index_put_", KEEP, every, put(), |x| {
            on_copy(x, |t| t.index_put_(&[Some(&x[1]), Some(&x[2])], &x[3], ()))
        }),
    ]
}

fn masked() -> Vec<Entry> {
    let indices = "the results are indices";
    let scattered = || [vec![x(&[2, 3]), mask(&[2, 3]), x(&[2, 3])]];
    let one = || [vec![x(&[2, 3])], vec![x(&[0])], vec![x(&[])]];
    vec![
        Entry::new(
            "Tensor::masked_select",
            KEEP,
            every,
            [vec![x(&[2, 3]), mask(&[2, 3])], vec![x(&[2, 3]), mask(&[3])]],
            |x| x[0].masked_select(&x[1]),
        ),
        Entry::new("Tensor::masked_scatter", KEEP, every, scattered(), |x| {
            x[0].masked_scatter(&x[1], &x[2])
        }),
        Entry::new("Tensor::masked_scatter_", KEEP, every, scattered(), |x| {
            on_copy(x, |t| t.masked_scatter_(&x[1], &x[2]))
        }),
        Entry::new("Tensor::nonzero", KEEP, every, one(), |x| x[0].nonzero()).constant(indices),
        Entry::new("Tensor::nonzero_as_tuple", KEEP, every, one(), |x| x[0].nonzero_as_tuple())
            .constant(indices),
    ]
}
