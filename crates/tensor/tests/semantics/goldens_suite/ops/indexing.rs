//! Elements by their indices.

use warpline::Device;

use super::{Args, Outcome, one};

pub(super) fn call(op: &str, args: &Args<'_>, _device: Device) -> Outcome {
    let index = || args.tensor(1);
    match op {
        "index_select" => {
            one(args.tensor(0).and_then(|a| a.index_select(args.int("dim")?, index()?)))
        }
        "gather" => one(args.tensor(0).and_then(|a| a.gather(args.int("dim")?, index()?))),
        "embedding" => one(args.tensor(0).and_then(|a| warpline::embedding(a, index()?))),
        _ => None,
    }
}
