//! Where a window lies that moves over an image: what convolutions and pools have in common.

use std::panic::Location;

use bytemuck::{Pod, Zeroable};
use warpline_runtime::cuda_struct;
use warpline_runtime::{Error, Result, View};

/// A window over an image of three dimensions; with fewer the first have size 1. Its element `k` is, for
/// result `o`, at `o * stride - padding + k * dilation`, which may be outside of the image.
///
/// The result's sizes are the caller's, so that there may be more padding at the end than at the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The image's sizes.
    pub input: [usize; 3],
    /// The result's.
    pub output: [usize; 3],
    /// The window's.
    pub kernel: [usize; 3],
    /// From one window to the next.
    pub stride: [usize; 3],
    /// What is before the image.
    pub padding: [usize; 3],
    /// From one element of the window to the next.
    pub dilation: [usize; 3],
}

impl Window {
    /// How many places the window has.
    #[must_use]
    pub fn places(&self) -> usize {
        self.output.iter().product()
    }

    /// How many elements the window has.
    #[must_use]
    pub fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// As kernels take it.
    #[track_caller]
    pub(crate) fn packed(&self, op: &'static str) -> Result<Taps> {
        let location = Location::caller();
        let fits = |sizes: &[usize; 3]| {
            // Products of them are computed in 32 bits, or they are too large for any memory.
            sizes.iter().try_fold(1usize, |all, &n| all.checked_mul(n.max(1))).is_some_and(is_small)
        };
        let reach = |d: usize| {
            let last = |count: usize, step: usize| count.saturating_sub(1).saturating_mul(step);
            last(self.output[d], self.stride[d])
                .saturating_add(last(self.kernel[d], self.dilation[d]))
                .saturating_add(self.padding[d])
                .saturating_add(self.input[d])
        };
        let all = [&self.input, &self.output, &self.kernel];
        if !all.into_iter().all(fits) || !(0..3).all(|d| is_small(reach(d))) {
            let reason = "the image, or what a window reaches of it, has 2³¹ elements or more";
            return Err(Error::ShapeMismatch { op, location, reason: reason.into() });
        }
        if (0..3).any(|d| self.stride[d] == 0 || self.dilation[d] == 0) {
            return Err(Error::invalid(op, "a stride or dilation of 0".into()).at(location));
        }
        let of = |values: [usize; 3]| values.map(|v| v as i32);
        Ok(Taps {
            input: of(self.input),
            output: of(self.output),
            kernel: of(self.kernel),
            stride: of(self.stride),
            padding: of(self.padding),
            dilation: of(self.dilation),
        })
    }
}

fn is_small(n: usize) -> bool {
    n < 1 << 31
}

/// A [`Window`] as kernels take it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Taps {
    pub(crate) input: [i32; 3],
    pub(crate) output: [i32; 3],
    pub(crate) kernel: [i32; 3],
    pub(crate) stride: [i32; 3],
    pub(crate) padding: [i32; 3],
    pub(crate) dilation: [i32; 3],
}

cuda_struct!(Taps { input, output, kernel, stride, padding, dilation });

impl Taps {
    pub(crate) fn taps(&self) -> usize {
        self.kernel.iter().map(|&n| n as usize).product()
    }

    pub(crate) fn places(&self) -> usize {
        self.output.iter().map(|&n| n as usize).product()
    }

    pub(crate) fn elements(&self) -> usize {
        self.input.iter().map(|&n| n as usize).product()
    }

    /// The place of element `k` of the window for result `o`, along a dimension.
    pub(crate) fn at(&self, d: usize, o: i32, k: i32) -> i32 {
        o * self.stride[d] - self.padding[d] + k * self.dilation[d]
    }

    /// The results for which element `k` of the window is in the image, along a dimension.
    pub(crate) fn inside(&self, d: usize, k: i32) -> std::ops::Range<i32> {
        let first = k * self.dilation[d] - self.padding[d];
        let ceil = |n: i32| if n <= 0 { 0 } else { (n - 1) / self.stride[d] + 1 };
        let (begin, end) = (ceil(-first), ceil(self.input[d] - first));
        begin.min(self.output[d])..end.min(self.output[d])
    }
}

/// A batch of images of several channels: `[batch, channels, …]` with one to three dimensions more, of the sizes
/// given. Their strides, of those that there are not 0.
#[track_caller]
pub(crate) fn images(
    op: &'static str,
    view: View<'_>,
    sizes: [usize; 3],
) -> Result<([usize; 2], [i64; 5])> {
    let location = Location::caller();
    let own = view.sizes();
    let spatial = own.len().wrapping_sub(2);
    let is_one = |n: &usize| *n == 1;
    if !(1..=3).contains(&spatial)
        || own[2..] != sizes[3 - spatial..]
        || !sizes[..3 - spatial].iter().all(is_one)
        || own[..2].iter().any(|&n| n > u32::MAX as usize)
    {
        let reason =
            format!("a tensor of {own:?} where a batch of images of {sizes:?} is expected");
        return Err(Error::ShapeMismatch { op, location, reason });
    }
    let mut strides = [0; 5];
    let at = |d: usize| view.strides()[d] as i64;
    (strides[0], strides[1]) = (at(0), at(1));
    for d in 0..spatial {
        strides[5 - spatial + d] = at(2 + d);
    }
    Ok(([own[0], own[1]], strides))
}

/// Blocks for so many elements of each plane, and their threads.
pub(crate) fn grid(elements: usize, [batch, channels]: [usize; 2]) -> ([u32; 3], u32) {
    let threads = elements.next_multiple_of(32).min(256);
    let most = |n: usize| n.min(65_535) as u32;
    ([elements.div_ceil(threads) as u32, most(channels), most(batch)], threads as u32)
}
