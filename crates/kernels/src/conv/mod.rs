//! The parts of a convolution besides the matrix product: images to the columns that are multiplied
//! (`im2col`, PyTorch's `unfold`), and its transpose (`col2im`, `fold`).
//!
//! A convolution multiplies the columns of as many images at a time as keep the columns within a
//! bound. The transpose gathers: each element of the image has one thread, which adds its
//! contributions in a fixed order, so sums are the same in each run. Pools and resizing work the
//! same way.

mod cpu;
#[cfg(test)]
mod tests;

use std::panic::Location;

use bytemuck::{Pod, Zeroable};
use warpline_cuda_sys_safe::HostKernel;
use warpline_runtime::cuda_struct;
use warpline_runtime::launch::{self, Call, Code, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, ErrorKind, Result, Target, View};

use crate::programs::{BITS, FLOATS, bits, committed};
use crate::window::{Taps, grid, images};

pub use crate::window::Window;

pub(crate) const PROGRAMS: &[&Program] = &[&IM2COL, &COL2IM];

static IM2COL: Program = Program::new("im2col", BITS, &[""], |_, ty| {
    source().push(include_str!("im2col.cuh")).push(&format!("IM2COL({ty})"))
})
.with_ptx(committed);

static COL2IM: Program = Program::new("col2im", FLOATS, &[""], |_, ty| {
    source().push(include_str!("col2im.cuh")).push(&format!("COL2IM({ty})"))
})
.with_ptx(committed);

fn source() -> Source {
    Source::new().with::<Columns>().push(module::ELEMENT)
}

/// The parameters of both. `image` are strides of batch, channel and the three dimensions, `columns` of
/// batch and row.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Columns {
    taps: Taps,
    batch: u32,
    channels: u32,
    image: [i64; 5],
    columns: [i64; 2],
}

cuda_struct!(Columns { taps, batch, channels, image, columns });

/// The elements of `image` under a window, for all of its places (`torch.nn.functional.unfold`). `image` is
/// `[batch, channels, …]` with one to three dimensions more; `columns` is `[batch, rows, places]`, a row for each
/// element of the window in each channel, the channels after each other; its last dimension has stride 1.
/// Outside of the image are zeros. Any dtype.
///
/// # Errors
/// [`ErrorKind::DTypeMismatch`], [`ErrorKind::ShapeMismatch`], [`ErrorKind::InvalidArgument`], [`ErrorKind::OutOfStorage`],
/// [`ErrorKind::OverlappingWrite`], [`ErrorKind::OverlappingOperands`], and what a launch can fail with.
#[track_caller]
pub fn im2col(
    target: Target<'_>,
    image: View<'_>,
    window: &Window,
    columns: View<'_>,
) -> Result<()> {
    const OP: &str = "im2col";
    let params = check(OP, image, window, columns)?;
    check_operands(OP, &[image.read(), columns.write()])?;
    if columns.numel() == 0 {
        return Ok(());
    }
    let size = image.dtype.size();
    let host: HostKernel = match size {
        1 => cpu::im2col::<u8>,
        2 => cpu::im2col::<u16>,
        4 => cpu::im2col::<u32>,
        _ => cpu::im2col::<u64>,
    };
    let (grid, threads) = grid(window.places(), [params.batch as usize, params.channels as usize]);
    let call = Call {
        op: OP,
        operands: &[image.read(), columns.write()],
        params: bytemuck::bytes_of(&params),
        checks_indices: false,
        host,
        code: Code::Kernel {
            kernel: (&IM2COL, bits(size), 0),
            grid,
            block: [threads, 1, 1],
            shared_bytes: 0,
        },
        location: Location::caller(),
    };
    // SAFETY: the parameters are the operands' strides and sizes; the image is read where an element of the window is
    // inside of it, the columns are written once each; the kernels take `Columns`.
    unsafe { launch::run(target, &call) }
}

/// The transpose of [`im2col`] (`torch.nn.functional.fold`): each element of `image` is the sum of the columns'
/// elements that `im2col` would make of it. Floats; the halves are added in `f32`.
///
/// # Errors
/// [`ErrorKind::UnsupportedDType`], otherwise as [`im2col`].
#[track_caller]
pub fn col2im(
    target: Target<'_>,
    columns: View<'_>,
    window: &Window,
    image: View<'_>,
) -> Result<()> {
    const OP: &str = "col2im";
    let location = Location::caller();
    let params = check(OP, image, window, columns)?;
    let (index, host): (usize, HostKernel) = match image.dtype {
        DType::F16 => (0, cpu::col2im::<half::f16>),
        DType::BF16 => (1, cpu::col2im::<half::bf16>),
        DType::F32 => (2, cpu::col2im::<f32>),
        DType::F64 => (3, cpu::col2im::<f64>),
        dtype => return Err(ErrorKind::UnsupportedDType { dtype }.of(OP).at(location)),
    };
    check_operands(OP, &[columns.read(), image.write()])?;
    if image.numel() == 0 {
        return Ok(());
    }
    let (grid, threads) =
        grid(params.taps.elements(), [params.batch as usize, params.channels as usize]);
    let call = Call {
        op: OP,
        operands: &[columns.read(), image.write()],
        params: bytemuck::bytes_of(&params),
        checks_indices: false,
        host,
        code: Code::Kernel {
            kernel: (&COL2IM, index, 0),
            grid,
            block: [threads, 1, 1],
            shared_bytes: 0,
        },
        location,
    };
    // SAFETY: the parameters are the operands' strides and sizes; of the columns what has a row and a place is read,
    // each element of the image is written once; the kernels take `Columns`.
    unsafe { launch::run(target, &call) }
}

#[track_caller]
fn check(op: &'static str, image: View<'_>, window: &Window, columns: View<'_>) -> Result<Columns> {
    let location = Location::caller();
    if image.dtype != columns.dtype {
        let (expected, actual) = (image.dtype, columns.dtype);
        return Err(ErrorKind::DTypeMismatch { expected, actual }.of(op).at(location));
    }
    let taps = window.packed(op)?;
    let ([batch, channels], strides) = images(op, image, window.input)?;
    let rows = channels.checked_mul(window.taps());
    let fits = columns.sizes().len() == 3
        && columns.sizes()[0] == batch
        && Some(columns.sizes()[1]) == rows
        && columns.sizes()[2] == window.places()
        && (columns.sizes()[2] <= 1 || columns.strides()[2] == 1);
    if !fits {
        let reason = format!(
            "columns of {:?} with strides {:?}; an image of {:?} has {} rows of {} elements side by side",
            columns.sizes(),
            columns.strides(),
            image.sizes(),
            rows.unwrap_or(usize::MAX),
            window.places()
        );
        return Err(Error::shape(op, reason).at(location));
    }
    let columns = [columns.strides()[0], columns.strides()[1]].map(|s| s as i64);
    Ok(Columns { taps, batch: batch as u32, channels: channels as u32, image: strides, columns })
}
