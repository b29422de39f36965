//! CPU implementations of resizing.

use std::slice::{from_raw_parts, from_raw_parts_mut};

use warpline_cuda_sys_safe::HostLaunch;
use warpline_runtime::host::{Cast, GRAIN, HostElement, Number, SharedPtr, parallel_for};

use super::Resample;
use crate::math::{Loop, vectorized};

/// The type in which coordinates are computed.
pub(super) trait Coordinate: Number + Cast<f64> {
    /// Rounds `x` to the precision of the type.
    fn rounded(x: f64) -> f64;
}

impl Coordinate for f32 {
    fn rounded(x: f64) -> f64 {
        f64::from(x as f32)
    }
}

impl Coordinate for f64 {
    fn rounded(x: f64) -> f64 {
        x
    }
}

/// The index of an image element, and its weight in an interpolation.
type Tap<C> = (u32, C);

/// Returns the image elements from which element `o` of the result is computed, as `Near` in
/// `resample.cuh` does. Their number depends on the kind.
fn near<C: Coordinate>(p: &Resample, o: i32) -> [Tap<C>; 4] {
    let (scale, o) = (C::rounded(p.scale), f64::from(o));
    let inside = |at: f64| (at.max(0.0) as u32).min(p.input as u32 - 1);
    let mut taps = [(0, C::from_number(0.0)); 4];
    if p.kind < 2 {
        let at = C::rounded(if p.kind == 0 { o * scale } else { (o + 0.5) * scale });
        taps[0] = (inside(at.floor()), C::from_number(1.0));
        return taps;
    }
    let aligned = p.align_corners != 0;
    let product = C::rounded(if aligned { o * scale } else { scale * (o + 0.5) });
    let at = if aligned { product } else { C::rounded(product - 0.5) };
    if p.kind == 2 {
        let at = at.max(0.0);
        let first = inside(at);
        let t = (at - first as f64).min(1.0);
        taps[0] = (first, C::from_number(1.0 - t));
        taps[1] = (inside(first as f64 + 1.0), C::from_number(t));
        return taps;
    }
    let (below, a) = (at.floor(), -0.75);
    let t = at - below;
    let distances = [t + 1.0, t, 1.0 - t, 2.0 - t];
    for (k, (tap, x)) in taps.iter_mut().zip(distances).enumerate() {
        let weight = if k == 1 || k == 2 {
            ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
        } else {
            ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
        };
        *tap = (inside(below + k as f64 - 1.0), C::from_number(weight));
    }
    taps
}

/// Returns the `N` taps for each index of the result along the resized dimension.
fn table<C: Coordinate, const N: usize>(p: &Resample) -> Vec<[Tap<C>; N]> {
    let first = |taps: [Tap<C>; 4]| std::array::from_fn(|k| taps[k]);
    (0..p.output).map(|o| first(near(p, o))).collect()
}

/// Calls a function whose last generic argument is the number of taps per row.
macro_rules! with_taps {
    ($function:ident::<$ty:ty>($launch:expr, $p:expr)) => {
        match $p.kind {
            0 | 1 => $function::<$ty, 1>($launch, $p),
            2 => $function::<$ty, 2>($launch, $p),
            _ => $function::<$ty, 4>($launch, $p),
        }
    };
}

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the image and the
/// result, with elements of type `T`.
pub(super) unsafe fn resample<T: HostElement<Compute: Coordinate>>(
    launch: &HostLaunch<'_>,
    p: &Resample,
) {
    // SAFETY: the caller guarantees that the operands are these.
    unsafe { with_taps!(interpolate::<T>(launch, p)) };
}

/// Implements [`resample`] for `N` taps per row.
///
/// # Safety
/// The conditions of [`resample`].
unsafe fn interpolate<T: HostElement<Compute: Coordinate>, const N: usize>(
    launch: &HostLaunch<'_>,
    p: &Resample,
) {
    let (image, out) = (SharedPtr::<T>::operand(launch, 0), SharedPtr::<T>::operand(launch, 1));
    let (table, inner) = (table::<T::Compute, N>(p), p.inner as usize);
    let (input, output) = (p.input as usize * inner, p.output as usize);
    let rows = p.outer as usize * output;
    parallel_for(launch.parallel, rows, (GRAIN / inner).max(1), |rows| {
        let mut row = rows.start;
        while row < rows.end {
            let (plane, first) = (row / output, row % output);
            let taps = &table[first..output.min(first + rows.end - row)];
            // SAFETY: the image has this plane. The result has these rows, which belong to this
            // thread.
            let (plane, to) = unsafe {
                let to = out.at((row * inner) as isize);
                let from = image.at((plane * input) as isize);
                (from_raw_parts(from, input), from_raw_parts_mut(to, taps.len() * inner))
            };
            vectorized(Rows { plane, taps, to });
            row += taps.len();
        }
    });
}

