//! Views, and functions that join or split tensors.

use warpline::{Device, Result, Tensor};

use super::{Args, Outcome, one};
use crate::goldens_suite::cases::int;

pub(super) fn call(op: &str, args: &Args<'_>, _device: Device) -> Outcome {
    match op {
        "cat" => one(args.list(0).and_then(|l| warpline::cat(l, args.int("dim")?))),
        "stack" => one(args.list(0).and_then(|l| warpline::stack(l, args.int("dim")?))),
        "split" if !args.attrs["split_size"].is_null() => Some(
            args.tensor(0)
                .and_then(|a| a.split(args.int("split_size")? as usize, args.int("dim")?)),
        ),
        "chunk" => Some(
            args.tensor(0).and_then(|a| a.chunk(args.int("chunks")? as usize, args.int("dim")?)),
        ),
        "reshape" | "permute" | "transpose" | "flatten" | "squeeze" | "unsqueeze" | "expand"
        | "narrow" | "select" => one(args.tensor(0).and_then(|a| view(op, args, a))),
        _ => None,
    }
}

fn view(op: &str, args: &Args<'_>, a: &Tensor) -> Result<Tensor> {
    match op {
        "reshape" => a.reshape(args.ints("shape")),
        "permute" => a.permute(args.ints("dims")),
        "transpose" => a.transpose(args.int("dim0")?, args.int("dim1")?),
        "flatten" => a.flatten((args.int("start_dim")?, args.int("end_dim")?)),
        "squeeze" => a.squeeze(int(&args.attrs["dim"])),
        "unsqueeze" => a.unsqueeze(args.int("dim")?),
        "expand" if args.flag("prenarrow") => a.narrow(1, 0, 1)?.expand(args.ints("sizes")),
        "expand" => a.expand(args.ints("sizes")),
        "narrow" => a.narrow(args.int("dim")?, args.int("start")?, args.int("length")? as usize),
        _ => a.select(args.int("dim")?, args.int("index")?),
    }
}
