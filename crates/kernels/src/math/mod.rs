//! Transcendental functions of `f32` over slices, with vector instructions.
//!
//! The functions have no branches and no calls, so that compilers vectorize loops over them. Each
//! loop is compiled once per level of vector instructions, and the highest level that the processor
//! supports is selected at run time. The functions compute in `f64` without fused multiply-adds.
//! The result for an element therefore does not depend on its position or on the processor, and the
//! error is less than a unit in the last place.
//!
//! Functions of `f64` are those of the standard library and of `libm`, element by element. Polynomials
//! of the precision of `f64` would need twice as many terms, and sums in two parts, with half as many
//! lanes.

pub(crate) mod functions;
#[cfg(test)]
mod tests;

use pulp::{Arch, Simd, WithSimd};

/// Returns the rounded sum of two numbers, and the rounding error (Knuth). The error is NaN if the sum is not finite.
#[inline(always)]
pub(crate) fn exact_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let added = sum - a;
    (sum, (a - (sum - added)) + (b - added))
}

/// A loop that is compiled for each level of vector instructions.
pub(crate) trait Loop {
    /// Runs the loop. This function and all functions it calls must be `inline(always)`, because a
    /// call that is not inlined is compiled for the lowest level.
    fn run(self);
}

/// Runs a loop at the highest level that the processor supports.
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

/// Computes `to = f(from)` for every element of two slices. This loop over slices compiles well at
/// every level of vector instructions. A loop over explicit chunks would not.
pub(crate) struct Convert<'a, A, O, F>(pub(crate) &'a [A], pub(crate) &'a mut [O], pub(crate) F);

impl<A: Copy, O, F: Fn(A) -> O> Loop for Convert<'_, A, O, F> {
    #[inline(always)]
    fn run(self) {
        for (to, &from) in self.1.iter_mut().zip(self.0) {
            *to = (self.2)(from);
        }
    }
}

/// Computes `x = f(x)` for every element.
struct MapInPlace<'a, F>(&'a mut [f32], F);

impl<F: Fn(f64) -> f64> Loop for MapInPlace<'_, F> {
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
            vectorized(MapInPlace(values, functions::$name));
        }
    )*};
}

functions! { exp expm1 log log1p tanh erf sigmoid silu gelu gelu_tanh }
