//! Rules of the elementwise ops: how a result changes with each operand.

mod activation;
mod arithmetic;
mod derivative;
mod functions;
mod select;

pub(crate) use derivative::{before_change, elementwise, elementwise_as, record_change};
