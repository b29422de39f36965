//! Calls ops by PyTorch's name. Each family of ops has a module.

mod conv;
mod elementwise;
mod factories;
mod functional;
mod indexing;
mod order;
mod products;
mod reduce;
mod shape;
mod statistics;
mod views;

use serde_json::Value;
use warpline::{Device, Result, Tensor};

use super::args::Args;
use super::cases::Input;

/// The result of a call. `None` if the family has no op of that name.
type Outcome = Option<Result<Vec<Tensor>>>;

/// The families, one for each file.
const FAMILIES: &[fn(&str, &Args<'_>, Device) -> Outcome] = &[
    conv::call,
    factories::call,
    functional::call,
    indexing::call,
    order::call,
    products::call,
    reduce::call,
    shape::call,
    statistics::call,
    views::call,
    // Keep this family last: it accepts every name of the elementwise table.
    elementwise::call,
];

/// Calls an op. Returns `None` if no family has an op of that name.
pub(crate) fn call(op: &str, inputs: &[Input], attrs: &Value, device: Device) -> Outcome {
    let args = Args { inputs, attrs };
    FAMILIES.iter().find_map(|family| family(op, &args, device))
}

fn one(result: Result<Tensor>) -> Outcome {
    Some(result.map(|tensor| vec![tensor]))
}

fn pair(result: Result<(Tensor, Tensor)>) -> Outcome {
    Some(result.map(|(a, b)| vec![a, b]))
}