/// Returns the sum of elements times their weights.
#[inline(always)]
fn weighted_sum<T: HostElement, const N: usize>(terms: [(T, T::Compute); N]) -> T {
    let zero = T::Compute::from_bits(0);
    T::put(terms.iter().fold(zero, |sum, (x, weight)| sum.add(weight.mul(x.get()))))
}

/// Computes rows of the result from a plane of the image.
struct Rows<'a, T: HostElement, const N: usize> {
    plane: &'a [T],
    /// The taps of each row.
    taps: &'a [[Tap<T::Compute>; N]],
    to: &'a mut [T],
}

impl<T: HostElement, const N: usize> Loop for Rows<'_, T, N> {
    #[inline(always)]
    fn run(self) {
        let Self { plane, taps, to } = self;
        let inner = to.len() / taps.len();
        if inner == 1 {
            for (to, taps) in to.iter_mut().zip(taps) {
                *to = weighted_sum(taps.map(|(at, weight)| (plane[at as usize], weight)));
            }
            return;
        }
        for (to, taps) in to.chunks_exact_mut(inner).zip(taps) {
            let rows = taps.map(|(at, weight)| (&plane[at as usize * inner..][..inner], weight));
            for (column, to) in to.iter_mut().enumerate() {
                *to = weighted_sum(rows.map(|(row, weight)| (row[column], weight)));
            }
        }
    }
}

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the gradient and the
/// image, with elements of type `T`.
pub(super) unsafe fn resample_backward<T: HostElement<Compute: Coordinate>>(
    launch: &HostLaunch<'_>,
    p: &Resample,
) {
    // SAFETY: the caller guarantees that the operands are these.
    unsafe { with_taps!(transpose::<T>(launch, p)) };
}

/// Implements [`resample_backward`] for `N` taps per row.
///
/// # Safety
/// The conditions of [`resample_backward`].
unsafe fn transpose<T: HostElement<Compute: Coordinate>, const N: usize>(
    launch: &HostLaunch<'_>,
    p: &Resample,
) {
    let (grad, image) = (SharedPtr::<T>::operand(launch, 0), SharedPtr::<T>::operand(launch, 1));
    let (table, inner) = (table::<T::Compute, N>(p), p.inner as usize);
    let (input, output) = (p.input as usize * inner, p.output as usize * inner);
    let grain = (GRAIN / input.max(output)).max(1);
    parallel_for(launch.parallel, p.outer as usize, grain, |planes| {
        let mut sums = vec![T::Compute::from_number(0.0); input];
        for plane in planes {
            let rows = match output {
                // The pointer of an operand without elements may be null.
                0 => &[],
                // SAFETY: the gradient has this plane.
                _ => unsafe { from_raw_parts(grad.at((plane * output) as isize), output) },
            };
            // SAFETY: the image has this plane, which belongs to this thread.
            let to = unsafe { from_raw_parts_mut(image.at((plane * input) as isize), input) };
            vectorized(Transpose { inner, rows, taps: &table, sums: &mut sums, to });
        }
    });
}

/// Adds the rows of a plane of the gradient to the rows of the image.
struct Transpose<'a, T: HostElement, const N: usize> {
    inner: usize,
    rows: &'a [T],
    /// The taps of each row.
    taps: &'a [[Tap<T::Compute>; N]],
    /// Buffer for the plane of the image.
    sums: &'a mut [T::Compute],
    to: &'a mut [T],
}

impl<T: HostElement, const N: usize> Loop for Transpose<'_, T, N> {
    #[inline(always)]
    fn run(self) {
        let Self { inner, rows, taps, sums, to } = self;
        sums.fill(T::Compute::from_bits(0));
        if inner == 1 {
            for (x, taps) in rows.iter().zip(taps) {
                for &(at, weight) in taps {
                    let sum = &mut sums[at as usize];
                    *sum = sum.add(weight.mul(x.get()));
                }
            }
        } else {
            for (row, taps) in rows.chunks_exact(inner).zip(taps) {
                for &(at, weight) in taps {
                    for (sum, x) in sums[at as usize * inner..][..inner].iter_mut().zip(row) {
                        *sum = sum.add(weight.mul(x.get()));
                    }
                }
            }
        }
        for (to, &sum) in to.iter_mut().zip(&*sums) {
            *to = T::put(sum);
        }
    }
}
