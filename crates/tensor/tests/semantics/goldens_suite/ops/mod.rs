//! From an op's PyTorch name to the call here: each family of ops knows its own.

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

/// What a call returns; `None` if the family has no op of that name.
type Outcome = Option<Result<Vec<Tensor>>>;

/// Families, by the files that they are in.
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
    // Last, since it takes any name that the table of ops knows.
    elementwise::call,
];

/// Calls an op; `None` if there is none of that name.
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
