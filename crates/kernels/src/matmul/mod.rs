//! Matrix products: cuBLAS where there is one, else a kernel of our own, as for small ones always.

mod blas;
mod cpu;
#[cfg(test)]
mod tests;
mod vector;

use std::panic::Location;

use bytemuck::{Pod, Zeroable};
use warpline_cuda_sys_safe::blas::Blas;
use warpline_cuda_sys_safe::{DevicePtr, DriverError, HostKernel, StreamHandle};

use crate::programs::{HALVES, NUMBERS, committed};
use blas::Gemm;
use warpline_runtime::cuda_struct;
use warpline_runtime::launch::{self, Call, Code};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{CudaDevice, DType, Error, ErrorKind, Result, Target, View};

const OP: &str = "matmul";

/// Rows and columns of a block's part of the result.
const TILE: u64 = 64;

/// Rows and columns of a block's part where the product is small.
const SMALL_TILE: u64 = 16;

/// Multiplications up to which a product is small: what cuBLAS does before it launches takes three times
/// as long as the launch, and no less than the GPU.
const SMALL: u64 = 1 << 22;

/// The most that a thread of a small product sums up.
const SMALL_DEPTH: u64 = 256;

pub(crate) const PROGRAMS: &[&Program] = &[&MATMUL, &MATMUL_SMALL, &MATMUL_F32, &MATMUL_SMALL_F32];

static MATMUL: Program =
    Program::new("matmul", NUMBERS, &[""], |program, ty| tiles(program, ty, ty))
        .with_ptx(committed);

static MATMUL_SMALL: Program =
    Program::new("matmul_small", NUMBERS, &[""], |program, ty| small_tiles(program, ty, ty))
        .with_ptx(committed);

/// Of halves, with a result of `f32`.
static MATMUL_F32: Program =
    Program::new("matmul_to_f32", HALVES, &[""], |program, ty| tiles(program, ty, "f32"))
        .with_ptx(committed);

static MATMUL_SMALL_F32: Program =
    Program::new("matmul_small_to_f32", HALVES, &[""], |program, ty| {
        small_tiles(program, ty, "f32")
    })
    .with_ptx(committed);

fn tiles(program: &Program, ty: &str, result: &str) -> Source {
    let of = Source::new().with::<Product>().push(module::ELEMENT).push(include_str!("matmul.cuh"));
    of.push(&format!("MATMUL({}_{ty}, {ty}, {result})", program.name()))
}

fn small_tiles(program: &Program, ty: &str, result: &str) -> Source {
    let of = Source::new().with::<Product>().push(module::ELEMENT);
    let of = of.push(&format!("#define SIDE {SMALL_TILE}")).push(include_str!("small.cuh"));
    of.push(&format!("SMALL({}_{ty}, {ty}, {result})", program.name()))
}

/// Strides in elements: from matrix to matrix, row to row, column to column.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Steps {
    batch: i64,
    row: i64,
    column: i64,
}

cuda_struct!(Steps { batch, row, column });

impl Steps {
    fn of(view: &View<'_>) -> Self {
        let at = |back: usize| match view.strides().len().checked_sub(back) {
            Some(d) => view.strides()[d] as i64,
            None => 0,
        };
        Self { batch: at(3), row: at(2), column: at(1) }
    }

    fn at(self, batch: i64, row: i64, column: i64) -> isize {
        (batch * self.batch + row * self.row + column * self.column) as isize
    }
}

/// `c[i] = a[i] · b[i]` for each of `batch`, of `m × k` by `k × n`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Product {
    batch: u64,
    m: u64,
    n: u64,
    k: u64,
    a: Steps,
    b: Steps,
    c: Steps,
}

cuda_struct!(Product { batch, m, n, k, a, b, c });

impl Product {
    fn is_small(&self) -> bool {
        let sums = self.m.saturating_mul(self.n).saturating_mul(self.batch);
        self.k <= SMALL_DEPTH && sums.saturating_mul(self.k.max(1)) <= SMALL
    }
}

