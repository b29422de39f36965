//! The geometry of a window that moves over an image, for convolutions and pools.

#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::launch::{Grid, blocks};
use warpline_runtime::{Error, Result, View, cuda_struct};

/// A window that moves over an image of three dimensions. For images of fewer dimensions, the first
/// sizes are 1. For result `o`, element `k` of the window is at position `o * stride - padding + k
/// * dilation` of the image. The position may be outside the image.
///
/// The caller chooses the sizes of the result, so the padding after the image may exceed the
/// padding before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Sizes of the image.
    pub input: [usize; 3],
    /// Sizes of the result: the number of positions of the window.
    pub output: [usize; 3],
    /// Sizes of the window, in elements.
    pub kernel: [usize; 3],
    /// Distance between neighbouring positions of the window, in elements of the image.
    pub stride: [usize; 3],
    /// Padding before the image, in elements.
    pub padding: [usize; 3],
    /// Distance between neighbouring elements of the window, in elements of the image.
    pub dilation: [usize; 3],
}

impl Window {
    /// Returns the number of positions of the window. Saturates at `usize::MAX`; [`Window::check`]
    /// returns an error for such a window.
    #[must_use]
    pub fn positions(&self) -> usize {
        product(&self.output)
    }

    /// Returns the number of elements of the window. Saturates at `usize::MAX`; [`Window::check`]
    /// returns an error for such a window.
    #[must_use]
    pub fn taps(&self) -> usize {
        product(&self.kernel)
    }

    /// Checks that the kernels' 32-bit arithmetic suffices for this window. Call it before you
    /// allocate the result.
    ///
    /// Any positive stride is valid in a dimension with only one result, and any positive dilation
    /// in a dimension where the window has only one element, because they have no effect there.
    ///
    /// # Errors
    /// - [`ErrorKind::ShapeMismatch`] if the image, the result or the window has 2³¹ elements or
    ///   more, or if the window reaches too far in a dimension for signed 32-bit positions.
    /// - [`ErrorKind::InvalidArgument`] if a stride or a dilation is 0.
    #[track_caller]
    pub fn check(&self, op: &'static str) -> Result<()> {
        self.packed(op).map(drop)
    }

    /// Packs the window for kernels, which compute positions in 32 bits.
    #[track_caller]
    pub(crate) fn packed(&self, op: &'static str) -> Result<Taps> {
        if self.stride.contains(&0) || self.dilation.contains(&0) {
            return Err(Error::invalid(op, "a stride or a dilation is 0"));
        }
        let or_one = |step: [usize; 3], count: [usize; 3]| {
            std::array::from_fn(|d| if count[d] > 1 { step[d] } else { 1 })
        };
        let window = Self {
            stride: or_one(self.stride, self.output),
            dilation: or_one(self.dilation, self.kernel),
            ..*self
        };
        let Some(taps) = window.narrowed() else {
            let reason = "the image, the result, the window, or the range that the window reaches has 2³¹ elements or more";
            return Err(Error::shape(op, reason));
        };
        Ok(taps)
    }

    /// Converts all numbers to 32 bits. Returns `None` if a number, a product of sizes, or the
    /// furthest position that the window reaches does not fit.
    fn narrowed(&self) -> Option<Taps> {
        let narrow = |values: [usize; 3]| {
            let mut all = [0; 3];
            for (to, value) in all.iter_mut().zip(values) {
                *to = i32::try_from(value).ok()?;
            }
            Some(all)
        };
        for sizes in [&self.input, &self.output, &self.kernel] {
            i32::try_from(product(&sizes.map(|n| n.max(1)))).ok()?;
        }
        for d in 0..3 {
            let last = |count: usize, step: usize| count.saturating_sub(1).checked_mul(step);
            let reach = last(self.output[d], self.stride[d])?
                .checked_add(last(self.kernel[d], self.dilation[d])?)?
                .checked_add(self.padding[d])?
                .checked_add(self.input[d])?;
            i32::try_from(reach).ok()?;
        }
        Some(Taps {
            input: narrow(self.input)?,
            output: narrow(self.output)?,
            kernel: narrow(self.kernel)?,
            stride: narrow(self.stride)?,
            padding: narrow(self.padding)?,
            dilation: narrow(self.dilation)?,
        })
    }
}

