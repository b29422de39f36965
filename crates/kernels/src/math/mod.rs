//! Transcendental functions of `f32` over slices, in vector instructions.
//!
//! They have no branches and call nothing, so that compilers turn a loop of them into vector
//! instructions; the loop is compiled once for each level of these, and the highest that the
//! processor has is chosen at run time. Computed in `f64`, without fused multiply-adds: so an
//! element's result is the same wherever it lies and on every processor, and all are within a unit
//! in the last place.
//!
//! `f64` stays with the system's library, one element after the other: polynomials that are as
//! good as it would need twice the terms and sums in two parts, for half as many lanes.

pub(crate) mod functions;
#[cfg(test)]
mod tests;

use pulp::{Arch, Simd, WithSimd};

/// Something to be compiled for each level of vector instructions.
pub(crate) trait Loop {
    /// Has to be `inline(always)` with all that it calls: what is not inlined is compiled for the
    /// lowest level.
    fn run(self);
}

/// Runs a loop at the highest level that the processor has.
pub(crate) fn vectorized(body: impl Loop) {
    Arch::new().dispatch(Vectorized(body));
}

struct Vectorized<L>(L);

impl<L: Loop> WithSimd for Vectorized<L> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        self.0.run();
    }
}

/// `to = f(from)` for every element. Of slices, since the loops over elements together that the lowest
/// level needs come out badly at others.
pub(crate) struct Convert<'a, A, O, F>(pub(crate) &'a [A], pub(crate) &'a mut [O], pub(crate) F);

impl<A: Copy, O, F: Fn(A) -> O> Loop for Convert<'_, A, O, F> {
    #[inline(always)]
    fn run(self) {
        for (to, &from) in self.1.iter_mut().zip(self.0) {
            *to = (self.2)(from);
        }
    }
}

/// `x = f(x)` for every element.
struct Each<'a, F>(&'a mut [f32], F);

impl<F: Fn(f64) -> f64> Loop for Each<'_, F> {
    #[inline(always)]
    fn run(self) {
        for x in self.0 {
            *x = (self.1)((*x).into()) as f32;
        }
    }
}

macro_rules! functions {
    ($($name:ident)*) => {$(
        #[doc = concat!("[`functions::", stringify!($name), "`] of every element.")]
        pub(crate) fn $name(values: &mut [f32]) {
            vectorized(Each(values, functions::$name));
        }
    )*};
}

functions! { exp expm1 log log1p tanh erf sigmoid silu gelu gelu_tanh }
