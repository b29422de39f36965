//! CPU implementations of pools.

use std::ops::Range;

use warpline_cuda_sys_safe::HostLaunch;
use warpline_runtime::host::{GRAIN, HostElement, LANES, Number, SharedPtr, parallel_for};

use super::Pools;
use crate::math::{Loop, vectorized};

/// The span of a window in one dimension.
#[derive(Clone)]
struct WindowRange {
    /// The image positions that the window covers.
    inside: Range<i32>,
    /// The length including the padding.
    padded: i32,
    /// Number of window elements inside the image.
    taps: i32,
}

impl Pools {
    fn step(&self, d: usize) -> i32 {
        if self.adaptive == 0 { self.taps.dilation[d] } else { 1 }
    }

    /// Returns the span of result `o` in dimension `d`, as `elements` in `spans.cuh` computes it.
    fn span(&self, d: usize, o: i32) -> WindowRange {
        let t = &self.taps;
        if self.adaptive != 0 {
            let (input, output) = (t.input[d], t.output[d]);
            let inside = o * input / output..((o + 1) * input + output - 1) / output;
            let taps = inside.len() as i32;
            return WindowRange { inside, padded: taps, taps };
        }
        let (begin, step) = (t.at(d, o, 0), t.dilation[d]);
        let end = t.at(d, o, t.kernel[d] - 1) + 1;
        let padded = end.min(t.input[d] + t.padding[d]) - begin;
        let begin = if begin < 0 { begin + (step - 1 - begin) / step * step } else { begin };
        let inside = begin..end.min(t.input[d]);
        let taps = inside.len().div_ceil(step as usize) as i32;
        WindowRange { inside, padded, taps }
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

/// The computation of a result from the elements of its window.
trait Pool: Copy + Sync {
    type Element: HostElement;
    /// The state between two elements.
    type State: Copy;

    /// Returns the state before the first element, which has index `first` in the plane.
    fn begin(first: i32) -> Self::State;

    /// Returns the state after element `x`, which has this index in the plane.
    fn add(state: Self::State, x: Self::Element, index: i32) -> Self::State;

    /// Writes results from offset `at` on, `step` apart. `divisor` is `None` for windows without
    /// elements.
    ///
    /// # Safety
    /// The operands have these results, which belong to this thread.
    unsafe fn write<const N: usize>(
        self,
        at: isize,
        step: isize,
        states: [Self::State; N],
        divisor: Option<i64>,
    );
}

/// A max pool into values and indices.
#[derive(Clone, Copy)]
struct Max<T>(SharedPtr<T>, SharedPtr<i64>);

impl<T: HostElement> Pool for Max<T> {
    type Element = T;
    type State = (T, i32);

    /// Begins with the lowest value and the first index, so that an element that is negative
    /// infinity need not replace them.
    #[inline(always)]
    fn begin(first: i32) -> (T, i32) {
        (T::put(T::Compute::LOWEST), first)
    }

    /// Chooses the first of equal elements, and the last of several NaNs.
    #[inline(always)]
    fn add((most, at): (T, i32), x: T, index: i32) -> (T, i32) {
        let value = x.get();
        let larger = (value > most.get()) | value.is_nan();
        (if larger { x } else { most }, if larger { index } else { at })
    }

    #[inline(always)]
    unsafe fn write<const N: usize>(
        self,
        at: isize,
        step: isize,
        states: [(T, i32); N],
        divisor: Option<i64>,
    ) {
        let none = (T::put(T::Compute::from_bits(0)), 0);
        let states = if divisor.is_some() { states } else { [none; N] };
        // SAFETY: the caller guarantees that the operands have these results, which belong to this
        // thread.
        unsafe {
            store::<_, N>(self.0.at(at), step, std::array::from_fn(|i| states[i].0));
            store::<_, N>(self.1.at(at), step, std::array::from_fn(|i| states[i].1.into()));
        }
    }
}

/// An average pool.
#[derive(Clone, Copy)]
struct Avg<T>(SharedPtr<T>);

impl<T: HostElement> Pool for Avg<T> {
    type Element = T;
    type State = T::Compute;

    #[inline(always)]
    fn begin(_: i32) -> T::Compute {
        T::Compute::from_bits(0)
    }

    #[inline(always)]
    fn add(sum: T::Compute, x: T, _: i32) -> T::Compute {
        sum.add(x.get())
    }

    #[inline(always)]
    unsafe fn write<const N: usize>(
        self,
        at: isize,
        step: isize,
        sums: [T::Compute; N],
        divisor: Option<i64>,
    ) {
        // The sum of no elements is 0.
        let divisor = T::Compute::from_number(divisor.unwrap_or(1));
        let averages: [T; N] = std::array::from_fn(|i| T::put(sums[i].div(divisor)));
        // SAFETY: the caller guarantees that the operand has these results, which belong to this
        // thread.
        unsafe { store(self.0.at(at), step, averages) };
    }
}

/// Reads elements that are `step` apart.
///
/// # Safety
/// The elements must be declared by the launch, and no thread may write them meanwhile.
#[inline(always)]
unsafe fn load<T: Copy, const N: usize>(from: *const T, step: isize) -> [T; N] {
    // Loads at a constant step become vector instructions.
    // SAFETY: the caller guarantees that the elements are declared.
    unsafe {
        match step {
            1 => from.cast::<[T; N]>().read(),
            2 => std::array::from_fn(|i| from.add(2 * i).read()),
            _ => std::array::from_fn(|i| from.offset(i as isize * step).read()),
        }
    }
}

/// Writes elements that are `step` apart.
///
/// # Safety
/// The elements must be declared as writable by the launch, and no other thread may access them
/// meanwhile.
#[inline(always)]
unsafe fn store<T: Copy, const N: usize>(to: *mut T, step: isize, values: [T; N]) {
    // SAFETY: the caller guarantees that the elements are declared as writable and that no other
    // thread accesses them.
    unsafe {
        if step == 1 {
            to.cast::<[T; N]>().write(values);
        } else {
            for (i, value) in values.into_iter().enumerate() {
                to.offset(i as isize * step).write(value);
            }
        }
    }
}

/// Computes a pool of one plane.
struct Plane<'a, P: Pool> {
    p: &'a Pools,
    pool: P,
    image: SharedPtr<P::Element>,
    spans: &'a [Vec<WindowRange>; 3],
    /// The results in the last dimension whose windows are entirely inside the image.
    whole: Range<usize>,
    /// Offset of the plane in the image.
    from: i64,
    /// Offset of the first result.
    to: isize,
}

impl<P: Pool> Loop for Plane<'_, P> {
    #[inline(always)]
    fn run(self) {
        if self.whole.len() >= LANES {
            self.rows::<LANES>();
        } else {
            self.rows::<{ LANES / 2 }>();
        }
    }
}

