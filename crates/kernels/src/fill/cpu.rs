//! CPU implementations of fills.

use std::marker::PhantomData;

#[cfg(doc)]
use warpline_cuda_sys_safe::HostKernel;
use warpline_cuda_sys_safe::HostLaunch;

use super::{Fill, Sequence};
use crate::programs::bits;
use warpline_runtime::Scalar;
use warpline_runtime::host::{Cast, GRAIN, HostElement, Number, SharedPtr, map0, parallel_for};
use warpline_runtime::iter::{HostLoop, Index};

/// Returns the bytes of an element, in the low bytes.
pub(super) fn bits_of<T: HostElement>(value: Scalar) -> u64 {
    let element = T::put(T::Compute::from_scalar(value));
    let mut bits = 0u64;
    // SAFETY: an element is plain data of at most 8 bytes, so `bits` has room for it. CUDA's hosts
    // are little-endian, so these are the low bytes.
    unsafe { (&raw mut bits).cast::<T>().write_unaligned(element) };
    bits
}

/// Writes [`Fill::bits`] to elements of `T`.
pub(super) struct FillLoop<T>(PhantomData<T>);

// SAFETY: `map0` writes the elements of the index.
unsafe impl<T: HostElement> HostLoop<Fill, 1> for FillLoop<T> {
    const VARIANT: &'static str = bits(size_of::<T>());

    unsafe fn strided(launch: &HostLaunch<'_>, index: &Index<1>, args: &Fill) {
        let out = SharedPtr::<T>::operand(launch, 0);
        let bits = u64::from(args.bits);
        // SAFETY: any bytes are a valid element, and an element is no larger than `bits`. CUDA's
        // hosts are little-endian, so the element's bytes come first.
        let element = unsafe { (&raw const bits).cast::<T>().read_unaligned() };
        // SAFETY: the caller guarantees elements of `T` at the positions of `index`.
        unsafe { map0(out, index, launch.parallel, element) };
    }
}

/// # Safety
/// The conditions of [`HostKernel`]. The operand is the result, of `T`.
pub(super) unsafe fn sequence<T>(launch: &HostLaunch<'_>, p: &Sequence)
where
    T: HostElement,
    i64: Cast<T::Compute>,
    f64: Cast<T::Compute>,
{
    let out = SharedPtr::<T>::operand(launch, 0);
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
