//! The CPU implementation.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use warpline_cuda_sys_safe::{HostKernel, HostLaunch};

use super::{Args, UnaryOp};
use crate::math;
use warpline_runtime::host::{HostElement, Number, Shared, map_slices, map1, params};
use warpline_runtime::iter::{Flat, Index, Params, Space};

/// Of integers and bool: flat and strided.
pub(super) fn int_kernels<T: HostElement<Compute: Simple>>() -> [HostKernel; 2] {
    [run::<T, Flat, Simply>, run::<T, Index<2>, Simply>]
}

/// Of floats: flat and strided.
pub(super) fn float_kernels<T: HostElement<Compute: Float>>() -> [HostKernel; 2] {
    [run::<T, Flat, AsFloat>, run::<T, Index<2>, AsFloat>]
}

/// The ops that integers have too.
pub(super) trait Simple: Number {
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn sign(self) -> Self;
    fn relu(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn round(self) -> Self;
}

/// The others.
pub(super) trait Float: Simple {
    fn sqrt(self) -> Self;
    fn reciprocal(self) -> Self;
    /// The transcendental ops, over slices.
    fn function(op: UnaryOp) -> Option<fn(&mut [Self])>;
}

macro_rules! integers {
    ($($ty:ty: $x:ident => $neg:expr, $abs:expr, $sign:expr, $relu:expr;)*) => {$(
        impl Simple for $ty {
            #[inline(always)]
            fn neg(self) -> Self { let $x = self; $neg }
            #[inline(always)]
            fn abs(self) -> Self { let $x = self; $abs }
            #[inline(always)]
            fn sign(self) -> Self { let $x = self; $sign }
            #[inline(always)]
            fn relu(self) -> Self { let $x = self; $relu }
            #[inline(always)]
            fn floor(self) -> Self { self }
            #[inline(always)]
            fn ceil(self) -> Self { self }
            #[inline(always)]
            fn round(self) -> Self { self }
        }
    )*};
}

integers! {
    bool: x => x, x, x, x;
    u8: x => x.wrapping_neg(), x, x.min(1), x;
    i8: x => x.wrapping_neg(), x.wrapping_abs(), x.signum(), x.max(0);
    i16: x => x.wrapping_neg(), x.wrapping_abs(), x.signum(), x.max(0);
    i32: x => x.wrapping_neg(), x.wrapping_abs(), x.signum(), x.max(0);
    i64: x => x.wrapping_neg(), x.wrapping_abs(), x.signum(), x.max(0);
}

macro_rules! floats {
    ($($ty:ident: $($op:ident => $function:expr),*;)*) => {$(
        impl Simple for $ty {
            #[inline(always)]
            fn neg(self) -> Self { -self }
            #[inline(always)]
            fn abs(self) -> Self { <$ty>::abs(self) }
            #[inline(always)]
            fn sign(self) -> Self { <$ty>::from(i8::from(self > 0.0) - i8::from(self < 0.0)) }
            // A NaN stays one.
            #[inline(always)]
            fn relu(self) -> Self { if self < 0.0 { 0.0 } else { self } }
            #[inline(always)]
            fn floor(self) -> Self { <$ty>::floor(self) }
            #[inline(always)]
            fn ceil(self) -> Self { <$ty>::ceil(self) }
            #[inline(always)]
            fn round(self) -> Self { self.round_ties_even() }
        }

        impl Float for $ty {
            #[inline(always)]
            fn sqrt(self) -> Self { <$ty>::sqrt(self) }
            #[inline(always)]
            fn reciprocal(self) -> Self { 1.0 / self }
            fn function(op: UnaryOp) -> Option<fn(&mut [Self])> {
                Some(match op {
                    $(UnaryOp::$op => $function,)*
                    _ => return None,
                })
            }
        }
    )*};
}

floats! {
    f32:
        Exp => math::exp,
        Expm1 => math::expm1,
        Log => math::log,
        Log1p => math::log1p,
        Sin => |x| each(x, f32::sin),
        Cos => |x| each(x, f32::cos),
        Tanh => math::tanh,
        Erf => math::erf,
        Sigmoid => math::sigmoid,
        Silu => math::silu,
        Gelu => math::gelu,
        GeluTanh => math::gelu_tanh;
    f64:
        Exp => |x| each(x, f64::exp),
        Expm1 => |x| each(x, f64::exp_m1),
        Log => |x| each(x, f64::ln),
        Log1p => |x| each(x, f64::ln_1p),
        Sin => |x| each(x, f64::sin),
        Cos => |x| each(x, f64::cos),
        Tanh => |x| each(x, f64::tanh),
        Erf => |x| each(x, libm::erf),
        Sigmoid => |x| each(x, |x| 1.0 / (1.0 + (-x).exp())),
        Silu => |x| each(x, |x| x / (1.0 + (-x).exp())),
        // The last term as in `math::functions::gelu`.
        Gelu => |x| each(x, |x| x * 0.5 * (1.0 + libm::erf(x * FRAC_1_SQRT_2)) + 0.0 * x),
        GeluTanh => |x| each(x, |x| {
            let inner = FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        });
}

fn each<C: Copy>(values: &mut [C], f: impl Fn(C) -> C) {
    for x in values {
        *x = f(*x);
    }
}

/// Which ops a compute type has.
trait Ops<C> {
    /// Calls `run` with the function of an op.
    fn choose(op: UnaryOp, run: impl Run<C>);
}

/// Something done with a function of one element, or of slices.
trait Run<C> {
    fn with(self, f: impl Fn(C) -> C + Sync);
    fn with_slices(self, f: fn(&mut [C]));
}

struct Simply;
struct AsFloat;

impl<C: Simple> Ops<C> for Simply {
    fn choose(op: UnaryOp, run: impl Run<C>) {
        match op {
            UnaryOp::Neg => run.with(C::neg),
            UnaryOp::Abs => run.with(C::abs),
            UnaryOp::Sign => run.with(C::sign),
            UnaryOp::Square => run.with(|x| x.mul(x)),
            UnaryOp::Relu => run.with(C::relu),
            UnaryOp::Floor => run.with(C::floor),
            UnaryOp::Ceil => run.with(C::ceil),
            // `UnaryOp::dtype` lets no other op have integers.
            _ => run.with(C::round),
        }
    }
}

impl<C: Float> Ops<C> for AsFloat {
    fn choose(op: UnaryOp, run: impl Run<C>) {
        if let Some(function) = C::function(op) {
            return run.with_slices(function);
        }
        match op {
            UnaryOp::Sqrt => run.with(C::sqrt),
            UnaryOp::Rsqrt => run.with(|x| x.sqrt().reciprocal()),
            UnaryOp::Reciprocal => run.with(C::reciprocal),
            _ => Simply::choose(op, run),
        }
    }
}

struct Map<'a, 'b, T> {
    launch: &'a HostLaunch<'b>,
    index: Index<2>,
    operands: [Shared<T>; 2],
}

impl<T: HostElement> Run<T::Compute> for Map<'_, '_, T> {
    fn with(self, f: impl Fn(T::Compute) -> T::Compute + Sync) {
        let [a, out] = self.operands;
        // SAFETY: only `run` makes a `Map`, of a launch its caller vouches for.
        unsafe {
            map1(a, out, &self.index, self.launch.parallel, |x: T| T::put(f(x.get())));
        }
    }

    fn with_slices(self, f: fn(&mut [T::Compute])) {
        let [a, out] = self.operands;
        // SAFETY: as above.
        unsafe { map_slices(a, out, &self.index, self.launch.parallel, f) };
    }
}

/// # Safety
/// As [`HostKernel`]: an operand of `T` and a result of `T`, with [`Params`] of `S` and [`Args`].
unsafe fn run<T: HostElement, S: Space<2>, O: Ops<T::Compute>>(launch: &HostLaunch<'_>) {
    let Params { space, args, .. }: Params<S, Args> = params(launch);
    over::<T, O>(launch, space.index(), args);
}

/// One copy for both kinds of [`Space`].
fn over<T: HostElement, O: Ops<T::Compute>>(launch: &HostLaunch<'_>, index: Index<2>, args: Args) {
    let operands = [Shared::<T>::operand(launch, 0), Shared::<T>::operand(launch, 1)];
    O::choose(UnaryOp::ALL[args.op as usize], Map { launch, index, operands });
}
