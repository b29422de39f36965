//! Rules of the elementwise ops: how a result changes with each operand.

mod activation;
mod arithmetic;
mod derivative;
mod functions;
mod select;

pub(crate) use derivative::{elementwise, elementwise_as, elementwise_in_place};
