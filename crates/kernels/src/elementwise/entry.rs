//! The parts of an op's declaration, for the macro [`elementwise_ops!`](crate::elementwise_ops).

use std::ops::Range;

use warpline_cuda_sys_safe::HostKernel;
pub use warpline_runtime as runtime;
use warpline_runtime::DType;
use warpline_runtime::iter::CONVERTING_KERNELS;
use warpline_runtime::module::{Program, Source};

pub use super::backward::{Backward, source as backward_source};
pub use super::cuda::source as op_source;
pub use super::formula::Builder;
pub use super::host::{Function, each, in_slices, kernels, slices};

/// The declaration of an op.
#[derive(Debug)]
pub struct Entry {
    pub name: &'static str,
    pub inputs: &'static [Input],
    pub dtypes: DTypes,
    pub output: Output,
    /// CUDA's expression of the inputs, of one type `C` in which they are computed.
    pub cuda: &'static str,
    /// Whether that is a few instructions.
    pub short: bool,
    pub host: fn(DType) -> Option<Host>,
    pub rounds: NumberRounding,
    pub rules: &'static [Rule],
    pub backward: Option<Backward>,
    pub program: Program,
}

/// Returns a function of elements as it is. Its type is thereby known before the function is used.
#[inline(always)]
pub fn of_elements<C, R, F: Fn([C; N]) -> R, const N: usize>(f: F) -> F {
    f
}

/// Whether no operand but the first is a condition.
pub const fn conditions_come_first(inputs: &[Input]) -> bool {
    let mut k = 1;
    while k < inputs.len() {
        if inputs[k].is_bool {
            return false;
        }
        k += 1;
    }
    true
}

/// The program of an op.
pub const fn program(
    name: &'static str,
    dtypes: DTypes,
    source: fn(&Program, &str) -> Source,
) -> Program {
    Program::new(name, dtypes.variants(), CONVERTING_KERNELS, source)
}

/// The CPU implementation of an op for a dtype.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// For operands that lie alike, and for all others.
    pub kernels: [HostKernel; 2],
    pub slices: Slices,
}

/// Computes an op of slices of the compute type: pointers to the inputs, then the pointer to the result, whose bools are
/// numbers of the compute type, and the number of elements.
pub type Slices = unsafe fn(&[*const u8], *mut u8, usize);

/// An operand of an entry.
#[derive(Clone, Debug)]
pub struct Input {
    /// Name in CUDA's expression.
    pub name: &'static str,
    /// Whether it is a condition. The other operands have the dtype that is computed in.
    pub is_bool: bool,
    /// Values that tests sample.
    pub domain: Range<f64>,
}

/// A treatment of operands that an op asks of its callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Refuse bools, also beside operands of other dtypes.
    RefusesBools,
    /// Refuse the number 0 as the second operand of integers.
    DividesIntegers,
    /// Refuse a negative number as the second operand of integers.
    RaisesIntegers,
    /// Pass a second operand without dimensions beside halves on the CPU as a number. PyTorch's CPU kernels read it in
    /// `float32`.
    WideSecond,
}

/// Whether kernels for halves round a number operand to the dtype first. PyTorch's kernels do if their function
/// takes elements, as in `pow`. Those of `mul` take the wider type in which halves are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberRounding {
    /// Only in comparisons, which always round.
    Never,
    /// On the CPU alone. PyTorch's CUDA kernel takes the number in `float32`.
    OnCpu,
    /// On every device.
    Always,
}

/// The dtypes that an op is computed in: a range of [`DType::ALL`].
#[derive(Clone, Copy, Debug)]
pub struct DTypes {
    pub(super) first: DType,
    pub(super) last: DType,
    /// Whether integers and bools are computed in `f32`.
    pub(super) converts: bool,
}

pub const ALL: DTypes = DTypes { first: DType::Bool, last: DType::F64, converts: false };
pub const NUMBERS: DTypes = DTypes { first: DType::U8, ..ALL };
pub const FLOATS: DTypes = DTypes { first: DType::F16, ..ALL };
/// Integers of any width.
pub const INTEGERS: DTypes = DTypes { first: DType::U8, last: DType::I64, converts: false };
/// Integers and bools.
pub const INTEGRAL: DTypes = DTypes { first: DType::Bool, ..INTEGERS };
/// Floats that are computed in as they are.
pub const WIDE_FLOATS: DTypes = DTypes { first: DType::F32, ..ALL };
/// Floats, which others are converted to.
pub const TO_FLOATS: DTypes = DTypes { converts: true, ..FLOATS };

impl DTypes {
    pub(super) const fn variants(self) -> &'static [&'static str] {
        let (_, from) = DType::SUFFIXES.split_at(self.first as usize);
        from.split_at(self.last as usize - self.first as usize + 1).0
    }

    pub(super) fn variant(self, dtype: DType) -> usize {
        dtype as usize - self.first as usize
    }
}

/// What the result's elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Of the dtype that is computed in.
    Same,
    /// Bools. Numbers among the operands are rounded to the dtype first, as PyTorch compares.
    Bool,
}

/// Whether CUDA's expression of so many inputs is a few instructions: no more than operators, and no division.
pub const fn is_short(cuda: &str, inputs: usize) -> bool {
    let mut i = 0;
    while i < cuda.len() {
        if matches!(cuda.as_bytes()[i], b'(' | b'/') {
            return false;
        }
        i += 1;
    }
    inputs <= 2
}
