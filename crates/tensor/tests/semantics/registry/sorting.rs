//! Entries for sorting, selection, search, and ops that reverse or shift elements.

use warpline::{SortOptions, TopkOptions, UniqueOptions, isin, searchsorted};

use super::entry::{Entry, KEEP, every, numbers};
use super::sample::{Arg, ascending, each, x};

const INDICES: &str = "the results are indices";

fn matrices() -> Vec<Vec<Arg>> {
    each(&[&[2, 3], &[3, 4, 2], &[2, 5]])
}

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = sorted();
    entries.extend(searched());
    entries.extend(turned());
    entries
}

fn sorted() -> Vec<Entry> {
    let with_empty = || each(&[&[2, 3], &[3, 4, 2], &[2, 0], &[1]]);
    vec![
        Entry::new("Tensor::sort", KEEP, every, with_empty(), |x| x[0].sort(())),
        Entry::new("Tensor::sort", KEEP, every, matrices(), |x| {
            x[0].sort(SortOptions::new().dim(1).descending(true))
        })
        .with("descending"),
        Entry::new("Tensor::argsort", KEEP, every, with_empty(), |x| {
            x[0].argsort(SortOptions::new().descending(true))
        })
        .constant(INDICES),
        Entry::new("Tensor::msort", KEEP, every, matrices(), |x| x[0].msort()),
        Entry::new("Tensor::topk", KEEP, every, matrices(), |x| x[0].topk(2, 1)),
        Entry::new("Tensor::topk", KEEP, every, matrices(), |x| {
            x[0].topk(1, TopkOptions::new().dim(1).largest(false))
        })
        .with("least"),
        Entry::new("Tensor::kthvalue", KEEP, every, matrices(), |x| x[0].kthvalue(2, 1)),
        Entry::new("Tensor::kthvalue_keepdim", KEEP, every, matrices(), |x| {
            x[0].kthvalue_keepdim(2, 1)
        }),
        Entry::new("Tensor::median", KEEP, every, matrices(), |x| x[0].median(1)),
        Entry::new("Tensor::median_keepdim", KEEP, every, matrices(), |x| x[0].median_keepdim(1)),
        Entry::new("Tensor::median_all", KEEP, every, matrices(), |x| x[0].median_all()),
    ]
}

fn searched() -> Vec<Entry> {
    let places = || vec![vec![ascending(&[4]), x(&[2, 3])], vec![ascending(&[2, 4]), x(&[2, 3])]];
    let unique = "PyTorch has no gradient of `unique`";
    vec![
        Entry::new("searchsorted", KEEP, numbers, places(), |x| searchsorted(&x[0], &x[1], ()))
            .constant(INDICES),
        Entry::new("searchsorted", KEEP, numbers, places(), |x| searchsorted(&x[0], &x[1], true))
            .with("right")
            .constant(INDICES),
        Entry::new("Tensor::bucketize", KEEP, numbers, [vec![x(&[2, 3]), ascending(&[4])]], |x| {
            x[0].bucketize(&x[1], ())
        })
        .constant(INDICES),
        Entry::new("isin", KEEP, every, [vec![x(&[2, 3]), x(&[4])]], |x| isin(&x[0], &x[1]))
            .constant("the result is of bools"),
        Entry::new("Tensor::unique", KEEP, every, each(&[&[7], &[2, 3], &[0]]), |x| {
            x[0].unique(UniqueOptions::new().return_inverse(true).return_counts(true))
        })
        .constant(unique),
        Entry::new("Tensor::unique_consecutive", KEEP, every, each(&[&[7], &[2, 3], &[0]]), |x| {
            x[0].unique_consecutive(UniqueOptions::new().return_inverse(true).return_counts(true))
        })
        .constant(unique),
    ]
}

fn turned() -> Vec<Entry> {
    vec![
        Entry::new("Tensor::flip", KEEP, every, matrices(), |x| x[0].flip([0, 1])),
        Entry::new("Tensor::fliplr", KEEP, every, matrices(), |x| x[0].fliplr()),
        Entry::new("Tensor::flipud", KEEP, every, matrices(), |x| x[0].flipud()),
        Entry::new("Tensor::roll", KEEP, every, matrices(), |x| x[0].roll([1, 2], [0, 1])),
        Entry::new("Tensor::roll", KEEP, every, matrices(), |x| x[0].roll(2, ())).with("of all"),
        Entry::new("Tensor::rot90", KEEP, every, matrices(), |x| x[0].rot90(())),
    ]
}
