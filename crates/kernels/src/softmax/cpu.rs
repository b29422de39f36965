//! The CPU implementation of softmax.

use warpline_cuda_sys_safe::HostLaunch;

use super::Rows;
use crate::math::{self, Loop, vectorized};
use warpline_runtime::host::LANES;
use warpline_runtime::host::{self, Cast, GRAIN, HostElement, Number, Shared};

/// A type that softmax is computed of.
pub(super) trait Float: Number + Cast<f64> {
    /// eˣ, as precise as the type.
    fn exp(x: f64) -> f64;
}

impl Float for f32 {
    #[inline(always)]
    fn exp(x: f64) -> f64 {
        math::functions::exp(x)
    }
}

impl Float for f64 {
    #[inline(always)]
    fn exp(x: f64) -> f64 {
        x.exp()
    }
}

/// Elements of a row that are taken at a time. A row may be longer than there is memory for.
pub(super) const BLOCK: usize = 1 << 18;

/// Softmax of a row, or its logarithm.
pub(super) struct Row<'a, C> {
    pub(super) size: usize,
    pub(super) log: bool,
    /// A block of the row.
    pub(super) block: &'a mut [[C; LANES]],
    pub(super) read: &'a dyn Fn(usize, &mut [C]),
    pub(super) write: &'a dyn Fn(usize, &[C]),
}

impl<C: Float> Row<'_, C> {
    /// Reads the block from an element on.
    fn load(&mut self, first: usize) {
        let flat = self.block.as_flattened_mut();
        let n = flat.len().min(self.size - first);
        (self.read)(first, &mut flat[..n]);
        flat[n..].fill(lowest());
    }
}

impl<C: Float> Loop for Row<'_, C> {
    #[inline(always)]
    fn run(mut self) {
        let step = self.block.len() * LANES;
        let again = self.size > step;
        let mut largest = [lowest::<C>(); LANES];
        for first in (0..self.size).step_by(step) {
            self.load(first);
            for chunk in &*self.block {
                for (largest, x) in largest.iter_mut().zip(chunk) {
                    *largest = largest.maximum(*x);
                }
            }
        }
        let largest = largest.into_iter().fold(lowest::<C>(), C::maximum).cast();
        // In double precision, for long rows.
        let mut sums = [0.0; LANES];
        for first in (0..self.size).step_by(step) {
            if again {
                self.load(first);
            }
            for chunk in &mut *self.block {
                for (sum, x) in sums.iter_mut().zip(chunk) {
                    let e = C::exp((*x).cast() - largest);
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
                    *x = C::from_number(C::exp((*x).cast() - largest));
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

/// Adds nothing to a softmax.
pub(super) fn lowest<C: Number>() -> C {
    C::from_number(f64::NEG_INFINITY)
}

/// # Safety
/// As [`warpline_cuda_sys_safe::HostKernel`]: source and result, of `T`s, and [`Rows`].
pub(super) unsafe fn softmax<T: HostElement<Compute: Float>>(launch: &HostLaunch<'_>) {
    let p: Rows = host::params(launch);
    let (source, result) = (Shared::<T>::operand(launch, 0), Shared::<T>::operand(launch, 1));
    let size = p.size as usize;
    let grain = (GRAIN / 8 / size).max(1);
    host::parallel_for(launch.parallel, p.rows as usize, grain, |rows| {
        let mut block = vec![[lowest::<T::Compute>(); LANES]; size.min(BLOCK).div_ceil(LANES)];
        for index in rows {
            let columns = p.columns as usize;
            let [from, to] =
                p.walk.offsets(index / columns).map(|at| at + (index % columns) as isize);
            let read = |first: usize, values: &mut [T::Compute]| {
                for (i, x) in (first as isize..).zip(values) {
                    // SAFETY: an element of the source.
                    *x = unsafe { source.read(from + i * p.source_step as isize) }.get();
                }
            };
            let write = |first: usize, values: &[T::Compute]| {
                for (i, &x) in (first as isize..).zip(values) {
                    // SAFETY: an element of the result, in a row that is this thread's.
                    unsafe { result.write(to + i * p.result_step as isize, T::put(x)) };
                }
            };
            let row = Row { size, log: p.log != 0, block: &mut block, read: &read, write: &write };
            vectorized(row);
        }
    });
}
