//! Entries for cumulative sums, products and extremes.

use super::entry::{Entry, F32_ON_GPU, KEEP, every};
use super::in_place::on_copy;
use super::sample::{Arg, each};

fn samples() -> Vec<Vec<Arg>> {
    each(&[&[2, 3], &[3, 2, 2], &[1], &[2, 0]])
}

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry::new("Tensor::cumsum", F32_ON_GPU, every, samples(), |x| x[0].cumsum(-1)),
        Entry::new("Tensor::cumsum", F32_ON_GPU, every, samples(), |x| x[0].cumsum(0)).with("of 0"),
        Entry::new("Tensor::cumsum_", KEEP, every, samples(), |x| on_copy(x, |t| t.cumsum_(-1))),
        Entry::new("Tensor::cumprod", F32_ON_GPU, every, samples(), |x| x[0].cumprod(-1)),
        Entry::new("Tensor::cumprod", F32_ON_GPU, every, samples(), |x| x[0].cumprod(0))
            .with("of 0"),
        Entry::new("Tensor::cumprod_", KEEP, every, samples(), |x| on_copy(x, |t| t.cumprod_(-1))),
        Entry::new("Tensor::cummax", KEEP, every, samples(), |x| x[0].cummax(-1)),
        Entry::new("Tensor::cummin", KEEP, every, samples(), |x| x[0].cummin(0)),
    ]
}
