//! Factories.

use warpline::{Device, Result, Tensor};

use super::{Args, Outcome, one};
use crate::goldens_suite::cases::number;

pub(super) fn call(op: &str, args: &Args<'_>, device: Device) -> Outcome {
    match op {
        "arange" | "linspace" | "eye" | "full" => one(factory(op, args, device)),
        _ => None,
    }
}

fn factory(op: &str, args: &Args<'_>, device: Device) -> Result<Tensor> {
    let at = |name: &str| number(&args.attrs[name]);
    let size = |name: &str| args.int(name).map(|v| v as usize);
    match op {
        "arange" => warpline::arange_start_step(at("start")?, at("end")?, at("step")?, device),
        "linspace" => warpline::linspace(at("start")?, at("end")?, size("steps")?, device),
        "eye" => warpline::eye((size("n")?, size("m").or_else(|_| size("n"))?), device),
        _ => {
            let sizes: Vec<usize> = args.ints("size").iter().map(|&n| n as usize).collect();
            warpline::full(&sizes, at("fill_value")?, device)
        }
    }
}
