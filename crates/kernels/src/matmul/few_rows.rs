//! Products of at most sixteen rows by a matrix with contiguous columns, such as a linear layer's
//! input by its transposed weight, or of a matrix with contiguous rows by at most sixteen columns.
//!
//! # Algorithm
//!
//! The kernel reads the matrix once, and this read takes most of its time. A block therefore
//! computes few columns, and its threads divide the sums. Half-width floats are multiplied on
//! tensor cores, which take all rows at once. A block of 512 threads computes eight columns, and
//! the loads in flight of these threads cover the memory's latency. `float32` is multiplied in full
//! precision. A block of 128 or 256 threads computes four columns and reuses each element of the rows
//! four times.
//!
//! # Limits
//!
//! Loads are vectors of 16 bytes, so lengths, distances and offsets must be multiples of a vector. Half-width floats
//! need compute capability 8.0. From about eight rows on, `float32` products reach only half of the memory's bandwidth,
//! because the rows are read from the level 1 cache. cuBLAS is even slower.

use warpline_runtime::launch::{Grid, Kernel, blocks};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Operand, Result, Target, View, hosts};

use super::{OP, Product, cpu};
use crate::programs::{HALVES, LANES, TENSOR_CORES, committed, test_sources};

/// Maximum number of rows of a product of few rows.
const MAX_ROWS: u64 = 16;
/// Minimum number of columns for which the blocks of one product occupy a device.
const MIN_COLUMNS: u64 = 64;
/// Bytes per load.
const VECTOR: usize = 16;
/// Exclusive bound of the length of the rows and of the distance between them, so that the kernels'
/// indices fit 32 bits.
const BOUND: u64 = 1 << 27;

/// Columns of a block for half-width floats.
const HALF_COLUMNS: u64 = 8;
/// Warps of a block for half-width floats.
const HALF_WARPS: u32 = 16;
/// Columns of a block for `float32`.
const F32_COLUMNS: u64 = 4;
/// For each kernel for `float32`: rows, threads per block, loads in flight per thread and column,
/// and number of blocks for which the registers of a multiprocessor must suffice.
const F32_KERNELS: [[u32; 4]; 4] =
    [[1, 256, 2, 2], [4, 128, 2, 4], [8, 128, 1, 5], [16, 128, 1, 4]];

pub(super) static FEW_ROWS: Program =
    Program::new("few_rows", HALVES, &["narrow", "wide", "gated_narrow", "gated_wide"], |_, ty| {
        let of = Source::new().with::<Product>().push(module::ELEMENT).push(TENSOR_CORES);
        let of = of.push(&format!("#define WARPS {HALF_WARPS}\n#define DEPTH 4"));
        let kernels = ["narrow", "wide", "gated_narrow", "gated_wide"].map(|name| {
            let [wide, gated] = ["wide", "gated"].map(|part| name.contains(part));
            format!("FEW_ROWS({name}, {ty}, {wide}, {gated})")
        });
        of.push(include_str!("few_rows.cuh")).push(&kernels.join("\n"))
    })
    .with_ptx(committed);

pub(super) static FEW_ROWS_FLOATS: Program =
    Program::new("few_rows_floats", &["f32"], &["1", "4", "8", "16"], |_, _| {
        let of = Source::new().with::<Product>().push(module::ELEMENT).push(LANES);
        let of = of.push(&format!("#define COLUMNS {F32_COLUMNS}"));
        let kernels = F32_KERNELS.map(|[rows, threads, depth, blocks]| {
            format!("FEW_ROWS({rows}, {threads}, {depth}, {blocks})")
        });
        of.push(include_str!("few_rows.cuh")).push(&kernels.join("\n"))
    })
    .with_ptx(committed);

