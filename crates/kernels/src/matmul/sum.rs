//! Partial sums of the products of matrix and vector elements on the CPU.

use half::{bf16, f16};
use warpline_runtime::host::{HostElement, Number};

use crate::math::exact_sum;

/// A float dtype, and the type in which its products are summed.
pub(super) trait Summed: HostElement {
    /// Type of factors and products: `f64` for `f32` and `f64`, otherwise `f32`.
    type Wide: Number;
    /// A partial sum. Its rounding errors are below the precision of the dtype.
    type Sum: PartialSum<Self::Wide>;
    fn wide(self) -> Self::Wide;
    fn narrow(value: Self::Wide) -> Self::Compute;
}

macro_rules! summed {
    ($($ty:ty: $wide:ty, $sum:ty;)*) => {$(
        impl Summed for $ty {
            type Wide = $wide;
            type Sum = $sum;
            #[inline(always)]
            fn wide(self) -> $wide {
                self.get().into()
            }
            #[inline(always)]
            fn narrow(value: $wide) -> Self::Compute {
                value as Self::Compute
            }
        }
    )*};
}

summed! {
    f16: f32, f32;
    bf16: f32, f32;
    f32: f64, f64;
    f64: f64, Compensated;
}

/// A partial sum of values of type `V`.
pub(super) trait PartialSum<V>: Copy + Send + Sync {
    /// Returns the sum of two numbers, and its rounding error, which is 0 if the type does not keep it.
    fn exact(a: V, b: V) -> (V, V);
    /// Returns a sum with the sum of its rounding errors.
    fn new(sum: V, errors: V) -> Self;
    fn merge(self, other: Self) -> Self;
    fn value(self) -> V;
}

impl<V: Number> PartialSum<V> for V {
    #[inline(always)]
    fn exact(a: V, b: V) -> (V, V) {
        (a.add(b), V::from_bits(0))
    }
    #[inline(always)]
    fn new(sum: V, _: V) -> V {
        sum
    }
    #[inline(always)]
    fn merge(self, other: V) -> V {
        self.add(other)
    }
    #[inline(always)]
    fn value(self) -> V {
        self
    }
}

/// A sum of `f64`, and the sum of the rounding errors of its additions. The value is about as exact as if the elements
/// were added in twice the precision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Compensated {
    sum: f64,
    errors: f64,
}

impl PartialSum<f64> for Compensated {
    #[inline(always)]
    fn exact(a: f64, b: f64) -> (f64, f64) {
        exact_sum(a, b)
    }

    #[inline(always)]
    fn new(sum: f64, errors: f64) -> Self {
        Self { sum, errors }
    }

    #[inline(always)]
    fn merge(self, other: Self) -> Self {
        let (sum, error) = Self::exact(self.sum, other.sum);
        Self { sum, errors: self.errors + (other.errors + error) }
    }

    #[inline(always)]
    fn value(self) -> f64 {
        // After an overflow, or with elements that are not finite, the errors are NaN.
        if self.sum.is_finite() { self.sum + self.errors } else { self.sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(of: impl IntoIterator<Item = f64>) -> Compensated {
        let of = of.into_iter().map(|x| Compensated::new(x, 0.0));
        of.fold(Compensated::new(0.0, 0.0), Compensated::merge)
    }

    #[test]
    fn rounding_errors_are_added() {
        let ones = || std::iter::repeat_n(1.0, 1000);
        assert_eq!(sum([1e16].into_iter().chain(ones()).chain([-1e16])).value(), 1000.0);
        let parts = [sum([1e16]), sum(ones()), sum([-1e16])];
        assert_eq!(parts.into_iter().fold(sum([]), Compensated::merge).value(), 1000.0);
    }

    #[test]
    fn infinities_and_nan_remain() {
        let [inf, most] = [f64::INFINITY, f64::MAX];
        assert_eq!(sum([1.0, inf, 2.0]).value(), inf);
        assert_eq!(sum([most, most, 1.0]).value(), inf);
        assert!(sum([inf, -inf, 1.0]).value().is_nan());
        assert!(sum([1.0, f64::NAN]).value().is_nan());
    }
}
