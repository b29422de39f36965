//! Copies between layouts and dtypes on one device, or on the host.

mod cpu;
#[cfg(test)]
mod tests;

use std::panic::Location;

use bytemuck::{Pod, Zeroable};

use warpline_runtime::dispatch;
use warpline_runtime::iter::{Kernel, Op, run, vector_width};
use warpline_runtime::module;
use warpline_runtime::overlap::{self, Overlap};
use warpline_runtime::{DType, KernelSet, Result, Target, View, launch};

/// The kernels' arguments: codes of [`DType`], which only the kernels for any pair look at.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Args {
    from: u32,
    to: u32,
}

/// Pairs with kernels of their own.
const PAIRS: [(DType, DType); 14] = [
    (DType::F32, DType::F16),
    (DType::F16, DType::F32),
    (DType::F32, DType::BF16),
    (DType::BF16, DType::F32),
    (DType::F32, DType::F64),
    (DType::F64, DType::F32),
    (DType::I64, DType::F32),
    (DType::I32, DType::F32),
    (DType::U8, DType::F32),
    (DType::Bool, DType::F32),
    (DType::F32, DType::I64),
    (DType::Bool, DType::I64),
    (DType::I32, DType::I64),
    (DType::I64, DType::I32),
];

/// Copies of elements of 1, 2, 4 and 8 bytes as they are; then the pairs; then any pair. Of each a
/// flat and a strided kernel.
static SET: KernelSet = KernelSet::new(module!("copy"), 2 * (4 + 14 + 1), |i| {
    let name = match i / 2 {
        0 => "1_byte".to_owned(),
        k @ 1..4 => format!("{}_bytes", 1 << k),
        k => PAIRS.get(k - 4).map_or_else(
            || "any".to_owned(),
            |(from, to)| format!("{}_{}", from.suffix(), to.suffix()),
        ),
    };
    format!("copy_{name}_{}", if i % 2 == 0 { "flat" } else { "strided" })
});

/// Copies `src` into `dst`, of the same sizes and on the same device, converting to its dtype:
/// floats lose their fraction on the way to integers, integers wrap, anything but 0 is true.
/// (`Tensor.copy_`; broadcast by expanding `src`.)
///
/// Floats that do not fit become the nearest `i32` or `i64`: by way of `i64` they go to `u8`, by way
/// of `i32` to `i8` and `i16`, which then keep the low bits. A NaN becomes 0, but the least integer
/// as an `i64` and from `f64` as an `i32`. This is what PyTorch gives on CUDA. It holds for CPU
/// tensors too, of which PyTorch promises nothing there.
///
/// # Errors
/// [`warpline_runtime::Error::ShapeMismatch`], [`warpline_runtime::Error::OverlappingWrite`],
/// [`warpline_runtime::Error::OverlappingOperands`], [`warpline_runtime::Error::OutOfStorage`], and what a launch can fail with.
#[track_caller]
pub fn copy(target: Target<'_>, src: View<'_>, dst: View<'_>) -> Result<()> {
    const NAME: &str = "copy_";
    let location = Location::caller();
    for view in [src, dst] {
        view.check_inside(NAME)?;
    }
    if src.storage.same_as(dst.storage)
        && src.dtype == dst.dtype
        && overlap::between((src.layout, src.dtype.size()), (dst.layout, dst.dtype.size()))
            == Overlap::Same
    {
        return Ok(());
    }
    if let Target::Cuda(_, _, stream) = target
        && src.dtype == dst.dtype
        && src.sizes() == dst.sizes()
        && src.layout.is_contiguous()
        && dst.layout.is_contiguous()
        && src.storage.cuda_device().is_some()
        && dst.storage.cuda_device().is_some()
    {
        let size = src.dtype.size();
        src.check_no_partial_overlap(&dst, NAME)?;
        let (to, from) = (dst.layout.offset() * size, src.layout.offset() * size);
        let bytes = src.numel() * size;
        return launch::copy_bytes(
            stream,
            (dst.storage, to),
            (src.storage, from),
            bytes,
            true,
            location,
        );
    }
    let (first, vector, hosts) = if src.dtype == dst.dtype {
        let size = src.dtype.size();
        (2 * size.ilog2() as usize, vector_width(size), cpu::same(size))
    } else {
        let hosts =
            dispatch!(src.dtype, all S => dispatch!(dst.dtype, all D => cpu::cast::<S, D>()));
        match PAIRS.iter().position(|&pair| pair == (src.dtype, dst.dtype)) {
            Some(pair) => {
                (2 * (4 + pair), vector_width(src.dtype.size().max(dst.dtype.size())), hosts)
            }
            None => (2 * (4 + PAIRS.len()), 1, hosts),
        }
    };
    let described = Op {
        name: NAME,
        set: &SET,
        flat: Kernel { index: first, host: hosts[0] },
        strided: Kernel { index: first + 1, host: hosts[1] },
        vector,
        location,
    };
    let args = Args { from: src.dtype as u32, to: dst.dtype as u32 };
    // SAFETY: the kernels and CPU implementations are those of this pair of dtypes.
    unsafe { run(target, &described, [src, dst], args) }
}
