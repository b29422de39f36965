//! CPU implementations of pools.

use std::ops::Range;

use warpline_cuda_sys_safe::HostLaunch;
use warpline_runtime::host::{GRAIN, HostElement, Number, SharedPtr, parallel_for};

use super::Pools;

/// The span of a window in one dimension: the image positions that it covers, and its length
/// including the padding.
#[derive(Clone)]
struct WindowRange {
    inside: Range<i32>,
    padded: i32,
}

impl Pools {
    fn step(&self, d: usize) -> usize {
        if self.adaptive == 0 { self.taps.dilation[d] as usize } else { 1 }
    }

    /// Returns the span of result `o` in dimension `d`, as `elements` in `spans.cuh` computes it.
    fn span(&self, d: usize, o: i32) -> WindowRange {
        let t = &self.taps;
        if self.adaptive != 0 {
            let (input, output) = (t.input[d], t.output[d]);
            let inside = o * input / output..((o + 1) * input + output - 1) / output;
            return WindowRange { padded: inside.len() as i32, inside };
        }
        let (begin, step) = (t.at(d, o, 0), t.dilation[d]);
        let end = t.at(d, o, t.kernel[d] - 1) + 1;
        let padded = end.min(t.input[d] + t.padding[d]) - begin;
        let begin = if begin < 0 { begin + (step - 1 - begin) / step * step } else { begin };
        WindowRange { inside: begin..end.min(t.input[d]), padded }
    }

    /// Returns, for each dimension, the spans of all results.
    fn spans(&self) -> [Vec<WindowRange>; 3] {
        [0, 1, 2].map(|d| (0..self.taps.output[d]).map(|o| self.span(d, o)).collect())
    }

    fn divisor(&self, spans: [&WindowRange; 3]) -> i64 {
        if self.divisor != 0 {
            return self.divisor;
        }
        let count = |span: &WindowRange| {
            i64::from(if self.padded != 0 { span.padded } else { span.inside.len() as i32 })
        };
        spans.into_iter().map(count).product()
    }

    /// Calls `f` for every plane (one channel of one image), in parallel, with the offset of the
    /// plane in the image and the offset of its first result. `work` is the number of steps per
    /// plane.
    fn planes(&self, parallel: bool, work: usize, f: impl Fn(i64, isize) + Sync) {
        let channels = self.channels as usize;
        let planes = self.batch as usize * channels;
        parallel_for(parallel, planes, (GRAIN / work.max(1)).max(1), |planes| {
            for plane in planes {
                let (n, c) = ((plane / channels) as i64, (plane % channels) as i64);
                let first = n * self.result[0] + c * self.result[1];
                f(n * self.image[0] + c * self.image[1], first as isize);
            }
        });
    }

    /// Returns the offset of each result of a plane from the plane's first result, in row-major
    /// order.
    fn result_offsets(&self) -> Vec<isize> {
        let [depth, height, width] = self.taps.output.map(i64::from);
        let mut all = Vec::with_capacity(self.taps.positions());
        for (d, h) in (0..depth).flat_map(|d| (0..height).map(move |h| (d, h))) {
            let row = d * self.result[2] + h * self.result[3];
            all.extend((0..width).map(|w| (row + w * self.result[4]) as isize));
        }
        all
    }

    /// Returns the offset, in the image, of the element at a position in the plane.
    fn at(&self, plane: i64, [d, h, w]: [i32; 3]) -> isize {
        let [d, h, w] = [d, h, w].map(i64::from);
        (plane + d * self.image[2] + h * self.image[3] + w * self.image[4]) as isize
    }
}

