//! CPU implementations of matrix products.

use std::cell::Cell;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use gemm_common::Parallelism;
use warpline_cuda_sys_safe::HostLaunch;

use super::sum::Summed;
use super::{Product, Steps, vector};
use crate::math::{Convert, vectorized};
use warpline_runtime::host::{self, GRAIN, HostElement, Number, SharedPtr};

/// Minimum number of multiplications for which several threads are faster than one.
const PARALLEL_FROM: u64 = 1 << 17;

/// Maximum number of rows and of columns of the result per call of `gemm`. The packing buffers of
/// `gemm` grow with them, and a failed allocation there aborts the process.
const MAX_GEMM: u64 = 1 << 14;

/// Rows, columns and depth of the blocks in which half-width floats are converted to `f32`. The
/// buffers thus stay small even if an operand is expanded to a huge size.
const BLOCK: u64 = 1024;

/// Columns of a row of integers that are summed at a time.
const SUMS: u64 = 1024;

/// A multiplication routine of `gemm`: sizes, then for each matrix a pointer, the stride between
/// columns and the stride between rows.
type Multiply<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    Parallelism,
);

/// A float dtype whose products the `gemm` crates compute. Only `gemm-f32` and `gemm-f64` are used,
/// because the crates for complex numbers take long to build.
pub(super) trait GemmFloat: Summed + From<bool> {
    fn multiply() -> Multiply<Self>;
}

impl GemmFloat for f32 {
    fn multiply() -> Multiply<Self> {
        gemm_f32::gemm::f32::get_gemm_fn()
    }
}

impl GemmFloat for f64 {
    fn multiply() -> Multiply<Self> {
        gemm_f64::gemm::f64::get_gemm_fn()
    }
}

/// Splits a dimension into parts of at most `most`. Yields the beginning and the length of each
/// part.
fn parts(size: u64, most: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..size.div_ceil(most)).map(move |i| (i * most, most.min(size - i * most)))
}

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are `a`, `b` and the
/// result, of `T`.
pub(super) unsafe fn floats<T: GemmFloat>(launch: &HostLaunch<'_>, p: &Product) {
    let [a, b, c] = [0, 1, 2].map(|i| SharedPtr::<T>::operand(launch, i));
    if vector::is_matrix_vector(p) {
        // SAFETY: the launch declares operands of these sizes and strides.
        return unsafe { vector::floats(launch.parallel, p, [a, b], c) };
    }
    let product = |batch: i64, parallel: bool| {
        for (row, m) in parts(p.m, MAX_GEMM) {
            for (column, n) in parts(p.n, MAX_GEMM) {
                let (row, column) = (row as i64, column as i64);
                let (a, b) = (a.at(p.a.at(batch, row, 0)), b.at(p.b.at(batch, 0, column)));
                let c = c.at(p.c.at(batch, row, column));
                // SAFETY: the block is within the operands, which the launch declares with these
                // sizes and strides.
                unsafe {
                    gemm([m, n, p.k], parallel, (a, p.a), (b, p.b), (c, p.c), false);
                }
            }
        }
    };
    // With enough products in the batch, each thread computes whole products.
    if launch.parallel && p.batch >= 2 * host::thread_count() as u64 {
        let each = p.m.saturating_mul(p.n).saturating_mul(p.k).max(1);
        let grain = (PARALLEL_FROM / each).max(1) as usize;
        return host::parallel_for(true, p.batch as usize, grain, |batches| {
            for batch in batches {
                product(batch as i64, false);
            }
        });
    }
    for batch in 0..p.batch as i64 {
        product(batch, launch.parallel);
    }
}

