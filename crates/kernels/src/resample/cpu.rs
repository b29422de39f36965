//! CPU implementations of resizing.

use warpline_cuda_sys_safe::HostLaunch;
use warpline_runtime::host::{Cast, GRAIN, HostElement, Number, SharedPtr, parallel_for};

use super::Resample;

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
type Tap<C> = (usize, C);

/// Returns the image elements from which element `o` of the result is computed, and their number,
/// as `Near` in `resample.cuh` does.
fn near<C: Coordinate>(p: &Resample, o: i32) -> ([Tap<C>; 4], usize) {
    let (scale, o) = (C::rounded(p.scale), f64::from(o));
    let inside = |at: f64| (at.max(0.0) as usize).min(p.input as usize - 1);
    let mut taps = [(0, C::from_number(0.0)); 4];
    if p.kind < 2 {
        let at = C::rounded(if p.kind == 0 { o * scale } else { (o + 0.5) * scale });
        taps[0] = (inside(at.floor()), C::from_number(1.0));
        return (taps, 1);
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
        return (taps, 2);
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
    (taps, 4)
}

/// Returns the taps of [`near`] for each index of the result along the resized dimension.
fn table<C: Coordinate>(p: &Resample) -> Vec<([Tap<C>; 4], usize)> {
    (0..p.output).map(|o| near(p, o)).collect()
}

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the image and the
/// result, with elements of type `T`.
pub(super) unsafe fn resample<T: HostElement<Compute: Coordinate>>(
    launch: &HostLaunch<'_>,
    p: &Resample,
) {
    let (image, out) = (SharedPtr::<T>::operand(launch, 0), SharedPtr::<T>::operand(launch, 1));
    let (table, inner) = (table::<T::Compute>(p), p.inner as usize);
    let (input, output) = (p.input as usize, p.output as usize);
    let rows = p.outer as usize * output;
    parallel_for(launch.parallel, rows, (GRAIN / inner).max(1), |rows| {
        for row in rows {
            let (taps, count) = &table[row % output];
            let from = row / output * input;
            for column in 0..inner {
                let mut sum = T::Compute::from_number(0.0);
                for (at, weight) in &taps[..*count] {
                    // SAFETY: `near` limits `at` to the image.
                    let x = unsafe { image.read(((from + at) * inner + column) as isize) };
                    sum = sum.add(weight.mul(x.get()));
                }
                // SAFETY: the result has this element, in a row that belongs to this thread.
                unsafe { out.write((row * inner + column) as isize, T::put(sum)) };
            }
        }
    });
}

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the gradient and the
/// image, with elements of type `T`.
pub(super) unsafe fn resample_backward<T: HostElement<Compute: Coordinate>>(
    launch: &HostLaunch<'_>,
    p: &Resample,
) {
    let (grad, image) = (SharedPtr::<T>::operand(launch, 0), SharedPtr::<T>::operand(launch, 1));
    let (table, inner) = (table::<T::Compute>(p), p.inner as usize);
    let (input, output) = (p.input as usize, p.output as usize);
    let zero = T::Compute::from_number(0.0);
    let grain = (GRAIN / (input.max(output) * inner)).max(1);
    parallel_for(launch.parallel, p.outer as usize, grain, |planes| {
        let mut sums = vec![zero; input * inner];
        for plane in planes {
            sums.fill(zero);
            for (o, (taps, count)) in table.iter().enumerate() {
                let row = (plane * output + o) * inner;
                for &(at, weight) in &taps[..*count] {
                    for (column, sum) in sums[at * inner..][..inner].iter_mut().enumerate() {
                        // SAFETY: the gradient has a row for each `o` in this plane.
                        let x = unsafe { grad.read((row + column) as isize) };
                        *sum = sum.add(weight.mul(x.get()));
                    }
                }
            }
            for (i, &sum) in sums.iter().enumerate() {
                // SAFETY: the image has this element, in a plane that belongs to this thread.
                unsafe { image.write((plane * input * inner + i) as isize, T::put(sum)) };
            }
        }
    });
}
