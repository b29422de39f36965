//! The iteration layer: kernels over the elements of operands of common sizes and any strides.
//!
//! A family declares its kernels once: for each dtype a *flat* one, for operands that are
//! contiguous and aligned, and a *strided* one (`runs.rs`), each with a CPU implementation that
//! takes the same parameters. Elementwise ops have a third one, for operands of other dtypes, which
//! converts as it reads and writes. [`run`] chooses between them, checks the operands, and
//! launches.

mod params;
mod runs;
mod space;
#[cfg(test)]
mod tests;
mod walk;

use std::panic::Location;

use bytemuck::Pod;
use warpline_cuda_sys_safe::HostKernel;

#[cfg(doc)]
use crate::ErrorKind;
use crate::launch::{Call, Code};
use crate::module::Program;
use crate::{Error, Layout, Operand, Result, Target, View, launch};

pub use params::Params;
pub use runs::Runs;
pub use space::{Bits, Flat, Index, Plan, Space, magic};
pub use walk::{Dim, Walk};

/// Names of the kernels of this layer's programs.
pub const KERNELS: &[&str] = &["flat", "strided"];
/// Names of the kernels of programs that also convert operands of other dtypes.
pub const CONVERTING_KERNELS: &[&str] = &["flat", "strided", "converting"];
const FLAT: usize = 0;
const STRIDED: usize = 1;
const CONVERTING: usize = 2;

/// Number of threads per block.
pub const BLOCK: u32 = 256;

/// An elementwise op on operands of one dtype. Its kernels take [`Params`] of its arguments, with
/// [`Flat`] or an [`Index`].
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// PyTorch's name of the op.
    pub name: &'static str,
    /// The program, and the number of the variant. Its first kernel is for operands that are
    /// contiguous and aligned to whole vectors, the second for all others.
    pub program: (&'static Program, usize),
    /// The CPU implementations of both kernels.
    pub host: [HostKernel; 2],
    /// Number of elements that a thread of the flat kernel processes at a time: those of a vector.
    pub vector: usize,
    /// Number of elements that a thread of the strided kernel processes at a time.
    pub run: usize,
    /// Number of results, at least 1. The results are the last views, which are written.
    pub results: usize,
    /// Whether operands have other dtypes than the kernels. The third kernel then runs, with one
    /// element per thread, and with the parameters and the CPU implementation of the strided
    /// kernel.
    pub converts: bool,
    /// Location of the op's call.
    pub location: &'static Location<'static>,
}

/// Returns the number of elements of `size` bytes that a flat kernel processes at a time: as many
/// as fit in 16 bytes, at most 8.
pub const fn vector_width(size: usize) -> usize {
    if size < 2 { 8 } else { 16 / size }
}

/// Runs an op on `N` views of the same sizes: first the operands, which are read, then the
/// [results](Op::results).
///
/// # Errors
/// - [`ErrorKind::ShapeMismatch`] if the views have different sizes.
/// - [`ErrorKind::OverlappingWrite`], [`ErrorKind::OverlappingOperands`] or
///   [`ErrorKind::OutOfStorage`] by the rules of [`launch::check_in_place`].
/// - [`ErrorKind::TooManyDims`] if the views have too many dimensions after merging.
/// - The errors of [`launch::run`].
///
/// # Safety
/// The kernels and CPU implementations must fit the views' dtypes and these arguments, and do no
/// more than read the elements of all operands and write those of the results, at the same index.
#[track_caller]
pub unsafe fn run<const N: usize, A: Pod>(
    target: Target<'_>,
    op: &Op,
    views: [View<'_>; N],
    args: A,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { run_some(target, op, views, 0, args) }
}

/// Runs an op as [`run`] does, with some views not accessed: those whose bit in `untouched` is set.
/// These are operands for which the kernels have numbers among their arguments, and unwanted
/// results. `views` has a wanted result in their place.
///
/// # Errors
/// The same as [`run`].
///
/// # Safety
/// The conditions of [`run`].
#[track_caller]
pub unsafe fn run_some<const N: usize, A: Pod>(
    target: Target<'_>,
    op: &Op,
    views: [View<'_>; N],
    untouched: u64,
    args: A,
) -> Result<()> {
    let out = views[N - 1];
    for view in &views[..N - 1] {
        if view.sizes() != out.sizes() {
            return Err(Error::shape(
                op.name,
                format!("operands of {:?} and {:?}", view.sizes(), out.sizes()),
            ));
        }
    }
    let declared = operands(op, views, untouched);
    launch::check_in_place(op.name, &declared)?;
    // SAFETY: the caller's promise.
    unsafe { run_part(target, op, views, &declared, untouched, args) }
}

/// Returns the kernels' access to each view.
fn operands<'a, const N: usize>(op: &Op, views: [View<'a>; N], untouched: u64) -> [Operand<'a>; N] {
    std::array::from_fn(|k| match views[k] {
        view if untouched >> k & 1 == 1 => view.untouched(),
        view if k + op.results >= N => view.write(),
        view => view.read(),
    })
}

