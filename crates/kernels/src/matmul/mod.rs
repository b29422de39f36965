//! Matrix products. Large products use cuBLAS if it is installed, with the stream's [`Workspace`]. Small products,
//! products of few rows (`few_rows.rs`), and products that cuBLAS does not support use this crate's kernels.

mod blas;
mod cpu;
mod few_rows;
mod sum;
#[cfg(test)]
mod tests;
mod vector;

use warpline_cuda_sys_safe::blas::Blas;

use crate::library::is_usable;
use crate::programs::{HALVES, NUMBERS, committed, test_sources};
use blas::Gemm;
use few_rows::FewRows;
use warpline_runtime::launch::{Grid, Hosts, Kernel, LibraryOp, blocks, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{
    DType, Error, ErrorKind, Layout, Operand, Result, Target, View, Workspace, cuda_struct, hosts,
};

const OP: &str = "matmul";

/// Rows and columns of a block's tile of the result.
const TILE: u64 = 64;

/// Rows and columns of a block's tile if the product is small.
const SMALL_TILE: u64 = 16;

/// Maximum number of multiplications of a product that counts as small. For such a product, cuBLAS
/// needs three times the time of a launch before it launches, and no less GPU time than this crate's
/// kernel.
const SMALL: u64 = 1 << 22;

/// Maximum length of a thread's sum in a product that counts as small.
const SMALL_DEPTH: u64 = 256;

pub(crate) const PROGRAMS: &[&Program] = &[
    &MATMUL,
    &MATMUL_SMALL,
    &MATMUL_F32,
    &MATMUL_SMALL_F32,
    &few_rows::FEW_ROWS,
    &few_rows::FEW_ROWS_FLOATS,
];

fn tiles(program: &Program, ty: &str, result: &str) -> Source {
    let of = Source::new().with::<Product>().push(module::ELEMENT).push(include_str!("matmul.cuh"));
    of.push(&format!("MATMUL({}_{ty}, {ty}, {result})", program.name()))
}

fn small_tiles(program: &Program, ty: &str, result: &str) -> Source {
    let of = Source::new().with::<Product>().push(module::ELEMENT);
    let of = of.push(&format!("#define SIDE {SMALL_TILE}")).push(include_str!("small.cuh"));
    of.push(&format!("SMALL({}_{ty}, {ty}, {result})", program.name()))
}

const HOSTS: Hosts<Product> = hosts!(U8 | I8 | I16 | I32 | I64, T => cpu::integers::<T>)
    .or(hosts!(F16 | BF16, T => cpu::halves::<T, T>))
    .or(hosts!(F32 | F64, T => cpu::floats::<T>));
const HOSTS_F32: Hosts<Product> = hosts!(F16 | BF16, T => cpu::halves::<T, f32>);

/// Declares a program with one kernel, whose results have the dtype of the operands (`Same`) or
/// `f32`.
macro_rules! product {
    ($program:ident = $name:literal, $variants:expr, $source:ident to Same => $kernel:ident) => {
        product!(@ $program = $name, $variants, |program, ty| $source(program, ty, ty) => $kernel, HOSTS);
    };
    ($program:ident = $name:literal, $variants:expr, $source:ident to F32 => $kernel:ident) => {
        product!(@ $program = $name, $variants, |program, ty| $source(program, ty, "f32") => $kernel, HOSTS_F32);
    };
    (@ $program:ident = $name:literal, $variants:expr, $source:expr => $kernel:ident, $hosts:expr) => {
        static $program: Program =
            Program::new($name, $variants, &[""], $source).with_ptx(committed);

        // SAFETY: `check` makes all `Product`s, with the sizes and strides of the launch's operands.
        // Each element of the result is written by one thread. `matmul` chooses a kernel whose
        // result has the dtype of `out`.
        static $kernel: Kernel<Product, 3> = unsafe { Kernel::new(&$program, "", $hosts) };
        test_sources!($kernel);
    };
}

product!(MATMUL = "matmul", NUMBERS, tiles to Same => TILED);
product!(MATMUL_SMALL = "matmul_small", NUMBERS, small_tiles to Same => SMALL_TILED);
product!(MATMUL_F32 = "matmul_to_f32", HALVES, tiles to F32 => TILED_F32);
product!(MATMUL_SMALL_F32 = "matmul_small_to_f32", HALVES, small_tiles to F32 => SMALL_TILED_F32);

// SAFETY: `check` makes all `Product`s, with the sizes and strides of the launch's operands. The fourth
// operand is cuBLAS's workspace, which the CPU implementation does not access.
static BY_CUBLAS: LibraryOp<Product, 4> = unsafe { LibraryOp::new(HOSTS) };
// SAFETY: `check` makes all `Product`s, with the sizes and strides of the launch's operands. The fourth
// operand is cuBLAS's workspace, which the CPU implementation does not access.
static BY_CUBLAS_F32: LibraryOp<Product, 4> = unsafe { LibraryOp::new(HOSTS_F32) };

cuda_struct! {
    /// Strides in elements: between matrices, between rows, between columns.
    struct Steps {
        batch: i64,
        row: i64,
        column: i64,
    }
}

impl Steps {
    fn of(view: &View<'_>) -> Self {
        let at = |back: usize| match view.strides().len().checked_sub(back) {
            Some(d) => view.strides()[d] as i64,
            None => 0,
        };
        Self { batch: at(3), row: at(2), column: at(1) }
    }

    fn transposed(self) -> Self {
        Self { row: self.column, column: self.row, ..self }
    }

    fn at(self, batch: i64, row: i64, column: i64) -> isize {
        (batch * self.batch + row * self.row + column * self.column) as isize
    }
}

cuda_struct! {
    /// `c[i] = a[i] · b[i]` for each `i` below `batch`, of `m × k` by `k × n`.
    struct Product {
        batch: u64,
        m: u64,
        n: u64,
        k: u64,
        a: Steps,
        b: Steps,
        c: Steps,
    }
}

impl Product {
    /// Returns the transposed product `cᵀ = bᵀ · aᵀ`, whose first operand is `b`.
    fn transposed(&self) -> Self {
        let [a, b, c] = [self.b, self.a, self.c].map(Steps::transposed);
        Self { m: self.n, n: self.m, a, b, c, ..*self }
    }

    fn is_small(&self) -> bool {
        let sums = self.m.saturating_mul(self.n).saturating_mul(self.batch);
        self.k <= SMALL_DEPTH && sums.saturating_mul(self.k.max(1)) <= SMALL
    }
}

/// Multiplies two matrices, `m × k` by `k × n` into `m × n` (`torch.mm`), or a batch of pairs of
/// matrices in tensors with a first dimension for the batch (`torch.bmm`).
///
/// `a` and `b` must have the same dtype, any except bool. `out` has this dtype, or, if `a` and `b`
/// are half-width floats, `float32` (PyTorch's `out_dtype`). Half-width floats are summed in
/// `float32`. Views may have any strides.
///
/// # Errors
/// - [`ErrorKind::UnsupportedDType`] if the dtype is bool.
/// - [`ErrorKind::DTypeMismatch`] if `b` has a different dtype than `a`, or `out` has neither this dtype nor, for
///   half-width floats, `float32`.
/// - [`ErrorKind::ShapeMismatch`] if the views do not have two or three dimensions, or if `m`, `k`,
///   `n` or the size of the batch differs between two of them.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if `out` shares memory with an operand.
/// - [`ErrorKind::Alloc`] if there is no memory for cuBLAS's workspace.
/// - [`ErrorKind::InvalidVariable`] if an environment variable names a cuBLAS library that cannot be
///   used.
/// - [`ErrorKind::Driver`] if cuBLAS fails.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn matmul(target: Target<'_>, a: View<'_>, b: View<'_>, out: View<'_>) -> Result<()> {
    let params = check(a, b, out)?;
    if out.numel() == 0 {
        return Ok(());
    }
    let small = params.is_small();
    let (kernel, tile) = match (small, out.dtype != a.dtype) {
        (true, false) => (&SMALL_TILED, SMALL_TILE),
        (true, true) => (&SMALL_TILED_F32, SMALL_TILE),
        (false, false) => (&TILED, TILE),
        (false, true) => (&TILED_F32, TILE),
    };
    kernel.check_dtype(OP, a.dtype)?;
    let operands = [a.read(), b.read(), out.write()];
    if !small && let Some(few) = FewRows::new(target, [a, b], out, &params, false) {
        return few.launch(target, operands);
    }
    if !small && launch_cublas(target, operands, &params)? {
        return Ok(());
    }
    let tiles = params.m.div_ceil(tile).saturating_mul(params.n.div_ceil(tile));
    let grid = [blocks(tiles as usize), 1, params.batch.min(65_535) as u32];
    kernel.launch(target, OP, &operands, &params, Grid::new(grid, 256))
}

