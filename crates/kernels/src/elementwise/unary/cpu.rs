//! The CPU implementation.

use warpline_cuda_sys_safe::{HostKernel, HostLaunch};

use super::{Args, UnaryOp};
use crate::elementwise::{Flat, Index, Params, Space};
use crate::host::{HostElement, Number, Shared, map1, params};

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
    fn exp(self) -> Self;
    fn expm1(self) -> Self;
    fn log(self) -> Self;
    fn log1p(self) -> Self;
    fn sqrt(self) -> Self;
    fn sin(self) -> Self;
    fn cos(self) -> Self;
    fn tanh(self) -> Self;
    fn erf(self) -> Self;
    fn reciprocal(self) -> Self;
    fn sigmoid(self) -> Self;
    fn silu(self) -> Self;
    fn gelu(self) -> Self;
    fn gelu_tanh(self) -> Self;
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
    ($($ty:ident, $erf:path;)*) => {$(
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
            fn exp(self) -> Self { <$ty>::exp(self) }
            #[inline(always)]
            fn expm1(self) -> Self { self.exp_m1() }
            #[inline(always)]
            fn log(self) -> Self { self.ln() }
            #[inline(always)]
            fn log1p(self) -> Self { self.ln_1p() }
            #[inline(always)]
            fn sqrt(self) -> Self { <$ty>::sqrt(self) }
            #[inline(always)]
            fn sin(self) -> Self { <$ty>::sin(self) }
            #[inline(always)]
            fn cos(self) -> Self { <$ty>::cos(self) }
            #[inline(always)]
            fn tanh(self) -> Self { <$ty>::tanh(self) }
            #[inline(always)]
            fn erf(self) -> Self { $erf(self) }
            #[inline(always)]
            fn reciprocal(self) -> Self { 1.0 / self }
            #[inline(always)]
            fn sigmoid(self) -> Self { 1.0 / (1.0 + <$ty>::exp(-self)) }
            #[inline(always)]
            fn silu(self) -> Self { self / (1.0 + <$ty>::exp(-self)) }
            #[inline(always)]
            fn gelu(self) -> Self {
                // The last term is nothing but for infinities: PyTorch's CPU library makes NaN of
                // both, not of the negative one alone.
                self * 0.5 * (1.0 + $erf(self * std::$ty::consts::FRAC_1_SQRT_2)) + 0.0 * self
            }
            #[inline(always)]
            fn gelu_tanh(self) -> Self {
                let sqrt_2_over_pi = std::$ty::consts::FRAC_2_SQRT_PI * std::$ty::consts::FRAC_1_SQRT_2;
                let inner = sqrt_2_over_pi * (self + 0.044715 * self * self * self);
                0.5 * self * (1.0 + <$ty>::tanh(inner))
            }
        }
    )*};
}

floats! {
    f32, libm::erff;
    f64, libm::erf;
}

/// Which ops a compute type has.
trait Ops<C> {
    /// Calls `run` with the function of an op.
    fn choose(op: UnaryOp, run: impl Run<C>);
}

/// Something done with a function of one element.
trait Run<C> {
    fn with(self, f: impl Fn(C) -> C + Sync);
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
        match op {
            UnaryOp::Exp => run.with(C::exp),
            UnaryOp::Expm1 => run.with(C::expm1),
            UnaryOp::Log => run.with(C::log),
            UnaryOp::Log1p => run.with(C::log1p),
            UnaryOp::Sqrt => run.with(C::sqrt),
            UnaryOp::Rsqrt => run.with(|x| x.sqrt().reciprocal()),
            UnaryOp::Reciprocal => run.with(C::reciprocal),
            UnaryOp::Sin => run.with(C::sin),
            UnaryOp::Cos => run.with(C::cos),
            UnaryOp::Tanh => run.with(C::tanh),
            UnaryOp::Erf => run.with(C::erf),
            UnaryOp::Sigmoid => run.with(C::sigmoid),
            UnaryOp::Silu => run.with(C::silu),
            UnaryOp::Gelu => run.with(C::gelu),
            UnaryOp::GeluTanh => run.with(C::gelu_tanh),
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
