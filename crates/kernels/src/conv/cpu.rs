//! CPU implementations of a convolution and its gradients, by their definition. Simulated GPUs run
//! them in place of cuDNN.

use warpline_cuda_sys_safe::HostLaunch;
use warpline_runtime::host::{HostElement, Number, SharedPtr, parallel_for};

use super::cudnn::Conv;

/// A position in three dimensions.
type At = [i64; 3];

impl Conv {
    /// Calls `f(tap, image, result, count)` for each element `tap` of the window and each row of
    /// results to which this element contributes. `result` is the position of the first such result
    /// in the row, `image` is the position of the image element that `tap` multiplies there, and
    /// `count` is the number of such results in the row.
    fn each_row(&self, mut f: impl FnMut(At, At, At, usize)) {
        let t = &self.taps;
        let [depth, height, width] = t.kernel;
        for i in 0..depth {
            let slices = t.inside(0, i);
            for j in 0..height {
                let rows = t.inside(1, j);
                for k in 0..width {
                    let columns = t.inside(2, k);
                    if columns.is_empty() {
                        continue;
                    }
                    let (tap, column) = (position(i, j, k), t.at(2, columns.start, k));
                    for d in slices.clone() {
                        for h in rows.clone() {
                            let image = position(t.at(0, d, i), t.at(1, h, j), column);
                            f(tap, image, position(d, h, columns.start), columns.len());
                        }
                    }
                }
            }
        }
    }

    fn channels_per_group(&self) -> u32 {
        self.channels / self.groups
    }

    fn outputs_per_group(&self) -> u32 {
        self.outputs / self.groups
    }
}

#[inline]
fn position(d: i32, h: i32, w: i32) -> At {
    [i64::from(d), i64::from(h), i64::from(w)]
}

/// Returns the offset of an element in an operand with these strides, in elements. `first` is the
/// index in the first two dimensions, `at` the position in the other three.
#[inline]
fn offset(strides: &[i64; 5], first: [u32; 2], at: At) -> isize {
    let [a, b] = first;
    (i64::from(a) * strides[0]
        + i64::from(b) * strides[1]
        + at[0] * strides[2]
        + at[1] * strides[3]
        + at[2] * strides[4]) as isize
}

/// Returns the index of the group of `size` planes that contains `plane`, and the index of `plane`
/// within this group.
fn split(plane: usize, size: u32) -> [u32; 2] {
    [plane / size as usize, plane % size as usize].map(|n| n as u32)
}

/// Returns the position of an element in a dense order of `sizes`.
#[inline]
fn index(sizes: [i32; 3], at: At) -> usize {
    ((at[0] * i64::from(sizes[1]) + at[1]) * i64::from(sizes[2]) + at[2]) as usize
}

/// Writes dense values to a plane with these strides.
///
/// # Safety
/// The plane has these sizes, and no other thread accesses it.
unsafe fn write_plane<T: HostElement>(
    to: SharedPtr<T>,
    (strides, first): (&[i64; 5], [u32; 2]),
    sizes: [i32; 3],
    values: &[T::Compute],
) {
    let [depth, height, width] = sizes.map(i64::from);
    for d in 0..depth {
        for h in 0..height {
            let row = offset(strides, first, [d, h, 0]);
            let values = &values[index(sizes, [d, h, 0])..][..width as usize];
            for (w, value) in (0..).zip(values) {
                // SAFETY: the caller guarantees that the plane has this element.
                unsafe { to.write(row + w * strides[4] as isize, T::put(*value)) };
            }
        }
    }
}

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are images, weight and
/// result (`T`), and scratch memory.
pub(super) unsafe fn forward<T: HostElement>(launch: &HostLaunch<'_>, p: &Conv) {
    let [x, w, y] = [0, 1, 2].map(|i| SharedPtr::<T>::operand(launch, i));
    let planes = p.batch as usize * p.outputs as usize;
    parallel_for(launch.parallel, planes, 1, |planes| {
        let zero = T::Compute::from_bits(0);
        let mut sums = vec![zero; p.taps.positions()];
        for plane in planes {
            let [n, o] = split(plane, p.outputs);
            let first = o / p.outputs_per_group() * p.channels_per_group();
            sums.fill(zero);
            for c in 0..p.channels_per_group() {
                p.each_row(|tap, image, result, count| {
                    // SAFETY: the weight has this element.
                    let factor = unsafe { w.read(offset(&p.weight, [o, c], tap)) }.get();
                    let from = offset(&p.image, [n, first + c], image);
                    let step = (p.image[4] * i64::from(p.taps.stride[2])) as isize;
                    let sums = &mut sums[index(p.taps.output, result)..][..count];
                    for (k, sum) in (0..).zip(sums) {
                        // SAFETY: `each_row` yields elements inside the image.
                        let value = unsafe { x.read(from + k * step) }.get();
                        *sum = sum.add(factor.mul(value));
                    }
                });
            }
            // SAFETY: this is a plane of the result, and no other thread accesses it.
            unsafe { write_plane(y, (&p.result, [n, o]), p.taps.output, &sums) };
        }
    });
}