/// Returns the spans of each result, in row-major order.
fn windows(spans: &[Vec<WindowRange>; 3]) -> impl Iterator<Item = [&WindowRange; 3]> {
    spans[0].iter().flat_map(move |d| {
        spans[1].iter().flat_map(move |h| spans[2].iter().map(move |w| [d, h, w]))
    })
}

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the image (`T`), the
/// values (`T`) and the indices (`i64`).
pub(super) unsafe fn max_pool<T: HostElement>(launch: &HostLaunch<'_>, p: &Pools) {
    let (image, values) = (SharedPtr::<T>::operand(launch, 0), SharedPtr::<T>::operand(launch, 1));
    let indices = SharedPtr::<i64>::operand(launch, 2);
    let spans = p.spans();
    let (steps, width) = ([0, 1, 2].map(|d| p.step(d)), i64::from(p.taps.input[2]));
    let offsets = p.result_offsets();
    p.planes(launch.parallel, p.taps.elements() + p.taps.positions(), |plane, first| {
        let mut offsets = offsets.iter();
        for d in &spans[0] {
            for h in &spans[1] {
                for w in &spans[2] {
                    let mut best = T::put(T::Compute::from_bits(0));
                    let mut most: Option<T::Compute> = None;
                    let mut at = 0;
                    for i in d.inside.clone().step_by(steps[0]) {
                        for j in h.inside.clone().step_by(steps[1]) {
                            let row = p.at(plane, [i, j, 0]);
                            let line =
                                (i64::from(i) * i64::from(p.taps.input[1]) + i64::from(j)) * width;
                            let mut k = i64::from(w.inside.start);
                            while k < i64::from(w.inside.end) {
                                // SAFETY: `span` limits the position to the image.
                                let raw = unsafe { image.read(row + (k * p.image[4]) as isize) };
                                let value = raw.get();
                                // Choose the first of equal elements, and the last of several NaNs.
                                if most.is_none_or(|most| value > most || value.is_nan()) {
                                    (best, most, at) = (raw, Some(value), line + k);
                                }
                                k += steps[2] as i64;
                            }
                        }
                    }
                    let Some(offset) = offsets.next() else { return };
                    // SAFETY: the results have an element for each position of the window, and the
                    // plane belongs to this thread.
                    unsafe {
                        values.write(first + offset, best);
                        indices.write(first + offset, at);
                    }
                }
            }
        }
    });
}

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the gradient (`T`),
/// the indices (`i64`) and the image (`T`).
pub(super) unsafe fn max_pool_backward<T: HostElement>(launch: &HostLaunch<'_>, p: &Pools) {
    let (grad, image) = (SharedPtr::<T>::operand(launch, 0), SharedPtr::<T>::operand(launch, 2));
    let indices = SharedPtr::<i64>::operand(launch, 1);
    let (offsets, elements) = (p.result_offsets(), p.taps.elements());
    p.planes(launch.parallel, elements + offsets.len(), |plane, first| {
        let mut sums = vec![T::Compute::from_bits(0); elements];
        for offset in &offsets {
            // SAFETY: the gradient and the indices have an element for each position of the window.
            let (index, value) =
                unsafe { (indices.read(first + offset), grad.read(first + offset)) };
            // An index outside the image, such as that of a window in the padding, selects no
            // element.
            if let Some(sum) = usize::try_from(index).ok().and_then(|i| sums.get_mut(i)) {
                *sum = sum.add(value.get());
            }
        }
        // SAFETY: the plane is within the image and belongs to this thread.
        unsafe { put(p, plane, &sums, image) };
    });
}

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the image and the
/// result, with elements of type `T`.
pub(super) unsafe fn avg_pool<T: HostElement>(launch: &HostLaunch<'_>, p: &Pools) {
    let (image, out) = (SharedPtr::<T>::operand(launch, 0), SharedPtr::<T>::operand(launch, 1));
    let (spans, offsets) = (p.spans(), p.result_offsets());
    p.planes(launch.parallel, p.taps.elements() + p.taps.positions(), |plane, first| {
        for (window, offset) in windows(&spans).zip(&offsets) {
            let [d, h, w] = window;
            let mut sum = T::Compute::from_bits(0);
            for i in d.inside.clone() {
                for j in h.inside.clone() {
                    let row = p.at(plane, [i, j, 0]);
                    for k in w.inside.clone() {
                        let at = row + (i64::from(k) * p.image[4]) as isize;
                        // SAFETY: `span` limits the position to the image.
                        sum = sum.add(unsafe { image.read(at) }.get());
                    }
                }
            }
            if window.iter().all(|span| !span.inside.is_empty()) {
                sum = sum.div(T::Compute::from_number(p.divisor(window)));
            }
            // SAFETY: the result has an element for each position of the window, and the plane
            // belongs to this thread.
            unsafe { out.write(first + offset, T::put(sum)) };
        }
    });
}

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the gradient and the
/// image, with elements of type `T`.
pub(super) unsafe fn avg_pool_backward<T: HostElement>(launch: &HostLaunch<'_>, p: &Pools) {
    let (grad, image) = (SharedPtr::<T>::operand(launch, 0), SharedPtr::<T>::operand(launch, 1));
    let (elements, spans, offsets) = (p.taps.elements(), p.spans(), p.result_offsets());
    p.planes(launch.parallel, elements + p.taps.positions(), |plane, first| {
        let mut sums = vec![T::Compute::from_bits(0); elements];
        for (window, offset) in windows(&spans).zip(&offsets) {
            if window.iter().any(|span| span.inside.is_empty()) {
                continue;
            }
            // SAFETY: the gradient has an element for each position of the window.
            let value = unsafe { grad.read(first + offset) }.get();
            let value = value.div(T::Compute::from_number(p.divisor(window)));
            let [d, h, w] = window;
            for i in d.inside.clone() {
                for j in h.inside.clone() {
                    let row = (i * p.taps.input[1] + j) as usize * p.taps.input[2] as usize;
                    let own = row + w.inside.start as usize..row + w.inside.end as usize;
                    for sum in &mut sums[own] {
                        *sum = sum.add(value);
                    }
                }
            }
        }
        // SAFETY: the plane is within the image and belongs to this thread.
        unsafe { put(p, plane, &sums, image) };
    });
}

/// Writes a plane of the image.
///
/// # Safety
/// `plane` is the offset of a plane of the image. The plane belongs to this thread.
unsafe fn put<T: HostElement>(p: &Pools, plane: i64, sums: &[T::Compute], image: SharedPtr<T>) {
    let mut sums = sums.iter();
    for line in 0..p.taps.input[0] * p.taps.input[1] {
        let row = p.at(plane, [line / p.taps.input[1], line % p.taps.input[1], 0]);
        for (w, &sum) in (0..i64::from(p.taps.input[2])).zip(&mut sums) {
            // SAFETY: the caller guarantees that the plane exists and belongs to this thread.
            unsafe { image.write(row + (w * p.image[4]) as isize, T::put(sum)) };
        }
    }
}
