//! Ops that compute each element of the result from the same element of their operands.
//!
//! An op is an entry of a table ([`table`]): its name, its dtypes, its expressions in CUDA and in
//! Rust, and the formulas of its gradients ([`Backward`]). All ops share the kernels (`cuda.rs`)
//! and the CPU loops (`host.rs`). [`elementwise_ops!`](crate::elementwise_ops) declares entries, in
//! this crate and in others. The `unsafe` in the declaration vouches for the CUDA expression.
//!
//! [`apply`] converts operands of other dtypes as it reads them, and results as it writes them. On
//! a GPU, each op has a kernel for this, besides the kernels for contiguous and for strided operands.
//! The caller chooses the common dtype, because that choice depends on which operands are tensors
//! without dimensions.
//!
//! # Two value expressions and one gradient formula
//!
//! A value is one expression in CUDA and one in Rust. A single generic function, called with
//! numbers on the CPU and traced into CUDA, would save the second text. But the two texts differ in
//! most entries. The CPU has functions over whole slices (`math`). CUDA has out-of-line functions
//! for each type, so that a first use compiles fast. Each side follows PyTorch's roundings on that
//! side. These differences would become overrides beside the traced function. Only a GPU can
//! compare the two texts; the tests `gpu_every_op_of_the_table_is_right` and
//! `gpu_a_gpu_agrees_with_the_cpu` do.
//!
//! A gradient has no such differences. It is a list of steps ([`Formula`]) with four uses: it is
//! printed as CUDA code, the CPU runs it over slices, the tensor crate evaluates it with recorded ops,
//! and [`Formula::uses`] finds the tensors to save.

mod activation;
mod activation_backward;
mod arithmetic;
mod backward;
mod bitwise;
mod comparison;
mod cuda;
mod cuda_functions;
mod division;
#[doc(hidden)]
pub mod entry;
mod exponential;
mod extremes;
mod formula;
mod gamma;
mod host;
mod integer;
mod logical;
mod real;
mod rounding;
mod run;
mod select;
mod table;
mod trigonometric;

use std::ops::Range;

use warpline_runtime::iter::Widths;
use warpline_runtime::module::Program;
use warpline_runtime::{DType, ErrorKind, Result};

pub use activation::*;
pub use activation_backward::*;
pub use arithmetic::*;
pub use backward::{Backward, apply_backward};
pub use bitwise::*;
pub use comparison::*;
pub use division::*;
pub use entry::OperandRule;
pub use exponential::*;
pub use extremes::*;
pub use formula::{Condition, Expr, Formula, FormulaStep, MAX_OPERANDS};
pub use gamma::*;
pub use logical::*;
pub use rounding::*;
pub use run::{Arg, apply};
pub use select::*;
pub use trigonometric::*;

use crate::autocast::Policy;
use entry::{Entry, ResultDType};

/// The entries of each file.
const FILES: &[&[&Op]] = &[
    activation::OPS,
    arithmetic::OPS,
    bitwise::OPS,
    comparison::OPS,
    division::OPS,
    exponential::OPS,
    extremes::OPS,
    gamma::OPS,
    activation_backward::OPS,
    logical::OPS,
    rounding::OPS,
    select::OPS,
    trigonometric::OPS,
];

/// Returns every op of the table.
pub fn table() -> impl Iterator<Item = &'static Op> {
    FILES.iter().copied().flatten().copied()
}

pub(crate) fn programs() -> impl Iterator<Item = &'static Program> {
    table().map(Op::program).chain(backward::fused().map(Backward::program))
}

/// An elementwise op: an entry of the table, or an op that
/// [`elementwise_ops!`](crate::elementwise_ops) declares in another crate.
#[derive(Debug)]
pub struct Op {
    entry: Entry,
}

impl Op {
    /// Creates an op from its declaration.
    ///
    /// # Safety
    /// CUDA's expression computes a value from the operands, terminates, and has no other effect.
    /// The program has the source of [`entry`], and its committed PTX was compiled from that
    /// source. `kernels` are those of the program, made by [`entry`].
    #[doc(hidden)]
    #[must_use]
    pub const unsafe fn new(entry: Entry) -> Self {
        Self { entry }
    }

    /// Returns the program of the op, which has a variant for each dtype that the op is computed
    /// in.
    #[must_use]
    pub const fn program(&self) -> &'static Program {
        self.entry.program
    }

    /// Returns PyTorch's name of the op.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.entry.name
    }

    /// Returns the treatment of the operands on a GPU in a region of autocast. On the CPU, the operands stay as they
    /// are.
    #[must_use]
    pub const fn autocast(&self) -> Policy {
        self.entry.autocast
    }

    /// Returns the formulas of the op's gradients. `None` if the op is not differentiable.
    #[must_use]
    pub const fn backward(&self) -> Option<&'static Backward> {
        self.entry.backward
    }

    /// Returns whether the op asks its callers for the given treatment of operands.
    #[must_use]
    pub fn has_rule(&self, rule: OperandRule) -> bool {
        self.entry.rules.contains(&rule)
    }

    /// Returns whether the result is boolean.
    #[must_use]
    pub fn returns_bools(&self) -> bool {
        self.entry.output == ResultDType::Bool
    }

    /// Returns whether an operand is a condition. A condition is boolean; the other operands may
    /// have another dtype.
    #[must_use]
    pub fn is_condition(&self, operand: usize) -> bool {
        self.entry.inputs.get(operand).is_some_and(|input| input.is_bool)
    }

    /// Returns the range of an operand that tests sample. The op is defined in this range, and
    /// differentiable except at isolated points, such as 0 for `relu`. Default: -2 to 2. Empty if
    /// there is no such operand.
    #[must_use]
    pub fn domain(&self, operand: usize) -> Range<f64> {
        self.entry.inputs.get(operand).map_or(0.0..0.0, |input| input.domain.clone())
    }

    /// Returns the number of operands.
    #[must_use]
    pub const fn inputs(&self) -> usize {
        self.entry.inputs.len()
    }

    /// Returns the dtype to which operands are converted, and the dtype of the result. `common` is
    /// the promoted dtype of the operands ([`DType::promote`],
    /// [`result_type`](warpline_runtime::Scalar::result_type)).
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedDType`] if PyTorch does not define the op for `common`.
    #[track_caller]
    pub fn dtypes(&self, common: DType) -> Result<(DType, DType)> {
        let compute = if self.entry.dtypes.contains(common) {
            common
        } else if self.entry.dtypes.converts {
            DType::F32
        } else {
            return Err(ErrorKind::UnsupportedDType { dtype: common }.of(self.entry.name));
        };
        Ok((compute, if self.entry.output == ResultDType::Bool { DType::Bool } else { compute }))
    }

    /// Returns the widths of the kernels.
    fn widths(&self, dtype: DType) -> Widths {
        entry::widths(self.entry.cuda, self.entry.inputs.len(), dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::entry::OpKernels;

    #[test]
    fn elementwise_ops_take_the_structs_that_their_sources_define() {
        for op in super::table() {
            let checked = match &op.entry.kernels {
                OpKernels::Unary(kernels) => kernels.check_sources(),
                OpKernels::Binary(kernels) => kernels.check_sources(),
                OpKernels::Ternary(kernels) => kernels.check_sources(),
                OpKernels::Quaternary(kernels) => kernels.check_sources(),
            };
            checked.unwrap();
        }
    }
}
