//! Conversion of images to the columns that a convolution multiplies (`im2col`, PyTorch's
//! `unfold`), and the transpose (`col2im`, `fold`).
//!
//! The transpose gathers: one thread per image element adds the contributions in a fixed order, so
//! sums are the same in each run. The gradients of pools and resizing use the same technique.

mod cpu;

#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::launch::{Kernel, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{Error, Result, Target, View, cuda_struct};

use crate::programs::{BITS, FLOATS, kernels};
use crate::window::{Taps, Window, grid, images};

pub(crate) const PROGRAMS: &[&Program] = &[&IM2COL, &COL2IM];

fn source() -> Source {
    Source::new().with::<Columns>().push(module::ELEMENT)
}

kernels! {
    IM2COL = "im2col", BITS, |_, ty| {
        source().push(include_str!("im2col.cuh")).push(&format!("IM2COL({ty})"))
    } => {
        // SAFETY: `check` makes all `Columns`, with the strides and sizes of the launch's operands.
        // The kernel reads the image only where the window lies inside, and each element of the
        // columns is written by one thread.
        unsafe TO_COLUMNS: Kernel<Columns, 2> = bits cpu::im2col;
    }
    COL2IM = "col2im", FLOATS, |_, ty| {
        source().push(include_str!("col2im.cuh")).push(&format!("COL2IM({ty})"))
    } => {
        // SAFETY: `check` makes all `Columns`, with the strides and sizes of the launch's operands.
        // The kernel reads only elements of the columns with a valid row and position, and each
        // element of the image is written by one thread.
        unsafe TO_IMAGE: Kernel<Columns, 2> = float cpu::col2im;
    }
}

cuda_struct! {
    /// The parameters of both kernels. `image` holds the strides of batch, channel and the three
    /// spatial dimensions, `columns` those of batch and row.
    struct Columns {
        taps: Taps,
        batch: u32,
        channels: u32,
        image: [i64; 5],
        columns: [i64; 2],
    }
}

/// Copies the elements of `image` under each position of a window to `columns`
/// (`torch.nn.functional.unfold`).
///
/// `image` is `[batch, channels, …]` with one to three spatial dimensions of the sizes
/// `window.input`. `columns` is `[batch, rows, positions]` with stride 1 in the last dimension, one
/// row for each channel and window element, in this order, and one column for each position of the
/// window. Elements outside of the image are 0. Supports every dtype.
///
/// # Errors
/// - [`ErrorKind::DTypeMismatch`] if the dtypes differ.
/// - [`ErrorKind::ShapeMismatch`] if the spatial sizes of `image` are not `window.input`, if
///   `columns` does not have the batch of `image`, one row for each channel and window element and
///   one column for each position, if the last dimension of `columns` has a different stride than
///   1, or if [`Window::check`] finds the window too large.
/// - [`ErrorKind::InvalidArgument`] if a stride or a dilation is 0.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of the result overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if the views share memory.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn im2col(
    target: Target<'_>,
    image: View<'_>,
    window: &Window,
    columns: View<'_>,
) -> Result<()> {
    const OP: &str = "im2col";
    let params = check(OP, image, window, columns)?;
    let operands = [image.read(), columns.write()];
    check_operands(OP, &operands)?;
    if columns.numel() == 0 {
        return Ok(());
    }
    let grid = grid(window.positions(), [params.batch as usize, params.channels as usize]);
    TO_COLUMNS.launch(target, OP, &operands, &params, grid)
}

/// The transpose of [`im2col`] (`torch.nn.functional.fold`): sets each element of `image` to the
/// sum of the elements of `columns` to which [`im2col`] copies it. The dtype is floating-point.
/// Half-width floats are summed in `float32`.
///
/// # Errors
/// - [`ErrorKind::UnsupportedDType`] if the dtype is not floating-point.
/// - The errors of [`im2col`], with `image` as the result.
#[track_caller]
pub fn col2im(
    target: Target<'_>,
    columns: View<'_>,
    window: &Window,
    image: View<'_>,
) -> Result<()> {
    const OP: &str = "col2im";
    let params = check(OP, image, window, columns)?;
    TO_IMAGE.check_dtype(OP, image.dtype)?;
    let operands = [columns.read(), image.write()];
    check_operands(OP, &operands)?;
    if image.numel() == 0 {
        return Ok(());
    }
    let planes = [params.batch as usize, params.channels as usize];
    let grid = grid(params.taps.elements(), planes);
    TO_IMAGE.launch(target, OP, &operands, &params, grid)
}

#[track_caller]
fn check(op: &'static str, image: View<'_>, window: &Window, columns: View<'_>) -> Result<Columns> {
    columns.check_dtype(op, image.dtype)?;
    let taps = window.packed(op)?;
    let ([batch, channels], strides) = images(op, image, window.input)?;
    let rows = channels.checked_mul(window.taps());
    let fits = columns.sizes().len() == 3
        && columns.sizes()[0] == batch
        && Some(columns.sizes()[1]) == rows
        && columns.sizes()[2] == window.positions()
        && (columns.sizes()[2] <= 1 || columns.strides()[2] == 1);
    if !fits {
        let reason = format!(
            "columns of {:?} with strides {:?}; an image of {:?} has {} rows of {} elements side by side",
            columns.sizes(),
            columns.strides(),
            image.sizes(),
            rows.unwrap_or(usize::MAX),
            window.positions()
        );
        return Err(Error::shape(op, reason));
    }
    let columns = [columns.strides()[0], columns.strides()[1]].map(|s| s as i64);
    Ok(Columns { taps, batch: batch as u32, channels: channels as u32, image: strides, columns })
}
