//! CPU implementations of copies and conversions.

use std::marker::PhantomData;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use warpline_cuda_sys_safe::HostLaunch;

use super::{Args, pair};
use crate::math::{Convert, vectorized};
use crate::programs::bits;
use warpline_runtime::host::{Cast, GRAIN, HostElement, SharedPtr, map1, parallel_for};
use warpline_runtime::iter::{Flat, HostLoop, Index, Space};

/// Copies elements of the size of `T`. An integer type stands for all dtypes of its size.
pub(super) struct SameDtypeCopy<T>(PhantomData<T>);

// SAFETY: the loop reads elements of the first operand and writes elements of the second.
unsafe impl<T: HostElement<Compute: Cast<T::Compute>>> HostLoop<Args, 2> for SameDtypeCopy<T> {
    const VARIANT: &'static str = bits(size_of::<T>());

    unsafe fn flat(launch: &HostLaunch<'_>, space: &Flat, _: &Args) {
        let (a, out) = (SharedPtr::<T>::operand(launch, 0), SharedPtr::<T>::operand(launch, 1));
        parallel_for(launch.parallel, space.numel as usize, GRAIN, |range| {
            let (from, n) = (range.start as isize, range.len());
            // SAFETY: both operands have these elements, and the elements of the result belong to
            // this thread. The operands may be the same memory.
            unsafe { out.at(from).copy_from(a.at(from), n) };
        });
    }

    unsafe fn strided(launch: &HostLaunch<'_>, index: &Index<2>, _: &Args) {
        // SAFETY: the caller guarantees that both operands have elements at these positions.
        unsafe { convert_all::<T, T>(launch, index) }
    }
}

/// Converts elements of `S` to `D`.
pub(super) struct Conversion<S, D>(PhantomData<(S, D)>);

// SAFETY: the loop reads elements of the first operand and writes elements of the second.
unsafe impl<S, D> HostLoop<Args, 2> for Conversion<S, D>
where
    S: HostElement<Compute: Cast<D::Compute>>,
    D: HostElement,
{
    const VARIANT: &'static str = match pair(S::DTYPE, D::DTYPE) {
        Some(pair) => pair,
        None => S::DTYPE.suffix(),
    };

    unsafe fn flat(launch: &HostLaunch<'_>, space: &Flat, _: &Args) {
        let n = space.numel as usize;
        let (a, out) = (SharedPtr::<S>::operand(launch, 0), SharedPtr::<D>::operand(launch, 1));
        let (from, to) = (a.0.addr(), out.0.addr());
        if from < to + n * size_of::<D>() && to < from + n * size_of::<S>() {
            // SAFETY: the caller guarantees that both operands have elements at these positions.
            return unsafe { convert_all::<S, D>(launch, &space.index()) };
        }
        parallel_for(launch.parallel, n, GRAIN, |range| {
            let (at, n) = (range.start as isize, range.len());
            // SAFETY: both operands have these elements and share no memory. The elements of the
            // result belong to this thread. Any bytes are valid elements.
            let (from, to) =
                unsafe { (from_raw_parts(a.at(at), n), from_raw_parts_mut(out.at(at), n)) };
            vectorized(Convert(from, to, convert::<S, D>));
        });
    }

    unsafe fn strided(launch: &HostLaunch<'_>, index: &Index<2>, _: &Args) {
        // SAFETY: the caller guarantees that both operands have elements at these positions.
        unsafe { convert_all::<S, D>(launch, index) }
    }
}

#[inline(always)]
fn convert<S, D>(x: S) -> D
where
    S: HostElement<Compute: Cast<D::Compute>>,
    D: HostElement,
{
    D::put(x.get().cast())
}

/// # Safety
/// The operands have elements of `S` and `D` at the positions of `index`. No other thread writes to
/// these elements.
unsafe fn convert_all<S, D>(launch: &HostLaunch<'_>, index: &Index<2>)
where
    S: HostElement<Compute: Cast<D::Compute>>,
    D: HostElement,
{
    let (a, out) = (SharedPtr::<S>::operand(launch, 0), SharedPtr::<D>::operand(launch, 1));
    // SAFETY: the caller guarantees that both operands have elements at these positions.
    unsafe { map1(a, out, index, launch.parallel, convert::<S, D>) };
}
