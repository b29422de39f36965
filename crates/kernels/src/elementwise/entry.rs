//! The components of an op's declaration, for the macro
//! [`elementwise_ops!`](crate::elementwise_ops).

use std::ops::Range;

pub use warpline_runtime as runtime;
use warpline_runtime::DType;
use warpline_runtime::iter::{CONVERTING_KERNELS, Kernels, Widths, vector_width};
use warpline_runtime::module::{Program, Source};

pub use super::backward::{Backward, BackwardKernels, BackwardPass, source as backward_source};
pub use super::cuda::source as op_source;
pub use super::formula::Builder;
pub use super::host::{Function, each, host, in_slices};
use super::run::Numbers;
use crate::autocast::Policy;

/// The declaration of an op.
#[derive(Debug)]
pub struct Entry {
    pub name: &'static str,
    pub inputs: &'static [Input],
    pub dtypes: DTypes,
    pub output: ResultDType,
    /// On GPUs. On the CPU, PyTorch lists no elementwise op.
    pub autocast: Policy,
    /// CUDA's expression of the inputs. Conditions are `bool`, all others have the compute type `C`.
    pub cuda: &'static str,
    pub kernels: OpKernels,
    /// By dtype. `None` if the op is not computed in the dtype.
    pub slices: [Option<Slices>; DType::ALL.len()],
    pub rounds: NumberRounding,
    pub rules: &'static [OperandRule],
    pub backward: Option<&'static Backward>,
    pub program: &'static Program,
}

/// Returns `f` unchanged, which fixes the type of its parameters before the first use.
#[inline(always)]
pub fn of_elements<C, R, F: Fn([C; N]) -> R, const N: usize>(f: F) -> F {
    f
}

/// Returns `false` if an operand other than the first is a condition.
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

/// Creates the program of an op.
pub const fn program(
    name: &'static str,
    dtypes: DTypes,
    source: fn(&Program, &str) -> Source,
) -> Program {
    Program::new(name, dtypes.variants(), CONVERTING_KERNELS, source)
}

/// The kernels of an op, by its number of inputs.
#[derive(Debug)]
pub enum OpKernels {
    Unary(Kernels<Numbers<1>, 2>),
    Binary(Kernels<Numbers<2>, 3>),
    Ternary(Kernels<Numbers<3>, 4>),
    Quaternary(Kernels<Numbers<4>, 5>),
}

/// A function that computes an op over slices of the compute type. The arguments are pointers to
/// the inputs, a pointer to the result, and the number of elements. A bool result is written as a
/// number of the compute type.
pub type Slices = unsafe fn(&[*const u8], *mut u8, usize);

/// An operand of an entry.
#[derive(Clone, Debug)]
pub struct Input {
    /// Name of the operand in CUDA's expression.
    pub name: &'static str,
    /// Whether the operand is a condition. All other operands have the compute dtype.
    pub is_bool: bool,
    /// Range that tests sample.
    pub domain: Range<f64>,
}

/// A treatment of operands that an op requires of its callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandRule {
    /// Return an error if an operand is a bool, whatever the dtypes of the other operands.
    RefusesBools,
    /// Return an error if the second operand is the number 0 and the operands are integers.
    DividesIntegers,
    /// Return an error if the second operand is a negative number and the operands are integers.
    RaisesIntegers,
    /// On the CPU, pass a second operand without dimensions as a number if the operands are
    /// half-width floats. PyTorch's CPU kernels read this operand in `float32`.
    WideSecond,
}

/// Whether kernels for half-width floats round a number operand to the dtype first. PyTorch rounds
/// the number if PyTorch's kernel function takes the number as an element, as for `pow`. PyTorch
/// does not round the number if the function takes it in the wider compute type, as for `mul`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberRounding {
    /// Do not round, except in comparisons, which always round.
    Never,
    /// Round on the CPU only. PyTorch's CUDA kernel takes the number in `float32`.
    OnCpu,
    /// Round on every device.
    Always,
}

/// The dtypes that an op is computed in, as a range of [`DType::ALL`].
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
/// Floats whose compute type is the element type.
pub const WIDE_FLOATS: DTypes = DTypes { first: DType::F32, ..ALL };
/// Floats; integers and bools are converted to `f32`.
pub const TO_FLOATS: DTypes = DTypes { converts: true, ..FLOATS };

impl DTypes {
    pub(super) const fn variants(self) -> &'static [&'static str] {
        DType::suffixes(self.first, self.last)
    }

    pub(super) const fn contains(self, dtype: DType) -> bool {
        dtype.is_between(self.first, self.last)
    }
}

/// The dtype of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultDType {
    /// The compute dtype.
    Same,
    /// Bool. Number operands are rounded to the dtype first, as in PyTorch's comparisons.
    Bool,
}

/// Returns the widths of the kernels of an op with `inputs` inputs.
///
/// The flat kernel takes a vector, but no more than 4 elements for unary ops on bytes. The strided
/// kernel takes as many if the op's expression is short, but no more than 4 for bools and for longer
/// expressions. There, more elements would be faster for half-width floats and bytes, but the driver
/// compiles a kernel on first use, and each element adds to the compile time.
pub const fn widths(cuda: &str, inputs: usize, dtype: DType) -> Widths {
    let vector = if inputs == 1 && dtype.size() == 1 { 4 } else { vector_width(dtype.size()) };
    let eight = is_short(cuda, inputs) && !matches!(dtype, DType::Bool);
    Widths { vector, run: if vector > 4 && !eight { 4 } else { vector } }
}

/// Returns whether CUDA's expression of `inputs` inputs is a few instructions: at most two inputs,
/// only operators, and no division.
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
