//! Entries for ops that write at indices along a dimension.

use warpline::ScatterReduce;
use warpline::Tensor;

use super::entry::{Entry, KEEP, WIDEST_ON_GPU, every};
use super::in_place::on_copy;
use super::sample::{Arg, indices, x};

/// Returns a sample that writes each position at most once.
fn distinct() -> [Vec<Arg>; 1] {
    [vec![x(&[3, 3]), indices(&[0, 1, 2, 1, 2, 0], &[2, 3]), x(&[2, 3])]]
}

/// Returns a sample that writes some positions several times.
fn repeated() -> [Vec<Arg>; 1] {
    [vec![x(&[3, 3]), indices(&[0, 2, 0, 0, 1, 1], &[2, 3]), x(&[2, 3])]]
}

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = vec![
        Entry::new("Tensor::scatter", KEEP, every, distinct(), |x| x[0].scatter(0, &x[1], &x[2])),
        Entry::new("Tensor::scatter", KEEP, every, repeated(), |x| x[0].scatter(0, &x[1], 1))
            .with("number")
            .only(&[0], "the number is the source"),
        Entry::new("Tensor::scatter_", KEEP, every, distinct(), |x| {
            on_copy(x, |t| t.scatter_(0, &x[1], &x[2]))
        }),
        Entry::new("Tensor::scatter_add", WIDEST_ON_GPU, every, repeated(), |x| {
            x[0].scatter_add(0, &x[1], &x[2])
        }),
        Entry::new("Tensor::scatter_add_", KEEP, every, repeated(), |x| {
            on_copy(x, |t| t.scatter_add_(0, &x[1], &x[2]))
        }),
    ];
    for reduce in [
        ScatterReduce::Sum,
        ScatterReduce::Mean,
        ScatterReduce::Prod,
        ScatterReduce::Amax,
        ScatterReduce::Amin,
    ] {
        for include_self in [true, false] {
            let variant = format!("{reduce:?}{}", if include_self { "" } else { " without self" });
            let call =
                move |x: &[Tensor]| x[0].scatter_reduce(0, &x[1], &x[2], reduce, include_self);
            let in_place = move |x: &[Tensor]| {
                on_copy(x, |t| t.scatter_reduce_(0, &x[1], &x[2], reduce, include_self))
            };
            entries.extend([
                Entry::new("Tensor::scatter_reduce", KEEP, every, repeated(), call)
                    .with(variant.clone()),
                Entry::new("Tensor::scatter_reduce_", KEEP, every, repeated(), in_place)
                    .with(variant),
            ]);
        }
    }
    entries
}
