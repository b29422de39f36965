//! Conversion of indices along several dimensions to linear indices.

use warpline_cuda_sys_safe::HostLaunch;

use crate::programs::committed;
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::host::{self, GRAIN, SharedPtr};
use warpline_runtime::iter::{BLOCK, Walk};
use warpline_runtime::launch::{Grid, Kernel, Report, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{Error, Result, Target, View, cuda_struct, hosts};

pub(super) static LINEAR: Program = Program::new("linear_index", &[""], &[""], |_, _| {
    let of = Source::new().with::<Linear>().push(module::REPORT).push(module::WALK);
    of.push(include_str!("linear.cuh"))
})
.with_ptx(committed);

// SAFETY: only `linear_index` makes `Linear`s, with the sizes and strides of the launch's operands.
// Each element of the result belongs to one thread. For the first dimension, the thread does not
// read the element, which may be uninitialized.
static ADVANCE: Kernel<Linear, 2> = unsafe { Kernel::new(&LINEAR, "", hosts!(any on_host)) };

cuda_struct! {
    struct Linear {
        report: Report,
        elements: u64,
        first: u64,
        walk: Walk<2>,
    }
}

/// Extends linear indices by dimension `dim`, which has size `size`: computes `out = out * size +
/// index`, or `out = index` if `first` is true. A negative index counts from the end. Both views
/// must have dtype `int64` and the same sizes.
///
/// # Errors
/// - [`ErrorKind::DTypeMismatch`] if a view does not have dtype `int64`.
/// - [`ErrorKind::ShapeMismatch`] if the sizes differ.
/// - [`ErrorKind::TooManyDims`] if the views have more than 16 dimensions after merging.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if the views share memory.
/// - [`ErrorKind::IndexCheck`] if an index is out of range; on a GPU, a later wait or read of `out`
///   returns this error.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn linear_index(
    target: Target<'_>,
    op: &'static str,
    out: View<'_>,
    index: View<'_>,
    (dim, size): (usize, usize),
    first: bool,
) -> Result<()> {
    super::check_index_dtype(op, index)?;
    super::check_index_dtype(op, out)?;
    if out.sizes() != index.sizes() {
        let reason =
            format!("the indices have different sizes, {:?} and {:?}", out.sizes(), index.sizes());
        return Err(Error::shape(op, reason));
    }
    let operands = [index.read(), if first { out.write() } else { out.read_write() }];
    check_operands(op, &operands)?;
    let dims = (0..out.sizes().len()).rev();
    let dims = dims.map(|d| (out.sizes()[d], [index.strides()[d], out.strides()[d]]));
    let elements = out.numel();
    let params = Linear {
        report: Report::new(dim, size),
        elements: elements as u64,
        first: first.into(),
        walk: Walk::new(op, dims)?,
    };
    ADVANCE.launch(target, op, &operands, &params, Grid::cover(elements, BLOCK))
}

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the index and the
/// result, with elements of type `i64`.
unsafe fn on_host(launch: &HostLaunch<'_>, p: &Linear) {
    let (index, out) = (SharedPtr::<i64>::operand(launch, 0), SharedPtr::<i64>::operand(launch, 1));
    let size = p.report.size() as i64;
    host::parallel_for(launch.parallel, p.elements as usize, GRAIN, |range| {
        for e in range {
            let [at, to] = p.walk.offsets(e);
            // SAFETY: both operands have this element, and the element of the result belongs to
            // this thread. The report's mailbox lives as long as the launch.
            unsafe {
                let given = index.read(at);
                let from_end = given.saturating_add(size);
                let k = if given < 0 && from_end >= 0 { from_end } else { given };
                let k = if p.report.check_index(k) { k } else { 0 };
                let before = if p.first != 0 { 0 } else { out.read(to).wrapping_mul(size) };
                out.write(to, before.wrapping_add(k));
            }
        }
    });
}
