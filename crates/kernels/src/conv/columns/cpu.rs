//! CPU implementations of both conversions.

use warpline_cuda_sys_safe::HostLaunch;
use warpline_runtime::host::{GRAIN, HostElement, Number, SharedPtr, parallel_for};

use super::Columns;

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the image and the
/// columns, with elements of `size_of::<T>()` bytes.
pub(super) unsafe fn im2col<T: Copy + Default>(launch: &HostLaunch<'_>, p: &Columns) {
    let (image, columns) = (SharedPtr::<T>::operand(launch, 0), SharedPtr::<T>::operand(launch, 1));
    let (t, channels) = (p.taps, p.channels as usize);
    let (taps, positions) = (t.taps(), t.positions());
    let [_, height, width] = t.kernel;
    let step = p.image[4] as isize;
    let rows = p.batch as usize * channels * taps;
    parallel_for(launch.parallel, rows, (GRAIN / positions).max(1), |rows| {
        for row in rows {
            let (n, c, tap) = (row / (channels * taps), row / taps % channels, (row % taps) as i32);
            let from = n as i64 * p.image[0] + c as i64 * p.image[1];
            let to = n as i64 * p.columns[0] + (c * taps) as i64 * p.columns[1];
            let to = columns.at((to + i64::from(tap) * p.columns[1]) as isize);
            // SAFETY: the columns have a row of `positions` adjacent elements here, and the row
            // belongs to this thread.
            let row = unsafe { std::slice::from_raw_parts_mut(to, positions) };
            let [i, j, k] = [tap / (height * width), tap / width % height, tap % width];
            let lines = row.chunks_exact_mut(t.output[2] as usize);
            for (line, to) in lines.enumerate() {
                let (od, oh) = (line as i32 / t.output[1], line as i32 % t.output[1]);
                let (d, h) = (t.at(0, od, i), t.at(1, oh, j));
                if !(0..t.input[0]).contains(&d) || !(0..t.input[1]).contains(&h) {
                    to.fill(T::default());
                    continue;
                }
                let inside = t.inside(2, k);
                to[..inside.start as usize].fill(T::default());
                to[inside.end as usize..].fill(T::default());
                let to = &mut to[inside.start as usize..inside.end as usize];
                if to.is_empty() {
                    continue;
                }
                let first = i64::from(t.at(2, inside.start, k)) * p.image[4];
                let first = from + i64::from(d) * p.image[2] + i64::from(h) * p.image[3] + first;
                let first = image.at(first as isize);
                let step = step * t.stride[2] as isize;
                if step == 1 {
                    // SAFETY: `inside` limits the range to adjacent elements of one line of the
                    // image.
                    to.copy_from_slice(unsafe { std::slice::from_raw_parts(first, to.len()) });
                    continue;
                }
                for (x, to) in (0..).zip(to) {
                    // SAFETY: `inside` limits `x` to elements of one line of the image.
                    *to = unsafe { first.offset(x * step).read() };
                }
            }
        }
    });
}

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the columns and the
/// image (`T`).
pub(super) unsafe fn col2im<T: HostElement>(launch: &HostLaunch<'_>, p: &Columns) {
    let (columns, image) = (SharedPtr::<T>::operand(launch, 0), SharedPtr::<T>::operand(launch, 1));
    let (t, channels) = (p.taps, p.channels as usize);
    let (taps, positions, elements) = (t.taps(), t.positions(), t.elements());
    let [_, height, width] = t.kernel;
    let planes = p.batch as usize * channels;
    let grain = (GRAIN / (positions * taps).max(1)).max(1);
    parallel_for(launch.parallel, planes, grain, |planes| {
        let zero = T::Compute::from_bits(0);
        let mut sums = vec![zero; elements];
        for plane in planes {
            let (n, c) = ((plane / channels) as i64, (plane % channels) as i64);
            sums.fill(zero);
            let first = n * p.columns[0] + c * taps as i64 * p.columns[1];
            for tap in 0..taps as i32 {
                let [i, j, k] = [tap / (height * width), tap / width % height, tap % width];
                let row = columns.at((first + i64::from(tap) * p.columns[1]) as isize);
                let inside = t.inside(2, k);
                if inside.is_empty() {
                    continue;
                }
                for od in t.inside(0, i) {
                    for oh in t.inside(1, j) {
                        let line = (od as usize * t.output[1] as usize + oh as usize)
                            * t.output[2] as usize;
                        let (d, h) = (t.at(0, od, i) as usize, t.at(1, oh, j) as usize);
                        let at = (d * t.input[1] as usize + h) * t.input[2] as usize;
                        let at = at + t.at(2, inside.start, k) as usize;
                        // SAFETY: `inside` limits the range to adjacent elements of one row of the
                        // columns.
                        let from = unsafe {
                            let from = row.add(line + inside.start as usize);
                            std::slice::from_raw_parts(from, inside.len())
                        };
                        let sums = sums[at..].iter_mut().step_by(t.stride[2] as usize);
                        for (sum, &x) in sums.zip(from) {
                            *sum = sum.add(x.get());
                        }
                    }
                }
            }
            let to = n * p.image[0] + c * p.image[1];
            let mut sums = sums.iter();
            for line in 0..t.input[0] * t.input[1] {
                let (d, h) = (i64::from(line / t.input[1]), i64::from(line % t.input[1]));
                let to = to + d * p.image[2] + h * p.image[3];
                for (w, &sum) in (0..i64::from(t.input[2])).zip(&mut sums) {
                    // SAFETY: the image has this element, and the plane belongs to this thread.
                    unsafe { image.write((to + w * p.image[4]) as isize, T::put(sum)) };
                }
            }
        }
    });
}