/// Returns the product of sizes, or `usize::MAX` if it overflows.
fn product(sizes: &[usize; 3]) -> usize {
    if sizes.contains(&0) {
        0
    } else {
        sizes.iter().fold(1, |n: usize, &size| n.saturating_mul(size))
    }
}

cuda_struct! {
    /// A [`Window`] in the form that kernels read.
    pub(crate) struct Taps {
        pub(crate) input: [i32; 3],
        pub(crate) output: [i32; 3],
        pub(crate) kernel: [i32; 3],
        pub(crate) stride: [i32; 3],
        pub(crate) padding: [i32; 3],
        pub(crate) dilation: [i32; 3],
    }
}

impl Taps {
    pub(crate) fn taps(&self) -> usize {
        self.kernel.iter().map(|&n| n as usize).product()
    }

    pub(crate) fn positions(&self) -> usize {
        self.output.iter().map(|&n| n as usize).product()
    }

    pub(crate) fn elements(&self) -> usize {
        self.input.iter().map(|&n| n as usize).product()
    }

    /// Returns the position in the image of element `k` of the window for result `o`, in dimension
    /// `d`.
    pub(crate) fn at(&self, d: usize, o: i32, k: i32) -> i32 {
        o * self.stride[d] - self.padding[d] + k * self.dilation[d]
    }

    /// Returns the results for which element `k` of the window is inside the image, in dimension
    /// `d`.
    pub(crate) fn inside(&self, d: usize, k: i32) -> std::ops::Range<i32> {
        let first = k * self.dilation[d] - self.padding[d];
        let ceil = |n: i32| if n <= 0 { 0 } else { (n - 1) / self.stride[d] + 1 };
        let (begin, end) = (ceil(-first), ceil(self.input[d] - first));
        begin.min(self.output[d])..end.min(self.output[d])
    }
}

/// Checks that `view` is a batch of images: its shape must be `[batch, channels, …]`, with one to
/// three spatial dimensions. Their sizes must equal the last of `sizes`, and the first of `sizes`
/// must be 1 for each missing dimension. Returns batch, channels, and five strides; the stride of a
/// missing dimension is 0.
#[track_caller]
pub(crate) fn images(
    op: &'static str,
    view: View<'_>,
    sizes: [usize; 3],
) -> Result<([usize; 2], [i64; 5])> {
    let own = view.sizes();
    let spatial = own.len().wrapping_sub(2);
    let is_one = |n: &usize| *n == 1;
    if !(1..=3).contains(&spatial)
        || own[2..] != sizes[3 - spatial..]
        || !sizes[..3 - spatial].iter().all(is_one)
        || own[..2].iter().any(|&n| n > u32::MAX as usize)
    {
        let reason = format!(
            "a tensor has sizes {own:?}, but a batch of images of sizes {sizes:?} is expected"
        );
        return Err(Error::shape(op, reason));
    }
    let mut strides = [0; 5];
    let at = |d: usize| view.strides()[d] as i64;
    (strides[0], strides[1]) = (at(0), at(1));
    for d in 0..spatial {
        strides[5 - spatial + d] = at(2 + d);
    }
    Ok(([own[0], own[1]], strides))
}

/// Returns a grid with one thread per element of a plane. Blocks in y and z cover channels and
/// batch.
pub(crate) fn grid(elements: usize, [batch, channels]: [usize; 2]) -> Grid {
    let threads = elements.next_multiple_of(32).min(256);
    let most = |n: usize| n.min(65_535) as u32;
    let blocks = [blocks(elements.div_ceil(threads)), most(channels), most(batch)];
    Grid::new(blocks, threads as u32)
}
