//! Ops that compute each element of the result from the same element of their operands.
//!
//! An op is an entry of a table ([`table`]): its name, dtypes, the expressions of CUDA and of the
//! CPU, and the formulas of its gradients ([`Backward`]). Kernels (`cuda.rs`) and loops (`host.rs`)
//! are the same for all ops. [`elementwise_ops!`](crate::elementwise_ops) declares entries, in this
//! crate and in others; the caller's `unsafe` vouches for the CUDA expression.
//!
//! Operands of other dtypes are converted as they are read, and results as they are written
//! ([`apply`]), on a GPU by a third kernel of each op. The façade chooses the common dtype, because
//! it depends on which operands are tensors without dimensions.
//!
//! # Why a value is written twice and its gradient once
//!
//! A value is one expression in CUDA and one in Rust. A single generic function, called with
//! numbers on the CPU and traced into CUDA, would save the second text. But for most entries the
//! two texts differ for a reason: the CPU has functions over whole slices (`math`), CUDA has
//! out-of-line functions for each type so that a first use compiles fast, and both follow PyTorch's
//! roundings on their side. These differences would become overrides beside the traced function.
//! Only a GPU can compare the two texts; the tests `gpu_table` and `gpu_a_gpu_agrees_with_the_cpu`
//! do.
//!
//! A gradient has no such differences. Written as a list of entries, it serves four readers: CUDA
//! prints it, the CPU runs it over slices, the façade evaluates it with recorded ops, and
//! [`Formula::uses`] finds the tensors to save.

mod activation;
mod arithmetic;
mod backward;
mod bitwise;
mod comparison;
mod cuda;
mod division;
#[doc(hidden)]
pub mod entry;
mod exponential;
mod extremes;
mod formula;
mod functions;
mod gamma;
mod gradient;
mod host;
mod integer;
mod logical;
mod real;
mod rounding;
mod run;
mod select;
mod table;
#[cfg(test)]
mod tests;
mod trigonometric;

use std::ops::Range;

use warpline_runtime::module::Program;
use warpline_runtime::{DType, ErrorKind, Result, iter};

pub use activation::*;
pub use arithmetic::*;
pub use backward::{Backward, apply_backward};
pub use bitwise::*;
pub use comparison::*;
pub use division::*;
pub use entry::Rule;
pub use exponential::*;
pub use extremes::*;
pub use formula::{Condition, Expr, Formula, MAX_OPERANDS, Step};
pub use gamma::*;
pub use gradient::*;
pub use logical::*;
pub use rounding::*;
pub use run::{Arg, apply};
pub use select::*;
pub use trigonometric::*;

use entry::{Entry, Output};

/// The entries, a file after the other.
const FILES: &[&[&Op]] = &[
    activation::OPS,
    arithmetic::OPS,
    bitwise::OPS,
    comparison::OPS,
    division::OPS,
    exponential::OPS,
    extremes::OPS,
    gamma::OPS,
    gradient::OPS,
    logical::OPS,
    rounding::OPS,
    select::OPS,
    trigonometric::OPS,
];

/// Every op of the table.
pub fn table() -> impl Iterator<Item = &'static Op> {
    FILES.iter().copied().flatten().copied()
}

pub(crate) fn programs() -> impl Iterator<Item = &'static Program> {
    table().map(Op::program).chain(backward::fused().map(Backward::program))
}

/// An op: an entry of the table, or one that [`elementwise_ops!`](crate::elementwise_ops) declares in another crate.
#[derive(Debug)]
pub struct Op {
    entry: Entry,
}

impl Op {
    /// Makes an op of its declaration.
    ///
    /// # Safety
    /// CUDA's expression computes a value from the operands, ends, and has no other effect. The sources of the program are those
    /// of [`entry`], and its committed PTX was made from them. `host` has the kernels of [`entry`] for as many inputs of the dtype.
    #[doc(hidden)]
    #[must_use]
    pub const unsafe fn new(entry: Entry) -> Self {
        Self { entry }
    }

    /// The program of the op, with a variant for each dtype that it is computed in.
    #[must_use]
    pub const fn program(&self) -> &Program {
        &self.entry.program
    }

    /// PyTorch's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.entry.name
    }

    /// The formulas of the op's gradients. `None` for an op that is not differentiable.
    #[must_use]
    pub const fn backward(&self) -> Option<&Backward> {
        self.entry.backward.as_ref()
    }

    /// Whether callers follow a rule for the op's operands.
    #[must_use]
    pub fn has_rule(&self, rule: Rule) -> bool {
        self.entry.rules.contains(&rule)
    }

    /// Whether the result is of bools.
    #[must_use]
    pub fn returns_bools(&self) -> bool {
        self.entry.output == Output::Bool
    }

    /// Whether an operand is a condition: bools, whatever the others are.
    #[must_use]
    pub fn is_condition(&self, operand: usize) -> bool {
        self.entry.inputs.get(operand).is_some_and(|input| input.is_bool)
    }

    /// Returns a range of an operand for tests to sample. The op is defined there, and differentiable but for single
    /// points, such as 0 for `relu`. Default: -2 to 2.
    #[must_use]
    pub fn domain(&self, operand: usize) -> Range<f64> {
        self.entry.inputs.get(operand).map_or(0.0..0.0, |input| input.domain.clone())
    }

    /// How many operands it has.
    #[must_use]
    pub const fn inputs(&self) -> usize {
        self.entry.inputs.len()
    }

    /// The dtype that operands are converted to, and the result's, for operands that meet in
    /// `common` ([`DType::promote`], [`result_type`](warpline_runtime::Scalar::result_type)).
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedDType`] where PyTorch has no such op of the dtype.
    #[track_caller]
    pub fn dtypes(&self, common: DType) -> Result<(DType, DType)> {
        let compute = if (self.entry.dtypes.first..=self.entry.dtypes.last).contains(&common) {
            common
        } else if self.entry.dtypes.converts {
            DType::F32
        } else {
            return Err(ErrorKind::UnsupportedDType { dtype: common }.of(self.entry.name));
        };
        Ok((compute, if self.entry.output == Output::Bool { DType::Bool } else { compute }))
    }

    /// Elements that a thread of the flat kernel takes: 16 bytes, but of the narrowest fewer where that takes
    /// long.
    fn vector(&self, dtype: DType) -> usize {
        let most = if self.entry.inputs.len() == 1 && dtype.size() == 1 { 4 } else { 8 };
        iter::vector_width(dtype.size()).min(most)
    }

    /// Elements that a thread of the strided kernel takes: of halves and bytes more than four make it faster,
    /// but the driver compiles a kernel on first use, and each element of a run adds to that.
    fn run(&self, dtype: DType) -> usize {
        let most = if self.entry.short && dtype != DType::Bool { 8 } else { 4 };
        self.vector(dtype).min(most)
    }
}