/// # Safety
/// The conditions of [`run`].
#[track_caller]
unsafe fn run_part<const N: usize, A: Pod>(
    target: Target<'_>,
    op: &Op,
    views: [View<'_>; N],
    declared: &[Operand<'_>; N],
    untouched: u64,
    args: A,
) -> Result<()> {
    let sizes = views[N - 1].sizes();
    let numel = views[N - 1].numel();
    if numel == 0 {
        return Ok(());
    }
    let plan = Plan::new(sizes, views.map(|v| v.strides()));
    if !plan.fits() {
        return halves(&views, |part| {
            // SAFETY: the caller's promise, which holds for parts too.
            unsafe { run_part(target, op, part, &operands(op, part, untouched), untouched, args) }
        });
    }
    let aligned = |v: &View<'_>| v.layout.offset().is_multiple_of(op.vector);
    // SAFETY: the parameters are those the kernel and its CPU implementation take; for the rest
    // the caller's promise.
    unsafe {
        if !op.converts && plan.is_contiguous() && views.iter().all(aligned) {
            // Fewer than 2³¹, as the plan has seen.
            let params = Params::new(Flat { numel: numel as u32 }, args);
            let threads = numel.div_ceil(op.vector);
            launch_one(target, op, FLAT, declared, bytemuck::bytes_of(&params), threads)
        } else {
            let start = views[N - 1].layout.offset();
            let (kernel, index) = match op.converts {
                true => (CONVERTING, plan.index(op.name)?),
                false => (STRIDED, plan.in_runs(op.name, op.run, start)?),
            };
            let threads = if op.converts { numel } else { index.runs().threads() };
            let params = Params::new(index, args);
            launch_one(target, op, kernel, declared, bytemuck::bytes_of(&params), threads)
        }
    }
}

/// # Safety
/// The conditions of [`launch::run`].
#[track_caller]
unsafe fn launch_one(
    target: Target<'_>,
    op: &Op,
    kernel: usize,
    operands: &[Operand<'_>],
    params: &[u8],
    threads: usize,
) -> Result<()> {
    let call = Call {
        op: op.name,
        operands,
        params,
        checks_indices: false,
        host: op.host[kernel.min(STRIDED)],
        code: Code::Kernel {
            kernel: (op.program.0, op.program.1, kernel),
            grid: grid(target, threads),
            block: [BLOCK, 1, 1],
            shared_bytes: 0,
        },
        location: op.location,
    };
    // SAFETY: the caller's promise.
    unsafe { launch::run(target, &call) }
}

/// Returns a grid of blocks of [`BLOCK`] threads with one thread per element: a device is busier
/// with many blocks than with fewer that loop. The kernels of this layer have no loop. A kernel
/// with a loop, as in `docs/custom-ops.md`, then runs it once, and works with any other grid too.
pub fn grid(target: Target<'_>, threads: usize) -> [u32; 3] {
    match target {
        Target::Cpu(_) => [1; 3],
        Target::Cuda(..) => [launch::blocks(threads.div_ceil(BLOCK as usize)), 1, 1],
    }
}

/// Calls `f` on the two halves of views that are too large for one launch. The views are cut in the
/// dimension with the farthest reach, which may have few elements.
///
/// # Errors
/// Errors of `f`.
#[track_caller]
pub fn halves<const N: usize>(
    views: &[View<'_>; N],
    mut f: impl FnMut([View<'_>; N]) -> Result<()>,
) -> Result<()> {
    let location = Location::caller();
    let sizes = views[N - 1].sizes();
    // There is a dimension: one element always fits.
    let reach = |d: usize, view: &View<'_>| {
        sizes[d].saturating_sub(1).saturating_mul(view.strides()[d].unsigned_abs())
    };
    let furthest = |&d: &usize| views.iter().map(|view| reach(d, view)).max();
    let Some(dim) = (0..sizes.len()).max_by_key(furthest) else { return Ok(()) };
    let middle = sizes[dim] / 2;
    for (start, length) in [(0, middle), (middle, sizes[dim] - middle)] {
        let mut layouts: [Option<Layout>; N] = [const { None }; N];
        for (layout, view) in layouts.iter_mut().zip(views) {
            *layout = Some(view.layout.narrow(dim as isize, start as isize, length)?);
        }
        f(std::array::from_fn(|k| View {
            layout: layouts[k].as_ref().unwrap_or(views[k].layout),
            ..views[k]
        }))
        .map_err(|e| e.at(location))?;
    }
    Ok(())
}
