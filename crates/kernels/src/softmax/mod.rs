//! Softmax and its logarithm over one dimension.

mod cpu;
#[cfg(test)]
mod tests;

use std::panic::Location;

use bytemuck::{Pod, Zeroable};
use warpline_cuda_sys_safe::HostKernel;

use crate::programs::{FLOATS, committed};
use warpline_runtime::cuda_struct;
use warpline_runtime::iter::Walk;
use warpline_runtime::launch::{self, Call, Code};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, Result, Target, View};

/// Threads per block.
const BLOCK: u32 = 256;

/// Blocks at most; each loops over rows.
const MAX_BLOCKS: usize = 1 << 20;

pub(crate) const PROGRAMS: &[&Program] = &[&SOFTMAX];

static SOFTMAX: Program = Program::new("softmax", FLOATS, &[""], |_, ty| {
    let of = Source::new().with::<Rows>().push(module::ELEMENT).push(module::WALK);
    of.push(include_str!("softmax.cuh")).push(&format!("SOFTMAX({ty})"))
})
.with_ptx(committed);

/// The rows, of a source and a result, and the steps along each.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Rows {
    rows: u64,
    size: u64,
    source_step: i64,
    result_step: i64,
    log: u64,
    walk: Walk<2>,
}

cuda_struct!(Rows { rows, size, source_step, result_step, log, walk });

/// `torch.softmax` over dimension `dim` of `a`, or `torch.log_softmax` where `log`, into `out` of
/// the same sizes and float dtype. The halves are computed in `f32`. `out` may be `a` itself.
///
/// # Errors
/// [`Error::UnsupportedDType`] for what is not a float, [`Error::DTypeMismatch`],
/// [`Error::ShapeMismatch`], [`Error::DimOutOfRange`], [`Error::TooManyDims`],
/// [`Error::OverlappingWrite`], [`Error::OverlappingOperands`]; otherwise as [`launch::run`].
#[track_caller]
pub fn softmax(
    target: Target<'_>,
    a: View<'_>,
    dim: usize,
    out: View<'_>,
    log: bool,
) -> Result<()> {
    let op = if log { "log_softmax" } else { "softmax" };
    let location = Location::caller();
    if out.dtype != a.dtype {
        return Err(Error::DTypeMismatch { op, expected: a.dtype, actual: out.dtype });
    }
    let unsupported = Error::UnsupportedDType { op, dtype: a.dtype };
    let (index, host): (usize, HostKernel) = match a.dtype {
        DType::F16 => (0, cpu::softmax::<half::f16>),
        DType::BF16 => (1, cpu::softmax::<half::bf16>),
        DType::F32 => (2, cpu::softmax::<f32>),
        DType::F64 => (3, cpu::softmax::<f64>),
        _ => return Err(unsupported),
    };
    if a.sizes() != out.sizes() {
        return Err(Error::ShapeMismatch {
            op,
            reason: format!("a result of {:?} for an input of {:?}", out.sizes(), a.sizes()),
        });
    }
    let ndim = a.sizes().len();
    if dim >= ndim.max(1) {
        return Err(Error::DimOutOfRange { dim: dim as isize, ndim });
    }
    launch::check_in_place(op, &[a.read(), out.write()])?;
    if a.numel() == 0 {
        return Ok(());
    }
    let params = rows(op, a, dim, out, log)?;
    let blocks = (params.rows as usize).min(MAX_BLOCKS) as u32;
    let call = Call {
        op,
        operands: &[a.read(), out.write()],
        params: bytemuck::bytes_of(&params),
        checks_indices: false,
        host,
        code: Code::Kernel {
            kernel: (&SOFTMAX, index, 0),
            grid: [blocks, 1, 1],
            block: [BLOCK, 1, 1],
            shared_bytes: 0,
        },
        location,
    };
    // SAFETY: the parameters reach the elements of both views, a row of `out` is written after
    // that row of `a` has been read, and both kernels take `Rows`.
    unsafe { launch::run(target, &call) }
}

fn rows(op: &'static str, a: View<'_>, dim: usize, out: View<'_>, log: bool) -> Result<Rows> {
    let of = |d: usize| (a.sizes()[d], [a.strides()[d], out.strides()[d]]);
    let others = (0..a.sizes().len()).rev().filter(|&d| d != dim).map(of);
    // A scalar is a row of one element.
    let (size, steps) = if a.sizes().is_empty() { (1, [0; 2]) } else { of(dim) };
    let walk = Walk::new(op, others)?;
    let [source_step, result_step] = steps.map(|step| step as i64);
    let (rows, size) = (walk.numel() as u64, size as u64);
    Ok(Rows { rows, size, source_step, result_step, log: log.into(), walk })
}
