//! Ops of the table, against plain arithmetic.

mod binary;
mod converting;
mod table;
mod unary;
