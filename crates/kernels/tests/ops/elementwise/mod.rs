//! Tests of elementwise ops and of the backward passes that the table declares.

mod backward;
mod binary;
mod converting;
mod numbers;
mod table;
mod unary;
