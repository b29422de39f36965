//! The CPU implementation.

use warpline_cuda_sys_safe::{HostKernel, HostLaunch};

use super::Args;
use warpline_runtime::host::{Cast, HostElement, Shared, map1, params};
use warpline_runtime::iter::{Flat, Index, Params, Space};

/// Of elements of `size` bytes that stay as they are: flat and strided.
pub(super) fn same(size: usize) -> [HostKernel; 2] {
    match size {
        1 => cast::<u8, u8>(),
        // Integers of the size stand for all elements of it.
        2 => cast::<i16, i16>(),
        4 => cast::<i32, i32>(),
        _ => cast::<i64, i64>(),
    }
}

/// From `S` to `D`: flat and strided.
pub(super) fn cast<S, D>() -> [HostKernel; 2]
where
    S: HostElement<Compute: Cast<D::Compute>>,
    D: HostElement,
{
    [run::<S, D, Flat>, run::<S, D, Index<2>>]
}

/// # Safety
/// As [`HostKernel`]: an operand of `S` and a result of `D`, with [`Params`] of `P` and [`Args`].
unsafe fn run<S, D, P>(launch: &HostLaunch<'_>)
where
    S: HostElement<Compute: Cast<D::Compute>>,
    D: HostElement,
    P: Space<2>,
{
    let Params { space, .. }: Params<P, Args> = params(launch);
    // SAFETY: the caller's promise.
    unsafe { over::<S, D>(launch, &space.index()) }
}

/// # Safety
/// As [`run`].
unsafe fn over<S, D>(launch: &HostLaunch<'_>, index: &Index<2>)
where
    S: HostElement<Compute: Cast<D::Compute>>,
    D: HostElement,
{
    let (a, out) = (Shared::<S>::operand(launch, 0), Shared::<D>::operand(launch, 1));
    // SAFETY: the caller's promise.
    unsafe { map1(a, out, index, launch.parallel, |x: S| D::put(x.get().cast())) };
}
