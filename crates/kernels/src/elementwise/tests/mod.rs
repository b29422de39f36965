//! Ops of the table, against plain arithmetic.

mod binary;
mod table;
mod unary;
