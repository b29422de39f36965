//! Entries for cumulative sums, products and extremes.

use super::entry::{Entry, every};
use super::in_place::on_copy;
use super::sample::{Arg, each};

fn samples() -> Vec<Vec<Arg>> {
    each(&[&[2, 3], &[3, 2, 2], &[1], &[2, 0]])
}

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry::new("Tensor::cumsum", every, samples(), |x| x[0].cumsum(-1)),
        Entry::new("Tensor::cumsum", every, samples(), |x| x[0].cumsum(0)).with("of 0"),
        Entry::new("Tensor::cumsum_", every, samples(), |x| on_copy(x, |t| t.cumsum_(-1))),
        Entry::new("Tensor::cumprod", every, samples(), |x| x[0].cumprod(-1)),
        Entry::new("Tensor::cumprod", every, samples(), |x| x[0].cumprod(0)).with("of 0"),
        Entry::new("Tensor::cumprod_", every, samples(), |x| on_copy(x, |t| t.cumprod_(-1))),
        Entry::new("Tensor::cummax", every, samples(), |x| x[0].cummax(-1)),
        Entry::new("Tensor::cummin", every, samples(), |x| x[0].cummin(0)),
    ]
}
