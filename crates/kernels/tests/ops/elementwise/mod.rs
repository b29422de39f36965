//! Ops of the table compared with plain arithmetic.

mod backward;
mod binary;
mod converting;
mod numbers;
mod table;
mod unary;
