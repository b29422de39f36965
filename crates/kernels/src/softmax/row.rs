//! Softmax of one row on the CPU, for softmax and attention.

use crate::math::{self, Loop};
use warpline_runtime::host::{Cast, LANES, Number};

/// A type in which softmax is computed.
pub(crate) trait Exp: Number + Cast<f64> {
    /// Returns eˣ⁻ᵐ in the precision of the type.
    fn exp(x: f64, most: f64) -> f64;
}

impl Exp for f32 {
    #[inline(always)]
    fn exp(x: f64, most: f64) -> f64 {
        math::functions::exp(x - most)
    }
}

impl Exp for f64 {
    #[inline(always)]
    fn exp(x: f64, most: f64) -> f64 {
        // The relative error of the result is the absolute error of the difference, so correct it.
        let (difference, error) = math::exact_sum(x, -most);
        let exp = difference.exp();
        if error.is_finite() { exp + exp * error } else { exp }
    }
}

/// Maximum number of elements of a row that are buffered at a time, because the buffer of a long
/// expanded row might not fit memory.
pub(crate) const BLOCK: usize = 1 << 18;

/// Computes the softmax of a row, or its logarithm if `log` is set.
pub(crate) struct Row<'a, C> {
    pub(crate) size: usize,
    pub(crate) log: bool,
    /// Buffer for a block of the row.
    pub(crate) block: &'a mut [[C; LANES]],
    pub(crate) read: &'a dyn Fn(usize, &mut [C]),
    pub(crate) write: &'a dyn Fn(usize, &[C]),
}

impl<C: Exp> Row<'_, C> {
    /// Reads the block that begins at element `first`, and pads the buffer with values that do not
    /// affect the result.
    fn load(&mut self, first: usize) {
        let flat = self.block.as_flattened_mut();
        let n = flat.len().min(self.size - first);
        (self.read)(first, &mut flat[..n]);
        flat[n..].fill(C::LOWEST);
    }
}

impl<C: Exp> Loop for Row<'_, C> {
    #[inline(always)]
    fn run(mut self) {
        let step = self.block.len() * LANES;
        let again = self.size > step;
        let mut largest = [C::LOWEST; LANES];
        for first in (0..self.size).step_by(step) {
            self.load(first);
            for chunk in &*self.block {
                for (largest, x) in largest.iter_mut().zip(chunk) {
                    *largest = largest.maximum(*x);
                }
            }
        }
        let largest = largest.into_iter().fold(C::LOWEST, C::maximum).cast();
        // Sums are computed in double precision, so that they stay accurate for long rows.
        let mut sums = [0.0; LANES];
        for first in (0..self.size).step_by(step) {
            if again {
                self.load(first);
            }
            for chunk in &mut *self.block {
                for (sum, x) in sums.iter_mut().zip(chunk) {
                    let e = C::exp((*x).cast(), largest);
                    *sum += e;
                    *x = if self.log { *x } else { C::from_number(e) };
                }
            }
        }
        let sum: f64 = sums.iter().sum();
        let (ln, inverse) = (sum.ln(), 1.0 / sum);
        for first in (0..self.size).step_by(step) {
            if again {
                self.load(first);
            }
            let flat = self.block.as_flattened_mut();
            if again && !self.log {
                for x in &mut *flat {
                    *x = C::from_number(C::exp((*x).cast(), largest));
                }
            }
            for x in &mut *flat {
                let x64: f64 = (*x).cast();
                let value = if self.log { x64 - largest - ln } else { x64 * inverse };
                *x = C::from_number(value);
            }
            let n = flat.len().min(self.size - first);
            (self.write)(first, &flat[..n]);
        }
    }
}
