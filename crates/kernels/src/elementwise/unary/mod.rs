//! `out = op(a)`.

mod cpu;
#[cfg(test)]
mod tests;

use std::panic::Location;

use bytemuck::{Pod, Zeroable};

use warpline_runtime::dispatch;
use warpline_runtime::iter::{Kernel, Op, run, vector_width};
use warpline_runtime::module;
use warpline_runtime::{DType, Error, KernelSet, Result, Target, View};

/// What is computed from one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum UnaryOp {
    /// `torch.neg`.
    Neg,
    /// `torch.abs`.
    Abs,
    /// `torch.sign`: -1, 0 or 1; 0 of NaN.
    Sign,
    /// `torch.square`.
    Square,
    /// `torch.relu`.
    Relu,
    /// `torch.floor`.
    Floor,
    /// `torch.ceil`.
    Ceil,
    /// `torch.round`: to even where two integers are as near.
    Round,
    /// `torch.exp`.
    Exp,
    /// `torch.expm1`.
    Expm1,
    /// `torch.log`.
    Log,
    /// `torch.log1p`.
    Log1p,
    /// `torch.sqrt`.
    Sqrt,
    /// `torch.rsqrt`.
    Rsqrt,
    /// `torch.reciprocal`.
    Reciprocal,
    /// `torch.sin`.
    Sin,
    /// `torch.cos`.
    Cos,
    /// `torch.tanh`.
    Tanh,
    /// `torch.erf`.
    Erf,
    /// `torch.sigmoid`.
    Sigmoid,
    /// `torch.nn.functional.silu`.
    Silu,
    /// `torch.nn.functional.gelu`, by the error function.
    Gelu,
    /// `torch.nn.functional.gelu` with `approximate="tanh"`.
    GeluTanh,
}

impl UnaryOp {
    /// Every op.
    pub const ALL: [Self; 23] = [
        Self::Neg,
        Self::Abs,
        Self::Sign,
        Self::Square,
        Self::Relu,
        Self::Floor,
        Self::Ceil,
        Self::Round,
        Self::Exp,
        Self::Expm1,
        Self::Log,
        Self::Log1p,
        Self::Sqrt,
        Self::Rsqrt,
        Self::Reciprocal,
        Self::Sin,
        Self::Cos,
        Self::Tanh,
        Self::Erf,
        Self::Sigmoid,
        Self::Silu,
        Self::Gelu,
        Self::GeluTanh,
    ];

    /// PyTorch's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::GeluTanh => "gelu",
            _ => self.kernel_name(),
        }
    }

    const fn kernel_name(self) -> &'static str {
        match self {
            Self::Neg => "neg",
            Self::Abs => "abs",
            Self::Sign => "sign",
            Self::Square => "square",
            Self::Relu => "relu",
            Self::Floor => "floor",
            Self::Ceil => "ceil",
            Self::Round => "round",
            Self::Exp => "exp",
            Self::Expm1 => "expm1",
            Self::Log => "log",
            Self::Log1p => "log1p",
            Self::Sqrt => "sqrt",
            Self::Rsqrt => "rsqrt",
            Self::Reciprocal => "reciprocal",
            Self::Sin => "sin",
            Self::Cos => "cos",
            Self::Tanh => "tanh",
            Self::Erf => "erf",
            Self::Sigmoid => "sigmoid",
            Self::Silu => "silu",
            Self::Gelu => "gelu",
            Self::GeluTanh => "gelu_tanh",
        }
    }

    /// Whether integers stay integers.
    const fn keeps_integers(self) -> bool {
        (self as u32) < (Self::Exp as u32)
    }

    /// The dtype that an operand of `dtype` is converted to, which is also the result's: integers
    /// go to `f32` for ops that do not keep them.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] where PyTorch has no such op of the dtype.
    pub fn dtype(self, dtype: DType) -> Result<DType> {
        match self {
            Self::Silu | Self::Gelu | Self::GeluTanh if !dtype.is_float() => {
                Err(Error::UnsupportedDType { op: self.name(), dtype })
            }
            Self::Sign | Self::Square => Ok(dtype),
            _ if self.keeps_integers() && dtype == DType::Bool => {
                Err(Error::UnsupportedDType { op: self.name(), dtype })
            }
            _ if self.keeps_integers() || dtype.is_float() => Ok(dtype),
            _ => Ok(DType::F32),
        }
    }
}