/// Computes products of half-width floats in `f32`, with a result of `R`.
///
/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are `a` and `b` (`T`),
/// and the result (`R`).
pub(super) unsafe fn halves<T, R>(launch: &HostLaunch<'_>, p: &Product)
where
    T: Summed<Compute = f32>,
    R: HostElement<Compute = f32>,
{
    let [a, b] = [0, 1].map(|i| SharedPtr::<T>::operand(launch, i));
    let c = SharedPtr::<R>::operand(launch, 2);
    let parallel = launch.parallel;
    if vector::is_matrix_vector(p) {
        // SAFETY: the launch declares operands of these sizes and strides.
        return unsafe { vector::floats(parallel, p, [a, b], c) };
    }
    let [most_m, most_n, most_k] = [p.m, p.n, p.k].map(|size| size.min(BLOCK) as usize);
    let (mut x, mut y) = (vec![0f32; most_m * most_k], vec![0f32; most_k * most_n]);
    let mut z = vec![0f32; most_m * most_n];
    for batch in 0..p.batch as i64 {
        for (row, m) in parts(p.m, BLOCK) {
            for (column, n) in parts(p.n, BLOCK) {
                z.fill(0.0);
                for (i, k) in parts(p.k, BLOCK) {
                    // SAFETY: the blocks are within the operands, and the buffers have room for a
                    // block.
                    unsafe {
                        // If `k` fits in one block, `x` keeps the row's block for all columns, so
                        // convert it only at the first.
                        if column == 0 || p.k > BLOCK {
                            widen(parallel, a, p.a, [batch as u64, row, i], [m, k], &mut x);
                        }
                        widen(parallel, b, p.b, [batch as u64, i, column], [k, n], &mut y);
                        let (x, y) =
                            ((x.as_mut_ptr(), row_major(k)), (y.as_mut_ptr(), row_major(n)));
                        gemm([m, n, k], parallel, x, y, (z.as_mut_ptr(), row_major(n)), true);
                    }
                }
                let z = &z;
                host::parallel_for(parallel, m as usize, grain(n), |rows| {
                    for r in rows {
                        let sums = &z[r * n as usize..][..n as usize];
                        if p.c.column == 1 {
                            let to = c.at(p.c.at(batch, row as i64 + r as i64, column as i64));
                            // SAFETY: the result has this row, which belongs to this thread.
                            let to = unsafe { from_raw_parts_mut(to, sums.len()) };
                            vectorized(Convert(sums, to, R::put));
                            continue;
                        }
                        for (j, &sum) in (0..).zip(sums) {
                            let at = p.c.at(batch, row as i64 + r as i64, column as i64 + j);
                            // SAFETY: the result has this element, in a row that belongs to this
                            // thread.
                            unsafe { c.write(at, R::put(sum)) };
                        }
                    }
                });
            }
        }
    }
}

/// Computes `silu(first) * second` of the halves of the columns of a product. Only simulated devices use this function.
///
/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are `a`, `b` and the result, of `T`. The
/// result has half of the product's columns.
pub(super) unsafe fn gated<T: HostElement<Compute = f32>>(launch: &HostLaunch<'_>, p: &Product) {
    let [a, b, c] = [0, 1, 2].map(|i| SharedPtr::<T>::operand(launch, i));
    let (columns, half) = ((p.n / 2) as usize, p.n as i64 / 2);
    host::parallel_for(launch.parallel, p.m as usize * columns, grain(p.k), |elements| {
        for i in elements {
            let (row, column) = ((i / columns) as i64, (i % columns) as i64);
            let sum = |column: i64| {
                let products = (0..p.k as i64).map(|k| {
                    // SAFETY: the launch declares operands of these sizes and strides.
                    unsafe { a.read(p.a.at(0, row, k)).get() * b.read(p.b.at(0, k, column)).get() }
                });
                T::put(products.sum()).get()
            };
            let (gate, up) = (sum(column), sum(column + half));
            let of = T::put(gate / (1.0 + (-gate).exp()) * up);
            // SAFETY: the result has this element, which belongs to this thread.
            unsafe { c.write(p.c.at(0, row, column), of) };
        }
    });
}

/// Returns the number of rows of `columns` elements that are worth a thread.
fn grain(columns: u64) -> usize {
    GRAIN / columns.max(1) as usize
}

/// Returns the strides of a row-major matrix of `columns` columns without gaps.
fn row_major(columns: u64) -> Steps {
    Steps { batch: 0, row: columns as i64, column: 1 }
}

/// Converts a block of `rows` by `columns` elements of an operand to `f32`, row-major without gaps.
/// `first` is the matrix, row and column at which the block begins.
///
/// # Safety
/// The block is within the operand.
unsafe fn widen<T: HostElement<Compute = f32>>(
    parallel: bool,
    of: SharedPtr<T>,
    steps: Steps,
    first: [u64; 3],
    [rows, columns]: [u64; 2],
    to: &mut [f32],
) {
    let [batch, row, column] = first.map(|v| v as i64);
    let to = SharedPtr(to[..(rows * columns) as usize].as_mut_ptr());
    host::parallel_for(parallel, rows as usize, grain(columns), |rows| {
        for r in rows {
            let from = of.at(steps.at(batch, row + r as i64, column));
            if steps.column == 1 {
                let (n, to) = (columns as usize, to.at((r * columns as usize) as isize));
                // SAFETY: the row of the block is within the operand, and the row of the buffer
                // belongs to this thread.
                let (from, to) = unsafe { (from_raw_parts(from, n), from_raw_parts_mut(to, n)) };
                vectorized(Convert(from, to, T::get));
                continue;
            }
            for j in 0..columns as usize {
                // SAFETY: the caller guarantees that the block is within the operand. The row of
                // the buffer belongs to this thread.
                unsafe {
                    let value = from.offset(j as isize * steps.column as isize).read().get();
                    to.write((r * columns as usize + j) as isize, value);
                }
            }
        }
    });
}

/// Computes `c = a · b` of `m × k` by `k × n`, or `c = c + a · b` if `adds` is set.
///
/// # Safety
/// The pointers are valid for matrices of these sizes and strides.
unsafe fn gemm<T: GemmFloat>(
    [mut m, mut n, k]: [u64; 3],
    parallel: bool,
    (a, sa): (*mut T, Steps),
    (b, sb): (*mut T, Steps),
    (c, sc): (*mut T, Steps),
    adds: bool,
) {
    let large = m.saturating_mul(n).saturating_mul(k) >= PARALLEL_FROM;
    let parallel = parallel && large && host::has_threads();
    let parallelism = if parallel { Parallelism::Rayon(0) } else { Parallelism::None };
    let (mut a, mut b, mut c) = ((SharedPtr(a), sa), (SharedPtr(b), sb), (SharedPtr(c), sc));
    if c.1.column < c.1.row {
        // `gemm` is faster on column-major results. The transposed product is the product of the
        // transposed operands in reverse order.
        (m, n) = (n, m);
        std::mem::swap(&mut a, &mut b);
        for (_, steps) in [&mut a, &mut b, &mut c] {
            std::mem::swap(&mut steps.row, &mut steps.column);
        }
    }
    let run = || {
        // SAFETY: the caller guarantees that the pointers are valid for these sizes and strides.
        unsafe {
            T::multiply()(
                m as usize,
                n as usize,
                k as usize,
                c.0.at(0),
                c.1.column as isize,
                c.1.row as isize,
                adds,
                a.0.at(0),
                a.1.column as isize,
                a.1.row as isize,
                b.0.at(0),
                b.1.column as isize,
                b.1.row as isize,
                T::from(adds),
                T::from(true),
                false,
                false,
                false,
                parallelism,
            );
        }
    };
    // The pool's threads do not end, so their scratch memory is alive.
    if parallel || THREAD_ENDS.get() {
        return host::on_threads(run);
    }
    run();
    let _ = SCRATCH_END.try_with(|_| ());
}

thread_local! {
    /// Whether this thread has begun to destroy its thread-locals.
    static THREAD_ENDS: Cell<bool> = const { Cell::new(false) };
    /// Registered after `gemm`'s scratch memory, a thread-local whose use after its destruction panics. So it is
    /// destroyed before that memory.
    static SCRATCH_END: ScratchEnd = const { ScratchEnd };
}

/// Sets [`THREAD_ENDS`] when it is destroyed.
struct ScratchEnd;

impl Drop for ScratchEnd {
    fn drop(&mut self) {
        THREAD_ENDS.set(true);
    }
}

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are `a`, `b` and the
/// result, of `T`.
pub(super) unsafe fn integers<T: HostElement<Compute = T> + Number>(
    launch: &HostLaunch<'_>,
    p: &Product,
) {
    let [a, b, c] = [0, 1, 2].map(|i| SharedPtr::<T>::operand(launch, i));
    let grain = ((1 << 14) / p.n.saturating_mul(p.k).max(1)).max(1) as usize;
    let zero = T::from_bits(0);
    host::parallel_for(launch.parallel, (p.batch * p.m) as usize, grain, |rows| {
        let mut sums = [zero; SUMS as usize];
        for index in rows {
            let (batch, row) = ((index as u64 / p.m) as i64, (index as u64 % p.m) as i64);
            for (first, n) in parts(p.n, SUMS) {
                let sums = &mut sums[..n as usize];
                sums.fill(zero);
                for k in 0..p.k as i64 {
                    // SAFETY: `row` and `k` are within `a`.
                    let x = unsafe { a.read(p.a.at(batch, row, k)) };
                    for (column, sum) in (first as i64..).zip(&mut *sums) {
                        // SAFETY: `k` and `column` are within `b`.
                        let y = unsafe { b.read(p.b.at(batch, k, column)) };
                        *sum = sum.add(x.mul(y));
                    }
                }
                for (column, sum) in (first as i64..).zip(&*sums) {
                    // SAFETY: the result has this element, in a row that belongs to this thread.
                    unsafe { c.write(p.c.at(batch, row, column), *sum) };
                }
            }
        }
    });
}
