//! Statistics over dimensions, norms, and comparisons of whole tensors.

use warpline::{Device, DiffOptions, NormOptions, Result, Tensor, VarOptions, VectorNormOptions};

use super::{Args, Outcome, one, pair};

pub(super) fn call(op: &str, args: &Args<'_>, device: Device) -> Outcome {
    match op {
        "var" | "std" | "logsumexp" | "nansum" | "nanmean" | "count_nonzero" | "vector_norm"
        | "norm" | "cdist" | "diff" => one(single(op, args)),
        "var_mean" => pair(args.tensor(0).and_then(|a| a.var_mean(args.dims()))),
        "std_mean" => pair(args.tensor(0).and_then(|a| a.std_mean(args.dims()))),
        "aminmax" => pair(args.tensor(0).and_then(|a| a.aminmax(args.dim()))),
        "allclose" | "equal" => one(truth(op, args).and_then(|t| warpline::tensor(t, device))),
        _ => None,
    }
}

fn truth(op: &str, args: &Args<'_>) -> Result<bool> {
    let (a, b) = (args.tensor(0)?, args.tensor(1)?);
    if op == "equal" { a.equal(b) } else { a.allclose(b, ()) }
}

fn single(op: &str, args: &Args<'_>) -> Result<Tensor> {
    let (a, dims, keep) = (args.tensor(0)?, args.dims(), args.flag("keepdim"));
    let correction = args.int("correction").unwrap_or(1) as usize;
    // JSON has no infinity, so the cases write it as a string.
    let ord = match &args.attrs["ord"] {
        serde_json::Value::String(text) => text.parse().unwrap_or(f64::NAN),
        number => number.as_f64().unwrap_or(2.0),
    };
    match op {
        "var" if keep => a.var_keepdim(VarOptions::new().dim(dims).correction(correction)),
        "var" => a.var(VarOptions::new().dim(dims).correction(correction)),
        "std" if keep => a.std_keepdim(VarOptions::new().dim(dims).correction(correction)),
        "std" => a.std(VarOptions::new().dim(dims).correction(correction)),
        "logsumexp" if keep => a.logsumexp_keepdim(dims),
        "logsumexp" => a.logsumexp(dims),
        "nansum" if keep => a.nansum_keepdim(dims),
        "nansum" => a.nansum(dims),
        "nanmean" if keep => a.nanmean_keepdim(dims),
        "nanmean" => a.nanmean(dims),
        "count_nonzero" => a.count_nonzero(dims),
        "vector_norm" if keep => a.vector_norm_keepdim(VectorNormOptions::new().ord(ord).dim(dims)),
        "vector_norm" => a.vector_norm(VectorNormOptions::new().ord(ord).dim(dims)),
        "norm" => a.norm(NormOptions::new().p(ord).dim(dims)),
        "cdist" => a.cdist(args.tensor(1)?, ()),
        _ => {
            a.diff(DiffOptions::new().n(args.int("n").unwrap_or(1) as usize).dim(args.int("dim")?))
        }
    }
}
