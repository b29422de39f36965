//! Reductions, and softmax.

use warpline::Device;

use super::{Args, Outcome, one, pair};

pub(super) fn call(op: &str, args: &Args<'_>, _device: Device) -> Outcome {
    macro_rules! reduction {
        ($method:ident $keep:ident) => {
            reduction!($method $keep, args.dims())
        };
        ($method:ident $keep:ident, $dims:expr) => {
            one(args.tensor(0).and_then(|a| {
                if args.flag("keepdim") { a.$keep($dims) } else { a.$method($dims) }
            }))
        };
    }
    match op {
        "sum" => reduction!(sum sum_keepdim),
        "mean" => reduction!(mean mean_keepdim),
        "prod" => reduction!(prod prod_keepdim),
        "amax" => reduction!(amax amax_keepdim),
        "amin" => reduction!(amin amin_keepdim),
        "any" => reduction!(any any_keepdim),
        "all" => reduction!(all all_keepdim),
        "argmax" => reduction!(argmax argmax_keepdim, args.dim()),
        "argmin" => reduction!(argmin argmin_keepdim, args.dim()),
        "max" => pair(args.tensor(0).and_then(|a| match args.int("dim")? {
            dim if args.flag("keepdim") => Ok((a.amax_keepdim(dim)?, a.argmax_keepdim(dim)?)),
            dim => a.max(dim),
        })),
        "min" => pair(args.tensor(0).and_then(|a| match args.int("dim")? {
            dim if args.flag("keepdim") => Ok((a.amin_keepdim(dim)?, a.argmin_keepdim(dim)?)),
            dim => a.min(dim),
        })),
        "softmax" => one(args.tensor(0).and_then(|a| a.softmax(args.int("dim")?))),
        "log_softmax" => one(args.tensor(0).and_then(|a| a.log_softmax(args.int("dim")?))),
        _ => None,
    }
}
