//! CPU implementations of copies and conversions.

use std::slice::{from_raw_parts, from_raw_parts_mut};

use warpline_cuda_sys_safe::{HostKernel, HostLaunch};

use super::Args;
use crate::math::{Convert, vectorized};
use warpline_runtime::host::{Cast, GRAIN, HostElement, Shared, map1, parallel_for, params};
use warpline_runtime::iter::{Flat, Index, Params, Space};

/// Returns the flat and the strided copy for elements of `size` bytes within a dtype.
pub(super) fn same(size: usize) -> [HostKernel; 2] {
    match size {
        1 => [move_bytes::<u8>, run::<u8, u8, Index<2>>],
        // Integers stand in for all dtypes of their size.
        2 => [move_bytes::<i16>, run::<i16, i16, Index<2>>],
        4 => [move_bytes::<i32>, run::<i32, i32, Index<2>>],
        _ => [move_bytes::<i64>, run::<i64, i64, Index<2>>],
    }
}

/// # Safety
/// The conditions of [`HostKernel`]. The operands are source and result, both of `T`, with
/// [`Params`] of [`Flat`] and [`Args`].
unsafe fn move_bytes<T: HostElement>(launch: &HostLaunch<'_>) {
    let Params { space, .. }: Params<Flat, Args> = params(launch);
    let (a, out) = (Shared::<T>::operand(launch, 0), Shared::<T>::operand(launch, 1));
    parallel_for(launch.parallel, space.numel as usize, GRAIN, |range| {
        let (from, n) = (range.start as isize, range.len());
        // SAFETY: both operands have the elements of `range`, and those of the result belong to
        // this thread. `copy_from` permits that they are the same memory.
        unsafe { out.at(from).copy_from(a.at(from), n) };
    });
}

/// Returns the flat and the strided conversion from `S` to `D`.
pub(super) fn cast<S, D>() -> [HostKernel; 2]
where
    S: HostElement<Compute: Cast<D::Compute>>,
    D: HostElement,
{
    [flat::<S, D>, run::<S, D, Index<2>>]
}

/// # Safety
/// The conditions of [`HostKernel`]. The operands are source, of `S`, and result, of `D`, both
/// without gaps, with [`Params`] of [`Flat`] and [`Args`].
unsafe fn flat<S, D>(launch: &HostLaunch<'_>)
where
    S: HostElement<Compute: Cast<D::Compute>>,
    D: HostElement,
{
    let Params { space, .. }: Params<Flat, Args> = params(launch);
    let n = space.numel as usize;
    let (a, out) = (Shared::<S>::operand(launch, 0), Shared::<D>::operand(launch, 1));
    let (from, to) = (a.0.addr(), out.0.addr());
    if from < to + n * size_of::<D>() && to < from + n * size_of::<S>() {
        // SAFETY: the caller guarantees operands of `S` and `D` with `n` elements.
        return unsafe { over::<S, D>(launch, &space.index()) };
    }
    parallel_for(launch.parallel, n, GRAIN, |range| {
        let (at, n) = (range.start as isize, range.len());
        // SAFETY: both operands have the elements of `range` and share no memory, and those of the
        // result belong to this thread. Any bytes are valid elements.
        let (from, to) =
            unsafe { (from_raw_parts(a.at(at), n), from_raw_parts_mut(out.at(at), n)) };
        vectorized(Convert(from, to, convert::<S, D>));
    });
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
/// The conditions of [`HostKernel`]. The operands are source, of `S`, and result, of `D`, with
/// [`Params`] of `P` and [`Args`].
unsafe fn run<S, D, P>(launch: &HostLaunch<'_>)
where
    S: HostElement<Compute: Cast<D::Compute>>,
    D: HostElement,
    P: Space<2>,
{
    let Params { space, .. }: Params<P, Args> = params(launch);
    // SAFETY: the caller guarantees operands of `S` and `D` that the space covers.
    unsafe { over::<S, D>(launch, &space.index()) }
}

/// # Safety
/// The operands are source, of `S`, and result, of `D`, and have all elements that `index` covers.
/// Each element of the result belongs to one thread.
unsafe fn over<S, D>(launch: &HostLaunch<'_>, index: &Index<2>)
where
    S: HostElement<Compute: Cast<D::Compute>>,
    D: HostElement,
{
    let (a, out) = (Shared::<S>::operand(launch, 0), Shared::<D>::operand(launch, 1));
    // SAFETY: the caller guarantees that the operands have all elements of `index`.
    unsafe { map1(a, out, index, launch.parallel, convert::<S, D>) };
}
