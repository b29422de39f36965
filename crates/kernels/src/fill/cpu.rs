//! CPU implementations of fills.

use warpline_cuda_sys_safe::{HostKernel, HostLaunch};

use super::{Fill, Sequence};
use warpline_runtime::Scalar;
use warpline_runtime::host::{
    Cast, GRAIN, HostElement, Number, Shared, map0, parallel_for, params,
};
use warpline_runtime::iter::{Flat, Index, Params, Space};

/// Returns the bytes of an element, in the low bytes.
pub(super) fn bits<T: HostElement>(value: Scalar) -> u64 {
    let element = T::put(T::Compute::from_scalar(value));
    let mut bits = 0u64;
    // SAFETY: an element is plain data of at most 8 bytes, so `bits` has room for it. CUDA's hosts
    // are little-endian, so these are the low bytes.
    unsafe { (&raw mut bits).cast::<T>().write_unaligned(element) };
    bits
}

/// Returns the flat and the strided fill for elements of `size` bytes.
pub(super) fn fill_kernels(size: usize) -> [HostKernel; 2] {
    match size {
        1 => [fill::<u8, Flat>, fill::<u8, Index<1>>],
        2 => [fill::<u16, Flat>, fill::<u16, Index<1>>],
        4 => [fill::<u32, Flat>, fill::<u32, Index<1>>],
        _ => [fill::<u64, Flat>, fill::<u64, Index<1>>],
    }
}

/// An unsigned integer that consists of the low bytes of a larger one.
trait Low: Copy + Send + Sync + 'static {
    fn low(bits: u64) -> Self;
}

macro_rules! low {
    ($($ty:ty)*) => {$(
        impl Low for $ty {
            fn low(bits: u64) -> Self {
                bits as $ty
            }
        }
    )*};
}

low! { u8 u16 u32 u64 }

/// # Safety
/// The conditions of [`HostKernel`]. The operand is the result, of elements of the size of `T`,
/// with [`Params`] of `S` and [`Fill`].
unsafe fn fill<T: Low, S: Space<1>>(launch: &HostLaunch<'_>) {
    let Params { space, args, .. }: Params<S, Fill> = params(launch);
    let out = Shared::<T>::operand(launch, 0);
    // SAFETY: the caller guarantees that the space covers elements of the result.
    unsafe { map0(out, &space.index(), launch.parallel, T::low(args.bits.into())) };
}

/// # Safety
/// The conditions of [`HostKernel`]. The operand is the result, of `T`.
pub(super) unsafe fn sequence<T>(launch: &HostLaunch<'_>, p: &Sequence)
where
    T: HostElement,
    i64: Cast<T::Compute>,
    f64: Cast<T::Compute>,
{
    let out = Shared::<T>::operand(launch, 0);
    parallel_for(launch.parallel, p.numel as usize, GRAIN, |range| {
        for i in range {
            let value = if p.exact != 0 {
                p.first_int.wrapping_add((i as i64).wrapping_mul(p.step_int)).cast()
            } else if (i as u64) < p.middle {
                (p.first + p.step * i as f64).cast()
            } else {
                (p.last - p.step * (p.numel - 1 - i as u64) as f64).cast()
            };
            // SAFETY: `i` is less than the size of the result, and the element belongs to this
            // thread.
            unsafe { out.write(i as isize * p.stride as isize, T::put(value)) };
        }
    });
}
