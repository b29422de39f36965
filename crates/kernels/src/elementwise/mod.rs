//! Ops that compute each element of the result from the same element of their operands.
//!
//! An op is an entry of a table ([`table`]): name, dtypes, the expressions of CUDA and of the CPU, and the formulas of
//! its gradients ([`Backward`]). Kernels (`cuda.rs`) and loops (`host.rs`) are the same for all ops.

mod activation;
mod arithmetic;
mod backward;
mod bitwise;
mod comparison;
mod cuda;
mod division;
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
use std::panic::Location;

use warpline_cuda_sys_safe::HostKernel;
use warpline_runtime::module::Program;
use warpline_runtime::{DType, Error, Result, iter};

pub use activation::*;
pub use arithmetic::*;
pub use backward::{Backward, apply_backward};
pub use bitwise::*;
pub use comparison::*;
pub use division::*;
pub use exponential::*;
pub use extremes::*;
pub use formula::{Formula, MAX_OPERANDS, Step};
pub use gamma::*;
pub use gradient::*;
pub use logical::*;
pub use rounding::*;
pub use run::{Arg, apply};
pub use select::*;
pub use trigonometric::*;

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
    table().map(|op| &op.program).chain(backward::fused().iter().map(|backward| backward.program()))
}

/// An op's entry.
#[derive(Debug)]
pub struct Op {
    name: &'static str,
    inputs: &'static [Input],
    dtypes: DTypes,
    output: Output,
    /// CUDA's expression of the inputs, of one type `C` in which they are computed.
    cuda: &'static str,
    /// Whether that is a few instructions.
    short: bool,
    host: fn(DType) -> Option<Host>,
    rounds: NumberRounding,
    backward: Option<Backward>,
    program: Program,
}

/// The CPU implementation of an op for a dtype.
#[derive(Clone, Copy, Debug)]
struct Host {
    /// For operands that lie alike, and for all others.
    kernels: [HostKernel; 2],
    slices: Slices,
}

/// Computes an op of slices of the compute type: pointers to the inputs, then the pointer to the result, whose bools are
/// numbers of the compute type, and the number of elements.
type Slices = unsafe fn(&[*const u8], *mut u8, usize);

/// An operand of an entry.
#[derive(Clone, Debug)]
struct Input {
    /// Name in CUDA's expression.
    name: &'static str,
    /// Whether it is a condition. The other operands have the dtype that is computed in.
    is_bool: bool,
    /// Values that tests sample.
    domain: Range<f64>,
}

/// Whether kernels for halves round a number operand to the dtype first. PyTorch's kernels do if their function
/// takes elements, as in `pow`. Those of `mul` take the wider type in which halves are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberRounding {
    /// Only in comparisons, which always round.
    Never,
    /// On the CPU alone. PyTorch's CUDA kernel takes the number in `float32`.
    OnCpu,
    /// On every device.
    Always,
}

/// The dtypes that an op is computed in: a range of [`DType::ALL`].
#[derive(Clone, Copy, Debug)]
struct DTypes {
    first: DType,
    last: DType,
    /// Whether integers and bools are computed in `f32`.
    converts: bool,
}

const ALL: DTypes = DTypes { first: DType::Bool, last: DType::F64, converts: false };
const NUMBERS: DTypes = DTypes { first: DType::U8, ..ALL };
const FLOATS: DTypes = DTypes { first: DType::F16, ..ALL };
/// Integers of any width.
const INTEGERS: DTypes = DTypes { first: DType::U8, last: DType::I64, converts: false };
/// Integers and bools.
const INTEGRAL: DTypes = DTypes { first: DType::Bool, ..INTEGERS };
/// Floats that are computed in as they are.
const WIDE_FLOATS: DTypes = DTypes { first: DType::F32, ..ALL };
/// Floats, which others are converted to.
const TO_FLOATS: DTypes = DTypes { converts: true, ..FLOATS };

impl DTypes {
    const fn variants(self) -> &'static [&'static str] {
        let (_, from) = DType::SUFFIXES.split_at(self.first as usize);
        from.split_at(self.last as usize - self.first as usize + 1).0
    }

    fn variant(self, dtype: DType) -> usize {
        dtype as usize - self.first as usize
    }
}

/// What the result's elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Output {
    /// Of the dtype that is computed in.
    Same,
    /// Bools. Numbers among the operands are rounded to the dtype first, as PyTorch compares.
    Bool,
}

impl Op {
    /// PyTorch's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The formulas of the op's gradients. `None` for an op that is not differentiable.
    #[must_use]
    pub const fn backward(&self) -> Option<&Backward> {
        self.backward.as_ref()
    }

    /// Whether an operand is a condition: bools, whatever the others are.
    #[must_use]
    pub fn is_condition(&self, operand: usize) -> bool {
        self.inputs.get(operand).is_some_and(|input| input.is_bool)
    }

    /// Returns a range of an operand for tests to sample. The op is defined there, and differentiable but for single
    /// points, such as 0 for `relu`. Default: -2 to 2.
    #[must_use]
    pub fn domain(&self, operand: usize) -> Range<f64> {
        self.inputs.get(operand).map_or(0.0..0.0, |input| input.domain.clone())
    }

    /// How many operands it has.
    #[must_use]
    pub const fn inputs(&self) -> usize {
        self.inputs.len()
    }

    /// The dtype that operands are converted to, and the result's, for operands that meet in
    /// `common` ([`DType::promote`], [`result_type`](warpline_runtime::Scalar::result_type)).
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] where PyTorch has no such op of the dtype.
    #[track_caller]
    pub fn dtypes(&self, common: DType) -> Result<(DType, DType)> {
        let compute = if (self.dtypes.first..=self.dtypes.last).contains(&common) {
            common
        } else if self.dtypes.converts {
            DType::F32
        } else {
            return Err(Error::UnsupportedDType {
                location: Location::caller(),
                op: self.name,
                dtype: common,
            });
        };
        Ok((compute, if self.output == Output::Bool { DType::Bool } else { compute }))
    }

    /// Elements that a thread of the flat kernel takes: 16 bytes, but of the narrowest fewer where that takes
    /// long.
    fn vector(&self, dtype: DType) -> usize {
        let most = if self.inputs.len() == 1 && dtype.size() == 1 { 4 } else { 8 };
        iter::vector_width(dtype.size()).min(most)
    }

    /// Elements that a thread of the strided kernel takes: of halves and bytes more than four make it faster,
    /// but the driver compiles a kernel on first use, and each element of a run adds to that.
    fn run(&self, dtype: DType) -> usize {
        let most = if self.short && dtype != DType::Bool { 8 } else { 4 };
        self.vector(dtype).min(most)
    }
}

/// Whether CUDA's expression of so many inputs is a few instructions: no more than operators, and no division.
const fn is_short(cuda: &str, inputs: usize) -> bool {
    let mut i = 0;
    while i < cuda.len() {
        if matches!(cuda.as_bytes()[i], b'(' | b'/') {
            return false;
        }
        i += 1;
    }
    inputs <= 2
}
