//! Tests of attention in one launch and of attention weights. This file has the tests that both
//! share.

mod few_queries;
mod flash;
mod weights;

use warpline_runtime::Target;
use warpline_runtime::testing::{on_every_target, on_gpu};

fn extremes(target: Target<'_>) {
    flash::extremes(target);
    weights::extremes(target);
}

#[test]
fn neither_infinite_nor_large_scores_spoil_others() {
    on_every_target(extremes);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_neither_infinite_nor_large_scores_spoil_others() {
    on_gpu(extremes);
}

#[test]
fn what_the_kernels_are_not_for_is_refused() {
    on_every_target(flash::rejected_operands);
    on_every_target(weights::rejected_operands);
}
