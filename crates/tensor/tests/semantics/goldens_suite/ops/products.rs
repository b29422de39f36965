//! Products of matrices.

use warpline::Device;

use super::{Args, Outcome, one};

pub(super) fn call(op: &str, args: &Args<'_>, _device: Device) -> Outcome {
    match op {
        "matmul" => one(args.tensor(0).and_then(|a| a.matmul(args.tensor(1)?))),
        _ => None,
    }
}
