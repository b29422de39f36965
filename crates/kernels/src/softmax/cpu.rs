//! The CPU implementation of softmax.

use warpline_cuda_sys_safe::HostLaunch;

use super::Params;
use crate::host::math::{self, LANES, Loop, vectorized};
use crate::host::{self, Cast, GRAIN, HostElement, Number, Shared};

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

/// Softmax of a row, or its logarithm, in place.
struct Row<'a, C> {
    row: &'a mut [[C; LANES]],
    log: bool,
}

impl<C: Float> Loop for Row<'_, C> {
    #[inline(always)]
    fn run(self) {
        let Self { row, log } = self;
        let mut largest = [lowest::<C>(); LANES];
        for chunk in &*row {
            for (largest, x) in largest.iter_mut().zip(chunk) {
                *largest = largest.maximum(*x);
            }
        }
        let largest = largest.into_iter().fold(lowest::<C>(), C::maximum).cast();
        // In double precision, for long rows.
        let mut sums = [0.0; LANES];
        for chunk in &mut *row {
            for (sum, x) in sums.iter_mut().zip(chunk) {
                let e = C::exp((*x).cast() - largest);
                *sum += e;
                *x = if log { *x } else { C::from_parts(e, 0) };
            }
        }
        let sum: f64 = sums.iter().sum();
        let (ln, inverse) = (sum.ln(), 1.0 / sum);
        for x in row.as_flattened_mut() {
            let value = if log { (*x).cast() - largest - ln } else { (*x).cast() * inverse };
            *x = C::from_parts(value, 0);
        }
    }
}

/// Adds nothing to a softmax.
fn lowest<C: Number>() -> C {
    C::from_parts(f64::NEG_INFINITY, 0)
}

/// # Safety
/// As [`warpline_cuda_sys_safe::HostKernel`]: source and result, of `T`s, and [`Params`].
pub(super) unsafe fn softmax<T: HostElement<Compute: Float>>(launch: &HostLaunch<'_>) {
    let p: Params = host::params(launch);
    let (source, result) = (Shared::<T>::operand(launch, 0), Shared::<T>::operand(launch, 1));
    let size = p.size as usize;
    let grain = (GRAIN / 8 / size).max(1);
    host::parallel_for(launch.parallel, p.rows as usize, grain, |rows| {
        let mut chunks = vec![[lowest::<T::Compute>(); LANES]; size.div_ceil(LANES)];
        for index in rows {
            let (from, to) = p.row(index);
            let row = chunks.as_flattened_mut();
            for (i, x) in row[..size].iter_mut().enumerate() {
                // SAFETY: an element of the source.
                *x = unsafe { source.read(from + i as isize * p.source_step as isize) }.get();
            }
            row[size..].fill(lowest());
            vectorized(Row { row: &mut chunks, log: p.log != 0 });
            for (i, &x) in chunks.as_flattened()[..size].iter().enumerate() {
                // SAFETY: an element of the result, in a row that is this thread's.
                unsafe { result.write(to + i as isize * p.result_step as isize, T::put(x)) };
            }
        }
    });
}
