//! The iteration layer: kernels over the elements of operands of common sizes and any strides.
//!
//! A family declares its kernels once. For each dtype it has a *flat* kernel, for operands that are
//! contiguous and aligned, and a *strided* kernel (`runs.rs`); one [`HostLoop`] implements both on
//! the CPU. Elementwise ops have a third kernel, for operands of other dtypes, which converts
//! elements as it reads and writes them. A [`Variant`] has the kernels for a dtype, and [`Kernels`] the
//! variants of an op. [`Kernels::launch`] checks the operands, chooses a kernel, and launches it.

mod kernels;
mod params;
mod runs;
mod space;
#[cfg(test)]
mod tests;
mod walk;

use std::panic::Location;

use crate::{Layout, Result, View};

pub use kernels::{HostLoop, Kernels, Variant, Widths};
pub use params::Params;
pub use runs::Runs;
pub use space::{Bits, Flat, Index, IterPlan, Space, magic};
pub use walk::{Dim, Walk};

/// Names of the kernels of this layer's programs.
pub const KERNELS: &[&str] = &["flat", "strided"];
/// Names of the kernels of programs that also convert operands of other dtypes.
pub const CONVERTING_KERNELS: &[&str] = &["flat", "strided", "converting"];

/// Number of threads per block. The kernels of this layer process one element, vector or run per
/// thread. A kernel may also contain a loop over elements, as in `docs/custom-ops.md`; with the grids
/// of this layer, each thread runs the loop's body at most once.
pub const BLOCK: u32 = 256;

/// Returns the number of elements of `size` bytes that a flat kernel processes at a time: as many
/// as fit in 16 bytes, at most 8.
pub const fn vector_width(size: usize) -> usize {
    if size < 2 { 8 } else { 16 / size }
}

/// Calls `f` on the two halves of views that are too large for one launch. The views are cut in the
/// dimension with the farthest reach, which may have few elements.
///
/// # Errors
/// The first error that `f` returns.
#[track_caller]
pub fn halves<const N: usize>(
    views: &[View<'_>; N],
    mut f: impl FnMut([View<'_>; N]) -> Result<()>,
) -> Result<()> {
    let location = Location::caller();
    let sizes = views[N - 1].sizes();
    // There is at least one dimension, because a view without dimensions has one element and always
    // fits.
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
