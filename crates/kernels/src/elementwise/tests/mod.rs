//! Ops of the table, against plain arithmetic.

mod binary;
mod converting;
mod numbers;
mod table;
mod unary;