impl<P: Pool> Plane<'_, P> {
    /// Computes all results, `N` at a time where the windows are entirely inside the image.
    #[inline(always)]
    fn rows<const N: usize>(&self) {
        let [depth, height, width] = self.spans;
        for d in 0..depth.len() {
            for h in 0..height.len() {
                let mut w = 0;
                while w < width.len() {
                    if self.whole.len() >= N && self.whole.contains(&w) {
                        // The last results of a row may be computed twice.
                        w = w.min(self.whole.end - N);
                        self.results::<N>([d, h, w]);
                        w += N;
                    } else {
                        self.results::<1>([d, h, w]);
                        w += 1;
                    }
                }
            }
        }
    }

    /// Computes `N` neighbouring results in the last dimension, from this position on. If `N` is not
    /// 1, their windows must be entirely inside the image in this dimension.
    #[inline(always)]
    fn results<const N: usize>(&self, position: [usize; 3]) {
        let (p, input) = (self.p, self.p.taps.input);
        let [d, h, w] = self.spans;
        let [d, h, w] = [&d[position[0]], &h[position[1]], &w[position[2]]];
        let (steps, stride) = ([p.step(0), p.step(1), p.step(2)], p.taps.stride[2]);
        let index = |[i, j, k]: [i32; 3]| (i * input[1] + j) * input[2] + k;
        let is_empty = d.taps == 0 || h.taps == 0 || w.taps == 0;
        let begin = [d.inside.start, h.inside.start, w.inside.start];
        let first = if is_empty { 0 } else { index(begin) };
        let mut states: [_; N] = std::array::from_fn(|lane| P::begin(first + lane as i32 * stride));
        let lane_step = (i64::from(stride) * p.image[4]) as isize;
        for i in 0..d.taps {
            for j in 0..h.taps {
                for k in 0..w.taps {
                    let [i, j, k] = [i * steps[0], j * steps[1], k * steps[2]];
                    let at = [begin[0] + i, begin[1] + j, begin[2] + k];
                    let from = self.image.at(p.at(self.from, at));
                    // SAFETY: `span` limits the positions to the image.
                    let elements: [_; N] = unsafe { load(from, lane_step) };
                    let index = index(at);
                    for lane in 0..N {
                        let index = index + lane as i32 * stride;
                        states[lane] = P::add(states[lane], elements[lane], index);
                    }
                }
            }
        }
        let divisor = (!is_empty).then(|| p.divisor([d, h, w]));
        let [d, h, w] = [position[0] as i64, position[1] as i64, position[2] as i64];
        let to = (d * p.result[2] + h * p.result[3] + w * p.result[4]) as isize + self.to;
        // SAFETY: the operands have a result for each position of the window, and the plane belongs
        // to this thread.
        unsafe { self.pool.write(to, p.result[4] as isize, states, divisor) };
    }
}

/// Computes a pool of the image, which is operand 0.
///
/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The results of the pool must be operands
/// of the launch.
unsafe fn run<P: Pool>(launch: &HostLaunch<'_>, p: &Pools, pool: P) {
    let (image, spans, taps) = (SharedPtr::operand(launch, 0), &p.spans(), &p.taps);
    let reach = (taps.kernel[2] - 1) * taps.dilation[2] + 1;
    let is_whole = |w: &WindowRange| p.adaptive == 0 && w.inside.len() as i32 == reach;
    let first = spans[2].iter().position(is_whole).unwrap_or(0);
    let last = spans[2].iter().rposition(is_whole).map_or(first, |last| last + 1);
    p.planes(launch.parallel, taps.elements() + taps.positions(), |from, to| {
        vectorized(Plane { p, pool, image, spans, whole: first..last, from, to });
    });
}

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the image (`T`), the
/// values (`T`) and the indices (`i64`).
pub(super) unsafe fn max_pool<T: HostElement>(launch: &HostLaunch<'_>, p: &Pools) {
    let pool = Max(SharedPtr::<T>::operand(launch, 1), SharedPtr::operand(launch, 2));
    // SAFETY: the caller guarantees that the operands are these.
    unsafe { run(launch, p, pool) };
}

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the image and the
/// result, with elements of type `T`.
pub(super) unsafe fn avg_pool<T: HostElement>(launch: &HostLaunch<'_>, p: &Pools) {
    // SAFETY: the caller guarantees that the operands are these.
    unsafe { run(launch, p, Avg(SharedPtr::<T>::operand(launch, 1))) };
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
