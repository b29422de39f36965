//! Reductions over any dimensions: sum, product, mean, extremes and their indices, any, all.
//!
//! `table.rs` declares each reduction once. Names, result dtypes, programs, typed kernels and CPU
//! implementations follow from the declaration.
//!
//! The CUDA code has five folds: `sum`, `prod`, `extreme`, `arg_extreme` and `truth`. A minimum
//! uses the fold of the maximum: the kernel flips the elements and the result
//! (`Flags::flips`). `fold.cuh` has the functions of folds, `reduce.cuh` implements several
//! distributions of elements over threads, and `plan.rs` chooses one of them.

#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod added;
mod cpu;
mod declaration;
mod fold;
mod plan;
#[cfg(test)]
mod plan_tests;
mod table;

#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::launch::{self, Grid};
use warpline_runtime::{DType, Error, Result, Target, View};

use crate::scratch::ScratchTensor;
use crate::turn::{scratch_operand, ticket};
use declaration::{Declaration, ReducedDType};
use plan::{Access, BLOCK, Plan, RESULTS_LIMIT};

pub(crate) use table::PROGRAMS;
pub use table::ReduceOp;

impl ReduceOp {
    /// Returns PyTorch's name of the reduction.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.declaration().name
    }

    /// Returns the dtype of the result for elements of `dtype`.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedDType`] for [`ReduceOp::Mean`] of integers or bool, and for
    /// [`ReduceOp::ArgMax`] and [`ReduceOp::ArgMin`] of bool.
    #[track_caller]
    pub fn result_dtype(self, dtype: DType) -> Result<DType> {
        self.declaration().result_dtype(dtype)
    }

    /// Returns the neutral element, repeated to eight bytes.
    #[doc(hidden)]
    #[must_use]
    pub fn neutral(self, dtype: DType) -> u64 {
        (self.declaration().neutral)(dtype)
    }
}

/// Reduces in two launches, each of which computes half of the results, because kernels count
/// results in 31 bits.
#[cold]
#[track_caller]
fn halves(
    target: Target<'_>,
    declaration: &Declaration,
    a: View<'_>,
    dims: &[usize],
    out: View<'_>,
) -> Result<()> {
    let ndim = a.sizes().len();
    let kept = (0..ndim).filter(|d| !dims.is_empty() && !dims.contains(d));
    let of_out = |d: usize| {
        let before = dims.iter().filter(|&&r| r < d).count();
        if out.sizes().len() == ndim { d } else { d - before }
    };
    let Some(dim) = kept.max_by_key(|&d| a.sizes()[d]) else { return Ok(()) };
    let size = a.sizes()[dim];
    for (start, len) in [(0, size / 2), (size / 2, size - size / 2)] {
        let from = a.layout.narrow(dim as isize, start as isize, len)?;
        let to = out.layout.narrow(of_out(dim) as isize, start as isize, len)?;
        run(target, declaration, View { layout: &from, ..a }, dims, View { layout: &to, ..out })?;
    }
    Ok(())
}

/// Reduces the dimensions `dims` of `a` into `out`. An empty `dims` means all dimensions.
///
/// `out` has the sizes of the dimensions that are not reduced, in order, or all sizes of `a` with 1
/// for each reduced dimension. The dtype of `out` is [`ReduceOp::result_dtype`]. If one dimension
/// is reduced, the indices of [`ReduceOp::ArgMax`] and [`ReduceOp::ArgMin`] are positions in this
/// dimension. If all dimensions are reduced, the index is the position among all elements in
/// row-major order.
///
/// # Errors
/// - [`ErrorKind::UnsupportedDType`] if the reduction does not support the dtype of `a`.
/// - [`ErrorKind::DTypeMismatch`] if `out` has a different dtype than [`ReduceOp::result_dtype`].
/// - [`ErrorKind::ShapeMismatch`] if `out` does not have the sizes above.
/// - [`ErrorKind::DimOutOfRange`] if `a` does not have one of the dimensions.
/// - [`ErrorKind::TooManyDims`] if the views have more than 16 dimensions after merging.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if `out` shares memory with `a`, unless both are the same
///   elements.
/// - [`ErrorKind::InvalidArgument`] if a largest or smallest element, or its index, is taken over
///   no elements; if an index is taken over several but not all dimensions; or if one result has
///   more elements than a kernel can count.
/// - The errors of allocating scratch memory and of [`Kernel::launch`](launch::Kernel::launch).
#[track_caller]
pub fn reduce(
    target: Target<'_>,
    op: ReduceOp,
    a: View<'_>,
    dims: &[usize],
    out: View<'_>,
) -> Result<()> {
    run(target, op.declaration(), a, dims, out)
}

/// Runs [`reduce`] for the declaration of a reduction.
#[track_caller]
fn run(
    target: Target<'_>,
    declaration: &Declaration,
    a: View<'_>,
    dims: &[usize],
    out: View<'_>,
) -> Result<()> {
    let (name, flags) = (declaration.name, declaration.flags);
    let expected = declaration.result_dtype(a.dtype)?;
    out.check_operand_dtype(name, "the result", expected)?;
    let indices = declaration.result == ReducedDType::Index;
    if indices && dims.len() > 1 && dims.len() < a.sizes().len() {
        return Err(Error::invalid(
            name,
            format!("takes one dimension or all of them, not {dims:?}"),
        ));
    }
    // A thread may write a result while another thread still reads the source. Source and result
    // may therefore be the same elements only if each result has a single element, at its own
    // address.
    launch::check_in_place(name, &[a.read(), out.write()])?;
    let mut plan = Plan::new(name, a, dims, out, indices)?;
    if plan.extent == 0 && flags.needs_elements {
        return Err(Error::invalid(
            name,
            format!(
                "needs at least one element to reduce, but the input has shape {:?}; reduce a dimension whose size is not 0",
                a.sizes()
            ),
        ));
    }
    if plan.outputs == 0 {
        return Ok(());
    }
    if flags.averages {
        plan.divisor = plan.extent as f64;
        // On a GPU, sums are multiplied by the reciprocal, as in PyTorch.
        plan.scale = 1.0 / plan.divisor;
    }
    if flags.flips {
        plan.flip = !0;
    }
    plan.neutral = (declaration.neutral)(a.dtype);
    let mut access = Access::Rows;
    let (mut grid, mut scratch, mut split) = ([1; 3], None, false);
    if let Target::Cuda(_, device, _) = target {
        if plan.outputs >= RESULTS_LIMIT {
            return halves(target, declaration, a, dims, out);
        }
        let item = a.dtype.size();
        let first = launch::address(name, &a)?.addr();
        access = plan.access(first, item);
        let multiprocessors = device.properties().multiprocessor_count.into();
        grid = plan.distribute(name, access, item, multiprocessors)?;
        let splits = grid[1] as usize * grid[2] as usize;
        split = splits > 1;
        if split {
            plan.ticket = ticket();
            // One counter per block in the x dimension of the grid, then one word per partial
            // result, or two words if results are indices.
            let parts = plan.outputs as usize * splits * if indices { 2 } else { 1 };
            let words = grid[0] as usize + parts;
            scratch = Some(ScratchTensor::new(target, &[words], DType::I64)?);
        }
    }
    let operands = [a.read(), out.write(), scratch_operand(scratch.as_ref(), out)];
    declaration.kernel(access, split).launch(target, name, &operands, &plan, Grid::new(grid, BLOCK))
}
