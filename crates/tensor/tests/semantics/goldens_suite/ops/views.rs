//! Views by sizes and strides, and functions that repeat, join or mask by position.

use warpline::{
    Device, DiagEmbedOptions, DiagonalOptions, MeshIndexing, Result, Rot90Options, Tensor,
};

use super::{Args, Outcome, one};
use crate::goldens_suite::cases::number;

pub(super) fn call(op: &str, args: &Args<'_>, device: Device) -> Outcome {
    match op {
        "split" if !args.attrs["split_sizes"].is_null() => Some(
            args.tensor(0)
                .and_then(|a| a.split_with_sizes(&sizes(args, "split_sizes"), args.int("dim")?)),
        ),
        "tensor_split" => Some(
            args.tensor(0)
                .and_then(|a| a.tensor_split(args.int("sections")? as usize, args.int("dim")?)),
        ),
        "unbind" => Some(args.tensor(0).and_then(|a| a.unbind(args.int("dim")?))),
        "meshgrid" => Some(args.list(0).and_then(|list| {
            let xy = args.attrs["indexing"] == "xy";
            warpline::meshgrid(list, if xy { MeshIndexing::Xy } else { MeshIndexing::Ij })
        })),
        "hstack" => one(args.list(0).and_then(warpline::hstack)),
        "vstack" => one(args.list(0).and_then(warpline::vstack)),
        "block_diag" => one(args.list(0).and_then(warpline::block_diag)),
        "logspace" => one(logspace(args, device)),
        "tril_indices" => one(args.int("row").and_then(|row| {
            let offset = args.int("offset").unwrap_or(0);
            warpline::tril_indices(row as usize, args.int("col")? as usize, offset, device)
        })),
        "clone" => one(args.tensor(0).and_then(Tensor::copy)),
        "unflatten" | "movedim" | "diagonal" | "as_strided" | "unfold" | "broadcast_to"
        | "repeat" | "tile" | "repeat_interleave" | "tril" | "triu" | "diag" | "diag_embed"
        | "rot90" => one(args.tensor(0).and_then(|a| single(op, args, a))),
        _ => None,
    }
}

fn sizes(args: &Args<'_>, name: &str) -> Vec<usize> {
    args.ints(name).iter().map(|&n| n as usize).collect()
}

fn logspace(args: &Args<'_>, device: Device) -> Result<Tensor> {
    let at = |name: &str| number(&args.attrs[name]);
    let base = args.attrs["base"].as_f64().unwrap_or(10.0);
    warpline::logspace(at("start")?, at("end")?, args.int("steps")? as usize, base, device)
}

fn single(op: &str, args: &Args<'_>, a: &Tensor) -> Result<Tensor> {
    let dim = |name: &str, default: isize| args.int(name).unwrap_or(default);
    match op {
        "unflatten" => a.unflatten(args.int("dim")?, args.ints("sizes")),
        "movedim" => a.movedim(args.int("source")?, args.int("destination")?),
        "diagonal" => a.diagonal(
            DiagonalOptions::new()
                .offset(dim("offset", 0))
                .dim1(dim("dim1", 0))
                .dim2(dim("dim2", 1)),
        ),
        "as_strided" => {
            let offset = args.int("storage_offset").ok().map(|n| n as usize);
            a.as_strided(sizes(args, "size"), args.ints("stride"), offset)
        }
        "unfold" => {
            a.unfold(args.int("dim")?, args.int("size")? as usize, args.int("step")? as usize)
        }
        "broadcast_to" => a.broadcast_to(args.ints("size")),
        "repeat" => a.repeat(sizes(args, "sizes")),
        "tile" => a.tile(sizes(args, "dims")),
        "repeat_interleave" => a.repeat_interleave(args.int("repeats")? as usize, args.dim()),
        "tril" => a.tril(dim("diagonal", 0)),
        "triu" => a.triu(dim("diagonal", 0)),
        "diag" => a.diag(dim("diagonal", 0)),
        "diag_embed" => a.diag_embed(
            DiagEmbedOptions::new()
                .offset(dim("offset", 0))
                .dim1(dim("dim1", -2))
                .dim2(dim("dim2", -1)),
        ),
        _ => a.rot90(Rot90Options::new().k(args.int("k")?).dims(args.ints("dims"))),
    }
}