// SAFETY: `FewRows::new` chooses the kernel and the `Product`: that of `matmul`, or its transpose, for
// which `launch` exchanges the operands. It checks that the rows of the left operand and the columns of
// the right one consist of whole, aligned vectors. Each element of the result is written by one thread.
static HALF: [Kernel<Product, 3>; 2] = unsafe {
    Kernel::array(&FEW_ROWS, ["narrow", "wide"], hosts!(F16 | BF16, T => cpu::halves::<T, T>))
};
// SAFETY: as for `HALF`. `FewRows::new` checks that the right operand has the columns of `Product`, and
// `check_gated` that the result has half as many.
static GATED: [Kernel<Product, 3>; 2] = unsafe {
    let names = ["gated_narrow", "gated_wide"];
    Kernel::array(&FEW_ROWS, names, hosts!(F16 | BF16, T => cpu::gated::<T>))
};
// SAFETY: `FewRows::new` chooses the kernel and the `Product`: that of `matmul`, or its transpose, for
// which `launch` exchanges the operands. It checks that the rows of the left operand and the columns of
// the right one consist of whole, aligned vectors. Each element of the result is written by one thread.
static F32: [Kernel<Product, 3>; 4] = unsafe {
    Kernel::array(&FEW_ROWS_FLOATS, ["1", "4", "8", "16"], hosts!(F32, T => cpu::floats::<T>))
};
test_sources!(HALF, GATED, F32);

/// A product of few rows.
pub(super) struct FewRows {
    kernel: &'static Kernel<Product, 3>,
    product: Product,
    grid: Grid,
    /// Whether the product is transposed, so that the operands are exchanged.
    transposed: bool,
}

impl FewRows {
    /// Returns `None` if a kernel for few rows does not support the product, or would not be faster. If `gated`, the
    /// result is `silu(first) * second` of the halves of the product's columns.
    pub(super) fn new(
        target: Target<'_>,
        operands: [View<'_>; 2],
        out: View<'_>,
        product: &Product,
        gated: bool,
    ) -> Option<Self> {
        let Target::Cuda(_, device, _) = target else { return None };
        let dtype = operands[0].dtype;
        let transposed = product.n < product.m && !gated;
        let p = if transposed { product.transposed() } else { *product };
        let width = VECTOR / dtype.size();
        let aligned =
            |distance: i64| (0..BOUND as i64).contains(&distance) && distance % width as i64 == 0;
        let fits = p.batch == 1
            && p.m <= MAX_ROWS
            && p.n >= MIN_COLUMNS
            && p.a.column == 1
            && p.b.row == 1
            && p.k >= width as u64
            && aligned(p.k as i64)
            && (p.m == 1 || aligned(p.a.row))
            && p.b.column % width as i64 == 0
            && operands.iter().all(|view| view.layout.offset().is_multiple_of(width))
            && out.dtype == dtype;
        if !fits {
            return None;
        }
        let (kernel, columns, threads) = match dtype {
            DType::F16 | DType::BF16 if device.properties().compute_capability >= (8, 0) => {
                let kernels = if gated { &GATED } else { &HALF };
                (&kernels[usize::from(p.m > 8)], HALF_COLUMNS, HALF_WARPS * 32)
            }
            DType::F32 if !gated => {
                let at = F32_KERNELS.iter().position(|&[rows, ..]| p.m <= u64::from(rows))?;
                (&F32[at], F32_COLUMNS, F32_KERNELS[at][1])
            }
            _ => return None,
        };
        let grid = Grid::new([blocks(p.n.div_ceil(columns) as usize), 1, 1], threads);
        Some(Self { kernel, product: p, grid, transposed })
    }

    /// Enqueues the product. `operands` are those of `matmul`.
    #[track_caller]
    pub(super) fn launch(&self, target: Target<'_>, operands: [Operand<'_>; 3]) -> Result<()> {
        let [a, b, out] = operands;
        let operands = if self.transposed { [b, a, out] } else { [a, b, out] };
        self.kernel.launch(target, OP, &operands, &self.product, self.grid)
    }
}
