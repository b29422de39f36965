//! Reading and writing elements by index.

use warpline::{BincountOptions, Device, Result, ScatterReduce, Tensor, functional};

use super::{Args, Outcome, one};
use crate::goldens_suite::cases::{bad, number};

pub(super) fn call(op: &str, args: &Args<'_>, _device: Device) -> Outcome {
    let index = || args.tensor(1);
    let a = args.tensor(0);
    match op {
        "index_select" => one(a.and_then(|a| a.index_select(args.int("dim")?, index()?))),
        "gather" => one(a.and_then(|a| a.gather(args.int("dim")?, index()?))),
        "embedding" => {
            let mut options = functional::EmbeddingOptions::new();
            if let Ok(row) = args.int("padding_idx") {
                options = options.padding_idx(row);
            }
            one(a.and_then(|a| functional::embedding(index()?, a, options)))
        }
        "scatter" if args.inputs.len() == 2 => {
            one(a
                .and_then(|a| a.scatter(args.int("dim")?, index()?, number(&args.attrs["value"])?)))
        }
        "scatter" => one(a.and_then(|a| a.scatter(args.int("dim")?, index()?, args.tensor(2)?))),
        "scatter_add" => {
            one(a.and_then(|a| a.scatter_add(args.int("dim")?, index()?, args.tensor(2)?)))
        }
        "scatter_reduce" => one(a.and_then(|a| scatter_reduce(a, args))),
        "index_add" => one(a.and_then(|a| {
            let (dim, source) = (args.int("dim")?, args.tensor(2)?);
            match number(&args.attrs["alpha"]) {
                Ok(alpha) => a.index_add_scaled(dim, index()?, source, alpha),
                Err(_) => a.index_add(dim, index()?, source),
            }
        })),
        "index_copy" => {
            one(a.and_then(|a| a.index_copy(args.int("dim")?, index()?, args.tensor(2)?)))
        }
        "index_fill" => {
            one(a.and_then(|a| {
                a.index_fill(args.int("dim")?, index()?, number(&args.attrs["value"])?)
            }))
        }
        "index" => one(a.and_then(|a| a.index(&indices(args)?))),
        "index_put" => {
            one(a.and_then(|a| {
                a.index_put(&indices(args)?, args.tensor(2)?, args.flag("accumulate"))
            }))
        }
        "take" => one(a.and_then(|a| a.take(index()?))),
        "take_along_dim" => one(a.and_then(|a| a.take_along_dim(index()?, args.dim()))),
        "masked_select" => one(a.and_then(|a| a.masked_select(index()?))),
        "masked_scatter" => one(a.and_then(|a| a.masked_scatter(index()?, args.tensor(2)?))),
        "nonzero" => one(a.and_then(Tensor::nonzero)),
        "one_hot" => {
            let classes = args.int("num_classes").ok().map(|n| n as usize);
            one(a.and_then(|a| {
                functional::one_hot(a, functional::OneHotOptions::new().num_classes(classes))
            }))
        }
        "bincount" => one(a.and_then(|a| {
            let least = args.int("minlength").unwrap_or(0) as usize;
            a.bincount(BincountOptions::new().weights(args.tensor(1).ok()).minlength(least))
        })),
        _ => None,
    }
}

fn indices<'a>(args: &Args<'a>) -> Result<Vec<Option<&'a Tensor>>> {
    Ok(args.list(1)?.iter().map(Some).collect())
}

fn scatter_reduce(a: &Tensor, args: &Args<'_>) -> Result<Tensor> {
    let reduce = match args.attrs["reduce"].as_str() {
        Some("sum") => ScatterReduce::Sum,
        Some("prod") => ScatterReduce::Prod,
        Some("mean") => ScatterReduce::Mean,
        Some("amax") => ScatterReduce::Amax,
        Some("amin") => ScatterReduce::Amin,
        other => return Err(bad(format!("no reduction {other:?}"))),
    };
    let include_self = args.attrs["include_self"].as_bool().unwrap_or(true);
    a.scatter_reduce(args.int("dim")?, args.tensor(1)?, args.tensor(2)?, reduce, include_self)
}