/// # Safety
/// The conditions of [`forward`].
pub(super) unsafe fn input_gradient<T: HostElement>(launch: &HostLaunch<'_>, p: &Conv) {
    let [x, w, y] = [0, 1, 2].map(|i| SharedPtr::<T>::operand(launch, i));
    let planes = p.batch as usize * p.channels as usize;
    parallel_for(launch.parallel, planes, 1, |planes| {
        let zero = T::Compute::from_bits(0);
        let mut sums = vec![zero; p.taps.elements()];
        for plane in planes {
            let [n, channel] = split(plane, p.channels);
            let (group, c) = (channel / p.channels_per_group(), channel % p.channels_per_group());
            sums.fill(zero);
            for o in (0..p.outputs_per_group()).map(|o| group * p.outputs_per_group() + o) {
                p.each_row(|tap, image, result, count| {
                    // SAFETY: the weight has this element.
                    let factor = unsafe { w.read(offset(&p.weight, [o, c], tap)) }.get();
                    let from = offset(&p.result, [n, o], result);
                    let sums = sums[index(p.taps.input, image)..].iter_mut();
                    let sums = sums.step_by(p.taps.stride[2] as usize).take(count);
                    for (k, sum) in (0..).zip(sums) {
                        // SAFETY: `each_row` yields results that exist.
                        let value = unsafe { y.read(from + k * p.result[4] as isize) }.get();
                        *sum = sum.add(factor.mul(value));
                    }
                });
            }
            // SAFETY: this is a plane of the images, and no other thread accesses it.
            unsafe { write_plane(x, (&p.image, [n, channel]), p.taps.input, &sums) };
        }
    });
}

/// # Safety
/// The conditions of [`forward`].
pub(super) unsafe fn weight_gradient<T: HostElement>(launch: &HostLaunch<'_>, p: &Conv) {
    let [x, w, y] = [0, 1, 2].map(|i| SharedPtr::<T>::operand(launch, i));
    let windows = p.outputs as usize * p.channels_per_group() as usize;
    parallel_for(launch.parallel, windows, 1, |windows| {
        let zero = T::Compute::from_bits(0);
        let mut sums = vec![zero; p.taps.taps()];
        for window in windows {
            let each = p.channels_per_group();
            let [o, c] = split(window, each);
            let channel = o / p.outputs_per_group() * each + c;
            sums.fill(zero);
            for n in 0..p.batch {
                p.each_row(|tap, image, result, count| {
                    let from = offset(&p.image, [n, channel], image);
                    let step = (p.image[4] * i64::from(p.taps.stride[2])) as isize;
                    let grad = offset(&p.result, [n, o], result);
                    let sum = &mut sums[index(p.taps.kernel, tap)];
                    for k in 0..count as isize {
                        // SAFETY: `each_row` yields elements inside the image and results that
                        // exist.
                        let (value, grad) = unsafe {
                            (x.read(from + k * step), y.read(grad + k * p.result[4] as isize))
                        };
                        *sum = sum.add(value.get().mul(grad.get()));
                    }
                });
            }
            // SAFETY: this is a window of the weight, and no other thread accesses it.
            unsafe { write_plane(w, (&p.weight, [o, c]), p.taps.kernel, &sums) };
        }
    });
}