/// Computes `silu(gate) * up` in one launch, where `gate` and `up` are the first and the second half of the columns of
/// the product of `a`, `m × k`, and `b`, `k × 2n`. `out` is `m × n`. The elements of `gate` and `up` are rounded to the
/// dtype, so the result equals that of a product and of [`SILU_MUL`](crate::elementwise::SILU_MUL).
///
/// Returns `false` without a launch unless a kernel supports the operands: half-width floats on a device of compute
/// capability 8.0 or newer, at most sixteen rows, and contiguous columns of `b` whose length and distance are multiples
/// of 16 bytes.
///
/// # Errors
/// - [`ErrorKind::DTypeMismatch`] if `a`, `b` and `out` have different dtypes.
/// - [`ErrorKind::ShapeMismatch`] if the views are not matrices of the sizes above.
/// - The other errors of [`matmul`].
#[track_caller]
pub fn matmul_silu_mul(
    target: Target<'_>,
    a: View<'_>,
    b: View<'_>,
    out: View<'_>,
) -> Result<bool> {
    let params = check_gated(a, b, out)?;
    if out.numel() == 0 {
        return Ok(true);
    }
    let Some(few) = FewRows::new(target, [a, b], out, &params, true) else { return Ok(false) };
    few.launch(target, [a.read(), b.read(), out.write()])?;
    Ok(true)
}