/// The kernels' arguments besides the operands.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Args {
    op: u32,
    unused: u32,
}

const INTS: [DType; 6] = [DType::Bool, DType::U8, DType::I8, DType::I16, DType::I32, DType::I64];

static INT: KernelSet = KernelSet::new(module!("unary_int"), 12, |i| {
    format!("unary_{}_{}", INTS[i / 2].suffix(), if i % 2 == 0 { "flat" } else { "strided" })
});
static F16: KernelSet = KernelSet::new(module!("unary_f16"), 24, |i| float_name(DType::F16, i));
static BF16: KernelSet = KernelSet::new(module!("unary_bf16"), 24, |i| float_name(DType::BF16, i));
static F32: KernelSet = KernelSet::new(module!("unary_f32"), 24, |i| float_name(DType::F32, i));
static F64: KernelSet = KernelSet::new(module!("unary_f64"), 24, |i| float_name(DType::F64, i));

/// A flat kernel per op, then a strided one for all.
fn float_name(dtype: DType, index: usize) -> String {
    match UnaryOp::ALL.get(index) {
        Some(op) => format!("unary_{}_{}_flat", op.kernel_name(), dtype.suffix()),
        None => format!("unary_{}_strided", dtype.suffix()),
    }
}

fn kernels(op: UnaryOp, dtype: DType) -> (&'static KernelSet, usize, usize) {
    let float = |set| (set, op as usize, UnaryOp::ALL.len());
    match dtype {
        DType::F16 => float(&F16),
        DType::BF16 => float(&BF16),
        DType::F32 => float(&F32),
        DType::F64 => float(&F64),
        _ => {
            let place = INTS.iter().position(|&d| d == dtype).unwrap_or_default();
            (&INT, place * 2, place * 2 + 1)
        }
    }
}

/// `out = op(a)`, of the same sizes, both of the dtype of [`UnaryOp::dtype`]. `out` may be `a`
/// itself.
///
/// # Errors
/// [`Error::DTypeMismatch`], [`Error::UnsupportedDType`], [`Error::ShapeMismatch`],
/// [`Error::OverlappingWrite`], [`Error::OverlappingOperands`], and what a launch can fail with.
#[track_caller]
pub fn unary(target: Target<'_>, op: UnaryOp, a: View<'_>, out: View<'_>) -> Result<()> {
    let dtype = a.dtype;
    if op.dtype(dtype)? != dtype {
        return Err(Error::UnsupportedDType { op: op.name(), dtype });
    }
    if out.dtype != dtype {
        return Err(Error::DTypeMismatch { op: op.name(), expected: dtype, actual: out.dtype });
    }
    let (set, flat, strided) = kernels(op, dtype);
    let [flat_host, strided_host] = match dtype {
        DType::F16 => cpu::float_kernels::<half::f16>(),
        DType::BF16 => cpu::float_kernels::<half::bf16>(),
        DType::F32 => cpu::float_kernels::<f32>(),
        DType::F64 => cpu::float_kernels::<f64>(),
        _ => dispatch!(dtype, all T => cpu::int_kernels::<T>()),
    };
    let described = Op {
        name: op.name(),
        set,
        flat: Kernel { index: flat, host: flat_host },
        strided: Kernel { index: strided, host: strided_host },
        vector: vector_width(dtype.size()).min(4),
        location: Location::caller(),
    };
    // SAFETY: the kernels and CPU implementations are those of the dtype just checked.
    unsafe { run(target, &described, [a, out], Args { op: op as u32, unused: 0 }) }
}
