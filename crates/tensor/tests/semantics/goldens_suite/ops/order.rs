//! Cumulative functions, and functions that reorder, sort, select, search or count elements.

use warpline::{Device, HistcOptions, SortOptions, TopkOptions, UniqueOptions, isin, searchsorted};

use super::{Args, Outcome, one, pair};

pub(super) fn call(op: &str, args: &Args<'_>, _device: Device) -> Outcome {
    let a = args.tensor(0);
    let dim = || args.int("dim");
    let keeps = args.flag("keepdim");
    match op {
        "cumsum" => one(a.and_then(|a| a.cumsum(dim()?))),
        "cumprod" => one(a.and_then(|a| a.cumprod(dim()?))),
        "cummax" => pair(a.and_then(|a| a.cummax(dim()?))),
        "cummin" => pair(a.and_then(|a| a.cummin(dim()?))),
        "flip" => one(a.and_then(|a| a.flip(args.ints("dims")))),
        "roll" => one(a.and_then(|a| a.roll(args.ints("shifts"), args.ints("dims")))),
        "sort" => pair(a.and_then(|a| {
            a.sort(SortOptions::new().dim(dim()?).descending(args.flag("descending")))
        })),
        "argsort" => one(a.and_then(|a| {
            a.argsort(SortOptions::new().dim(dim()?).descending(args.flag("descending")))
        })),
        "topk" => pair(a.and_then(|a| {
            let largest = args.attrs["largest"].as_bool().unwrap_or(true);
            a.topk(args.int("k")? as usize, TopkOptions::new().dim(dim()?).largest(largest))
        })),
        "kthvalue" => pair(a.and_then(|a| match args.int("k")? as usize {
            k if keeps => a.kthvalue_keepdim(k, dim()?),
            k => a.kthvalue(k, dim()?),
        })),
        "median" if keeps => pair(a.and_then(|a| a.median_keepdim(dim()?))),
        "median" => pair(a.and_then(|a| a.median(dim()?))),
        "searchsorted" => one(a.and_then(|a| searchsorted(a, args.tensor(1)?, args.flag("right")))),
        "isin" => one(a.and_then(|a| isin(a, args.tensor(1)?))),
        "histc" => one(a.and_then(|a| {
            let bound = |name: &str| args.attrs[name].as_f64().unwrap_or(0.0);
            a.histc(
                HistcOptions::new()
                    .bins(args.int("bins").unwrap_or(100) as usize)
                    .min(bound("min"))
                    .max(bound("max")),
            )
        })),
        "bucketize" => one(a.and_then(|a| a.bucketize(args.tensor(1)?, args.flag("right")))),
        "unique" | "unique_consecutive" => Some(a.and_then(|a| {
            let (inverse, counts) = (args.flag("return_inverse"), args.flag("return_counts"));
            let (values, inverse, counts) = if op == "unique" {
                a.unique(UniqueOptions::new().return_inverse(inverse).return_counts(counts))?
            } else {
                a.unique_consecutive(
                    UniqueOptions::new().return_inverse(inverse).return_counts(counts),
                )?
            };
            Ok([Some(values), inverse, counts].into_iter().flatten().collect())
        })),
        _ => None,
    }
}