/// Launches a product by cuBLAS. Returns `false` if cuBLAS does not compute it.
#[track_caller]
fn launch_cublas(
    target: Target<'_>,
    [a, b, out]: [Operand<'_>; 3],
    params: &Product,
) -> Result<bool> {
    let Target::Cuda(runtime, device, stream) = target else { return Ok(false) };
    let dtypes @ [dtype, result] = [a.view.dtype, out.view.dtype];
    let bytes = device.cublas_workspace_bytes();
    if !runtime.uses_cublas() {
        return Ok(false);
    }
    let Some(gemm) = Gemm::new(dtypes, params, runtime.precision(), bytes) else {
        return Ok(false);
    };
    if !is_usable(OP, device, Blas::load)? {
        return Ok(false);
    }
    let workspace = Workspace::of(runtime, stream)?;
    // Only a real GPU uses the workspace. Elsewhere one byte stands for all, so that the simulator's check of footprints
    // copies no more.
    let used = if device.driver().name() == "cuda" { bytes } else { bytes.min(1) };
    let layout = Layout::contiguous(&[used])?;
    let scratch = View { storage: workspace.storage(), layout: &layout, dtype: DType::U8 };
    let op = if dtype == result { &BY_CUBLAS } else { &BY_CUBLAS_F32 };
    op.launch(target, OP, &[a, b, out, scratch.read_write()], &gemm)?;
    Ok(true)
}

/// Returns whether cuBLAS cannot read an operand with its strides. A contiguous copy and cuBLAS may
/// then be faster than this crate's kernels.
#[must_use]
pub fn needs_contiguous(view: View<'_>) -> bool {
    let [.., rows, columns] = *view.sizes() else { return false };
    !blas::takes(rows as u64, columns as u64, Steps::of(&view))
}

#[track_caller]
fn check(a: View<'_>, b: View<'_>, out: View<'_>) -> Result<Product> {
    let is_half = [DType::F16, DType::BF16].contains(&a.dtype);
    for (operand, other, or_f32) in [("the second matrix", b, false), ("the product", out, is_half)]
    {
        if other.dtype != a.dtype && !(or_f32 && other.dtype == DType::F32) {
            let (expected, actual) = (a.dtype, other.dtype);
            return Err(ErrorKind::DTypeMismatch { operand, expected, actual }.of(OP));
        }
    }
    let (batch, m, k, n) = match (a.sizes(), b.sizes(), out.sizes()) {
        (&[m, k], &[k2, n], &[m2, n2]) if (k, m, n) == (k2, m2, n2) => (1, m, k, n),
        (&[batch, m, k], &[b2, k2, n], &[b3, m2, n2])
            if (batch, batch, k, m, n) == (b2, b3, k2, m2, n2) =>
        {
            (batch, m, k, n)
        }
        (a, b, out) => {
            return Err(Error::shape(
                OP,
                format!("matrices of sizes {a:?} and {b:?} do not give a product of sizes {out:?}"),
            ));
        }
    };
    check_operands(OP, &[a.read(), b.read(), out.write()])?;
    let [batch, m, n, k] = [batch, m, n, k].map(|v| v as u64);
    Ok(Product { batch, m, n, k, a: Steps::of(&a), b: Steps::of(&b), c: Steps::of(&out) })
}

/// Checks the operands of a gated product. Returns the product of `a` and all columns of `b`.
#[track_caller]
fn check_gated(a: View<'_>, b: View<'_>, out: View<'_>) -> Result<Product> {
    out.check_dtype(OP, a.dtype)?;
    let &[_, columns] = b.sizes() else {
        return Err(Error::shape(OP, format!("a matrix must have two sizes, not {:?}", b.sizes())));
    };
    if !columns.is_multiple_of(2) {
        return Err(Error::shape(OP, format!("{columns} columns do not have two equal halves")));
    }
    let half = b.layout.narrow(1, 0, columns / 2)?;
    let product = check(a, View { layout: &half, ..b }, out)?;
    check_operands(OP, &[a.read(), b.read(), out.write()])?;
    Ok(Product { n: 2 * product.n, ..product })
}
