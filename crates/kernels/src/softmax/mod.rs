//! Softmax and its logarithm over one dimension.

mod cpu;
#[cfg(test)]
mod tests;

use std::panic::Location;

use bytemuck::{Pod, Zeroable};
use smallvec::SmallVec;
use warpline_cuda_sys_safe::HostKernel;

use crate::programs::{FLOATS, committed};
use warpline_runtime::cuda_struct;
use warpline_runtime::launch::{self, Call, Code};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::overlap::{self, Overlap};
use warpline_runtime::{DType, Error, Result, Target, View};

/// Dimensions besides the one that a kernel can tell apart.
const MAX_DIMS: usize = 16;

/// Threads per block.
const BLOCK: u32 = 256;

/// Blocks at most; each loops over rows.
const MAX_BLOCKS: usize = 1 << 20;

pub(crate) const PROGRAMS: &[&Program] = &[&SOFTMAX];

static SOFTMAX: Program = Program::new("softmax", FLOATS, &[""], |_, ty| {
    let of = Source::new().with::<Rows>().add(module::ELEMENT);
    of.add(include_str!("softmax.cuh")).add(&format!("SOFTMAX({ty})"))
})
.with_ptx(committed);

/// Strides in elements; dimensions from the innermost out.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Rows {
    rows: u64,
    size: u64,
    source_step: i64,
    result_step: i64,
    log: u64,
    ndim: u64,
    sizes: [u64; MAX_DIMS],
    source: [i64; MAX_DIMS],
    result: [i64; MAX_DIMS],
}

cuda_struct!(Rows { rows, size, source_step, result_step, log, ndim, sizes, source, result });

impl Rows {
    /// Where a row's first elements are in the source and in the result.
    fn row(&self, mut row: usize) -> (isize, isize) {
        let (mut source, mut result) = (0, 0);
        for d in 0..self.ndim as usize {
            let size = self.sizes[d] as usize;
            let i = (row % size) as isize;
            source += i * self.source[d] as isize;
            result += i * self.result[d] as isize;
            row /= size;
        }
        (source, result)
    }
}

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
    out.check_writable(op)?;
    for view in [a, out] {
        view.check_inside(op)?;
    }
    let item = a.dtype.size();
    if a.storage.same_as(out.storage)
        && overlap::between((a.layout, item), (out.layout, item)) == Overlap::Some
    {
        return Err(Error::OverlappingOperands { op });
    }
    if a.numel() == 0 {
        return Ok(());
    }
    let params = params(op, a, dim, out, log)?;
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

fn params(op: &'static str, a: View<'_>, dim: usize, out: View<'_>, log: bool) -> Result<Rows> {
    let mut params = Rows::zeroed();
    (params.size, params.log) = (1, log.into());
    let mut dims: SmallVec<[(usize, isize, isize); 6]> = SmallVec::new();
    for d in (0..a.sizes().len()).rev() {
        let (size, source, result) = (a.sizes()[d], a.strides()[d], out.strides()[d]);
        if d == dim {
            params.size = size as u64;
            (params.source_step, params.result_step) = (source as i64, result as i64);
            continue;
        }
        match dims.last_mut() {
            _ if size == 1 => {}
            Some((n, s, r)) if source == *s * *n as isize && result == *r * *n as isize => {
                *n *= size
            }
            _ => dims.push((size, source, result)),
        }
    }
    if dims.len() > MAX_DIMS {
        return Err(Error::TooManyDims { op, ndim: dims.len(), max: MAX_DIMS });
    }
    params.rows = dims.iter().map(|d| d.0 as u64).product();
    params.ndim = dims.len() as u64;
    for (d, (size, source, result)) in dims.into_iter().enumerate() {
        params.sizes[d] = size as u64;
        (params.source[d], params.result[d]) = (source as i64, result as i64);
    }
    Ok(params)
}
