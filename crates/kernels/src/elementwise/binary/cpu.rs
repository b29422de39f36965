//! The CPU implementation.

use warpline_cuda_sys_safe::{HostKernel, HostLaunch};

use super::{Args, BinaryOp};
use warpline_runtime::Scalar;
use warpline_runtime::host::{HostElement, Number, Shared, Truth, map1, map2, params};
use warpline_runtime::iter::{Flat, Index, Params, Space};

type C<T> = <T as HostElement>::Compute;

/// Of elements `T`: flat and strided, on two tensors or on one and a scalar.
pub(super) fn kernels<T: HostElement>(scalar: bool) -> [HostKernel; 2] {
    if scalar {
        [with_scalar::<T, Flat>, with_scalar::<T, Index<2>>]
    } else {
        [tensors::<T, Flat>, tensors::<T, Index<3>>]
    }
}

/// The number as an op on `T` takes it.
pub(super) fn rounded<T: HostElement>(scalar: Scalar, to_element: bool) -> Scalar {
    let value = C::<T>::from_scalar(scalar);
    if to_element { T::put(value).get().to_scalar() } else { value.to_scalar() }
}

/// Calls `$run!(f)` with the function of an op code: to the elements' own type, or to bool.
macro_rules! with_op {
    ($code:expr, $t:ty, $run:ident) => {
        match BinaryOp::ALL[$code as usize] {
            BinaryOp::Add => $run!($t, |x, y| x.add(y)),
            BinaryOp::Sub => $run!($t, |x, y| x.sub(y)),
            BinaryOp::Mul => $run!($t, |x, y| x.mul(y)),
            BinaryOp::Div => $run!($t, |x, y| x.div(y)),
            BinaryOp::Maximum => $run!($t, |x, y| x.maximum(y)),
            BinaryOp::Minimum => $run!($t, |x, y| x.minimum(y)),
            BinaryOp::Eq => $run!(Truth, |x, y| x == y),
            BinaryOp::Ne => $run!(Truth, |x, y| x != y),
            BinaryOp::Lt => $run!(Truth, |x, y| x < y),
            BinaryOp::Le => $run!(Truth, |x, y| x <= y),
            BinaryOp::Gt => $run!(Truth, |x, y| x > y),
            BinaryOp::Ge => $run!(Truth, |x, y| x >= y),
        }
    };
}

/// # Safety
/// As [`HostKernel`]: two operands of `T`, then the result, with [`Params`] of `S` and [`Args`].
unsafe fn tensors<T: HostElement, S: Space<3>>(launch: &HostLaunch<'_>) {
    let Params { space, args, .. }: Params<S, Args> = params(launch);
    // SAFETY: the caller's promise.
    unsafe { tensors_over::<T>(launch, &space.index(), args) }
}

/// # Safety
/// As [`tensors`].
unsafe fn tensors_over<T: HostElement>(launch: &HostLaunch<'_>, index: &Index<3>, args: Args) {
    let (a, b) = (Shared::<T>::operand(launch, 0), Shared::<T>::operand(launch, 1));
    macro_rules! run {
        ($out:ty, |$x:ident, $y:ident| $value:expr) => {{
            let f = |x: T, y: T| {
                let ($x, $y): (C<T>, C<T>) = (x.get(), y.get());
                <$out>::put($value)
            };
            let out = Shared::<$out>::operand(launch, 2);
            // SAFETY: the caller's promise.
            unsafe { map2(a, b, out, index, launch.parallel, f) }
        }};
    }
    with_op!(args.op, T, run);
}

/// # Safety
/// As [`HostKernel`]: one operand of `T`, then the result, with [`Params`] of `S` and [`Args`].
unsafe fn with_scalar<T: HostElement, S: Space<2>>(launch: &HostLaunch<'_>) {
    let Params { space, args, .. }: Params<S, Args> = params(launch);
    // SAFETY: the caller's promise.
    unsafe { with_scalar_over::<T>(launch, &space.index(), args) }
}

/// # Safety
/// As [`with_scalar`].
unsafe fn with_scalar_over<T: HostElement>(launch: &HostLaunch<'_>, index: &Index<2>, args: Args) {
    let a = Shared::<T>::operand(launch, 0);
    let number = args.number;
    let scalar = C::<T>::from_parts(number.f, number.i);
    macro_rules! run {
        ($out:ty, |$x:ident, $y:ident| $value:expr) => {{
            let f = |x: T| {
                let v = x.get();
                let ($x, $y) = if args.reversed != 0 { (scalar, v) } else { (v, scalar) };
                <$out>::put($value)
            };
            let out = Shared::<$out>::operand(launch, 1);
            // SAFETY: the caller's promise.
            unsafe { map1(a, out, index, launch.parallel, f) }
        }};
    }
    with_op!(args.op, T, run);
}