/// The product of two matrices (`torch.mm`: `m × k` by `k × n` into `m × n`) or of as many pairs
/// of matrices (`torch.bmm`, with a first dimension that counts them). All of one dtype, any but
/// bool; the halves are summed in `f32`, and their result may be of it (PyTorch's `out_dtype`). Operands
/// may have any strides.
///
/// # Errors
/// [`ErrorKind::UnsupportedDType`], [`ErrorKind::DTypeMismatch`], [`ErrorKind::ShapeMismatch`],
/// [`ErrorKind::OverlappingWrite`], [`ErrorKind::OverlappingOperands`]; otherwise as [`launch::run`].
#[track_caller]
pub fn matmul(target: Target<'_>, a: View<'_>, b: View<'_>, out: View<'_>) -> Result<()> {
    let location = Location::caller();
    let params = check(a, b, out)?;
    if out.numel() == 0 {
        return Ok(());
    }
    let wide = out.dtype != a.dtype;
    let (index, host) = kernel(a.dtype, wide)?;
    let small = params.is_small();
    let gemm = match target {
        Target::Cuda(runtime, device, _) if !small && runtime.uses_cublas() => {
            match Gemm::new([a.dtype, out.dtype], &params) {
                Some(gemm) if has_cublas(device)? => Some((gemm, device)),
                _ => None,
            }
        }
        _ => None,
    };
    let library = |stream: StreamHandle, pointers: &[DevicePtr]| match &gemm {
        Some((gemm, device)) => gemm.enqueue(&**device.driver(), device.index(), stream, pointers),
        None => Ok(()),
    };
    let (program, tile) = match (small, wide) {
        (true, false) => (&MATMUL_SMALL, SMALL_TILE),
        (true, true) => (&MATMUL_SMALL_F32, SMALL_TILE),
        (false, false) => (&MATMUL, TILE),
        (false, true) => (&MATMUL_F32, TILE),
    };
    let tiles = params.m.div_ceil(tile).saturating_mul(params.n.div_ceil(tile));
    let code = if gemm.is_some() {
        Code::Library(&library)
    } else {
        Code::Kernel {
            kernel: (program, index, 0),
            grid: [launch::blocks(tiles as usize), 1, params.batch.min(65_535) as u32],
            block: [256, 1, 1],
            shared_bytes: 0,
        }
    };
    let call = Call {
        op: OP,
        operands: &[a.read(), b.read(), out.write()],
        params: bytemuck::bytes_of(&params),
        checks_indices: false,
        host,
        code,
        location,
    };
    // SAFETY: sizes and strides are those of the operands, of which all but the last are only
    // read; the result shares no memory with them.
    unsafe { launch::run(target, &call) }
}

/// Whether there is a cuBLAS. That one was named which is none is an error, since nobody would notice
/// our own kernels otherwise.
#[track_caller]
fn has_cublas(device: &CudaDevice) -> Result<bool> {
    // Any other driver runs the CPU implementation, whatever it is asked for.
    if device.driver().name() != "cuda" {
        return Ok(true);
    }
    match Blas::load() {
        Ok(_) => Ok(true),
        Err(error @ DriverError::InvalidVariable(_)) => Err(Error::driver(OP, error)),
        Err(_) => Ok(false),
    }
}

/// Whether cuBLAS cannot take an operand as it lies, so that a contiguous copy of it, and then
/// cuBLAS, may be faster than the kernel of our own.
#[must_use]
pub fn needs_contiguous(view: View<'_>) -> bool {
    let [.., rows, columns] = *view.sizes() else { return false };
    !blas::takes(rows as u64, columns as u64, Steps::of(&view))
}

#[track_caller]
fn check(a: View<'_>, b: View<'_>, out: View<'_>) -> Result<Product> {
    let is_half = [DType::F16, DType::BF16].contains(&a.dtype);
    for (other, or_f32) in [(b, false), (out, is_half)] {
        if other.dtype != a.dtype && !(or_f32 && other.dtype == DType::F32) {
            return Err(ErrorKind::DTypeMismatch { expected: a.dtype, actual: other.dtype }.of(OP));
        }
    }
    let location = Location::caller();
    let mismatch = || {
        Error::shape(
            OP,
            format!("{:?} by {:?} does not give {:?}", a.sizes(), b.sizes(), out.sizes()),
        )
        .at(location)
    };
    let (batch, m, k, n) = match (a.sizes(), b.sizes(), out.sizes()) {
        (&[m, k], &[k2, n], &[m2, n2]) if (k, m, n) == (k2, m2, n2) => (1, m, k, n),
        (&[batch, m, k], &[b2, k2, n], &[b3, m2, n2])
            if (batch, batch, k, m, n) == (b2, b3, k2, m2, n2) =>
        {
            (batch, m, k, n)
        }
        _ => return Err(mismatch()),
    };
    launch::check_operands(OP, &[a.read(), b.read(), out.write()])?;
    let [batch, m, n, k] = [batch, m, n, k].map(|v| v as u64);
    Ok(Product { batch, m, n, k, a: Steps::of(&a), b: Steps::of(&b), c: Steps::of(&out) })
}

/// The number of the kernel's variant, and its CPU implementation. The result of halves is `wide` where it is of `f32`.
#[track_caller]
fn kernel(dtype: DType, wide: bool) -> Result<(usize, HostKernel)> {
    let host: HostKernel = match dtype {
        DType::F16 if wide => return Ok((0, cpu::halves::<half::f16, f32>)),
        DType::BF16 if wide => return Ok((1, cpu::halves::<half::bf16, f32>)),
        DType::Bool => {
            return Err(ErrorKind::UnsupportedDType { dtype }.of(OP));
        }
        DType::U8 => cpu::integers::<u8>,
        DType::I8 => cpu::integers::<i8>,
        DType::I16 => cpu::integers::<i16>,
        DType::I32 => cpu::integers::<i32>,
        DType::I64 => cpu::integers::<i64>,
        DType::F16 => cpu::halves::<half::f16, half::f16>,
        DType::BF16 => cpu::halves::<half::bf16, half::bf16>,
        DType::F32 => cpu::floats::<f32>,
        DType::F64 => cpu::floats::<f64>,
    };
    Ok((dtype as usize - 1, host))
}
