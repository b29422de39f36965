//! Views whose strides differ from those of the tensor.

use smallvec::SmallVec;
use warpline_runtime::{Layout, Sizes, Strides, resolve_dim};

use crate::called::Called;
use crate::functional::options::{from_integer, options};
use crate::methods::composite::signed;
use crate::{
    CallScope, Error, ErrorKind, Integer, IntoDims, IntoOptions, IntoShape, IntoSizes, Result,
    Tensor,
};

options! {
    /// Options of [`Tensor::diagonal`]. An integer converts into options with that `offset`.
    #[derive(Clone, Copy, Debug)]
    DiagonalOptions [] [] {
        /// Sets the diagonal by its distance from the main diagonal, positive above it and negative below it. Default:
        /// 0, the main diagonal.
        offset: isize = 0, impl Integer => Integer::into_isize;
        /// Sets the dimension of the rows. Negative: counted from the end. Default: 0.
        dim1: isize = 0, impl Integer => Integer::into_isize;
        /// Sets the dimension of the columns. Negative: counted from the end. Default: 1.
        dim2: isize = 1, impl Integer => Integer::into_isize;
    }
}

from_integer! { DiagonalOptions offset; }

impl Tensor {
    /// Returns a view with the sizes of another tensor (`torch.Tensor.view_as`).
    ///
    /// # Errors
    /// The same as [`Tensor::view`].
    #[track_caller]
    pub fn view_as(&self, other: &Tensor) -> Result<Self> {
        self.view(other.size()).of("view_as")
    }

    /// Returns a view with the last two dimensions exchanged (`torch.Tensor.mT`).
    ///
    /// ```
    /// # use warpline::zeros;
    /// assert_eq!(zeros([4, 2, 3], ())?.m_t()?.size(), [4, 3, 2]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor has fewer than two dimensions.
    #[doc(alias = "mT")]
    #[track_caller]
    pub fn m_t(&self) -> Result<Self> {
        self.transpose(-2, -1).of("m_t")
    }

    /// Returns a view of a diagonal of two dimensions (`torch.diagonal`). The diagonal becomes the last dimension. A
    /// positive `offset` is above the main diagonal.
    ///
    /// ```
    /// # use warpline::arange;
    /// let t = arange(6, ())?.reshape([2, 3])?;
    /// assert_eq!(t.diagonal(1)?.to_vec::<i64>()?, [1, 5]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks one of the dimensions. [`ErrorKind::InvalidArgument`]
    /// if the two dimensions are the same.
    #[track_caller]
    pub fn diagonal(&self, options: impl IntoOptions<DiagonalOptions>) -> Result<Self> {
        let DiagonalOptions { offset, dim1, dim2 } = options.into_options();
        let layout = self.layout();
        let (d1, d2) = (layout.dim(dim1).of("diagonal")?, layout.dim(dim2).of("diagonal")?);
        if d1 == d2 {
            let reason = format!("the two dimensions must differ, but both are {d1}");
            return Err(Error::invalid("diagonal", reason));
        }
        let (rows, columns) = (layout.sizes()[d1], layout.sizes()[d2]);
        let (down, right) = (offset.min(0).unsigned_abs(), offset.max(0).unsigned_abs());
        let length = rows.saturating_sub(down).min(columns.saturating_sub(right));
        let kept = |d: &usize| *d != d1 && *d != d2;
        let mut sizes: Sizes = (0..self.dim()).filter(kept).map(|d| layout.sizes()[d]).collect();
        let mut strides: Strides =
            (0..self.dim()).filter(kept).map(|d| layout.strides()[d]).collect();
        sizes.push(length);
        strides.push(layout.strides()[d1].saturating_add(layout.strides()[d2]));
        let mut start = layout.offset();
        if length > 0 && !sizes.contains(&0) {
            // This does not wrap: one of the two steps is 0, and the other step stays inside the storage.
            let down = (down as isize).wrapping_mul(layout.strides()[d1]);
            let right = (right as isize).wrapping_mul(layout.strides()[d2]);
            start = start.wrapping_add_signed(down).wrapping_add_signed(right);
        }
        let layout = Layout::from_parts(sizes, strides, start);
        let part = move |whole: &Self| {
            whole.diagonal(DiagonalOptions::new().offset(offset).dim1(dim1).dim2(dim2))
        };
        self.viewed_part("diagonal", layout, part)
    }

    /// Returns a view of the storage with the given sizes and strides, in elements (`torch.as_strided`). The
    /// view begins at element `storage_offset` of the storage. Default of `storage_offset`: this tensor's
    /// offset.
    ///
    /// ```
    /// # use warpline::arange;
    /// let t = arange(7, ())?.as_strided([2, 3], [1, 2], 1)?;
    /// assert_eq!(t.to_vec::<i64>()?, [1, 3, 5, 2, 4, 6]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there is not one stride per size, a stride is negative, or the view
    /// reaches beyond the storage. [`ErrorKind::SizeOverflow`] if the number of elements is too large for the
    /// address space.
    #[track_caller]
    pub fn as_strided(
        &self,
        size: impl IntoShape,
        stride: impl IntoDims,
        storage_offset: impl Into<Option<usize>>,
    ) -> Result<Self> {
        let (sizes, strides) = (size.into_shape(), Strides::from_slice(&stride.into_dims()));
        let offset = storage_offset.into().unwrap_or(self.storage_offset());
        if sizes.len() != strides.len() {
            let reason = format!("{sizes:?} and {strides:?} differ in length");
            return Err(Error::invalid("as_strided", reason));
        }
        if strides.iter().any(|stride| *stride < 0) {
            let reason = format!("negative strides are not supported, but they are {strides:?}");
            return Err(Error::invalid("as_strided", reason));
        }
        warpline_runtime::checked_numel(&sizes).of("as_strided")?;
        let available = self.storage().bytes() / self.dtype().size();
        let steps = sizes.iter().zip(&strides);
        let last = steps.map(|(&n, &stride)| n.saturating_sub(1) as i128 * stride as i128);
        let needed = offset as i128 + last.sum::<i128>() + 1;
        if !sizes.contains(&0) && needed > available as i128 {
            let reason = format!(
                "sizes {sizes:?} and strides {strides:?} at offset {offset} need {needed} elements, but the storage has \
                 {available}"
            );
            return Err(Error::invalid("as_strided", reason));
        }
        // An empty view may have any offset. Clamp it to the storage.
        let offset = if sizes.contains(&0) { offset.min(available) } else { offset };
        let view = Layout::from_parts(sizes, strides, offset);
        self.viewed_strided("as_strided", view.clone(), self.layout().clone(), view)
    }

    /// Returns a view of all slices of size `size` of a dimension, `step` indices apart
    /// (`torch.Tensor.unfold`). In the result, this dimension indexes the slices, and a new last dimension
    /// indexes the elements of a slice.
    ///
    /// ```
    /// # use warpline::arange;
    /// let t = arange(5, ())?.unfold(0, 3, 2)?;
    /// assert_eq!((t.size(), t.to_vec::<i64>()?), (&[2, 3][..], vec![0, 1, 2, 2, 3, 4]));
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks the dimension. [`ErrorKind::InvalidArgument`] if `size`
    /// exceeds the dimension's size, or if `step` is zero.
    #[track_caller]
    pub fn unfold(&self, dim: impl Integer, size: usize, step: usize) -> Result<Self> {
        let dim = dim.into_isize();
        let d = self.layout().dim(dim).of("unfold")?;
        let own = if self.dim() == 0 { 1 } else { self.size()[d] };
        if size > own {
            let reason =
                format!("slices of {size} elements do not fit into dimension {d}, which has {own}");
            return Err(Error::invalid("unfold", reason));
        }
        if step == 0 {
            return Err(Error::invalid("unfold", "the step must be greater than zero"));
        }
        if self.dim() == 0 {
            return self.unsqueeze(0)?.narrow(0, 0, size).of("unfold");
        }
        let slices = |layout: &Layout| {
            let mut sizes = Sizes::from_slice(layout.sizes());
            let mut strides = Strides::from_slice(layout.strides());
            sizes.push(size);
            strides.push(strides[d]);
            sizes[d] = (own - size) / step + 1;
            strides[d] = strides[d].saturating_mul(isize::try_from(step).unwrap_or(isize::MAX));
            Layout::from_parts(sizes, strides, layout.offset())
        };
        let dense = Layout::contiguous(self.size()).of("unfold")?;
        let as_if = slices(&dense);
        self.viewed_strided("unfold", slices(self.layout()), dense, as_if)
    }

    /// Returns a view with the dimensions `source` moved to the positions `destination` (`torch.movedim`). All
    /// other dimensions keep their order.
    ///
    /// ```
    /// # use warpline::zeros;
    /// assert_eq!(zeros([2, 3, 4], ())?.movedim(0, -1)?.size(), [3, 4, 2]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks one of the dimensions. [`ErrorKind::InvalidArgument`]
    /// if the lists differ in length, or name a dimension twice.
    #[doc(alias = "moveaxis")]
    #[track_caller]
    pub fn movedim(&self, source: impl IntoDims, destination: impl IntoDims) -> Result<Self> {
        let (from, to) = (source.into_dims(), destination.into_dims());
        if from.len() != to.len() {
            let reason = format!("{from:?} and {to:?} differ in length");
            return Err(Error::invalid("movedim", reason));
        }
        if self.dim() == 0 {
            for &dim in from.iter().chain(&to) {
                resolve_dim(dim, 0).of("movedim")?;
            }
            return Ok(self.clone());
        }
        let mut order: SmallVec<[Option<usize>; 6]> = SmallVec::from_elem(None, self.dim());
        let mut used: SmallVec<[bool; 6]> = SmallVec::from_elem(false, self.dim());
        for (&from, &to) in from.iter().zip(&to) {
            let from = self.layout().dim(from).of("movedim")?;
            let to = self.layout().dim(to).of("movedim")?;
            if std::mem::replace(&mut used[from], true) || order[to].replace(from).is_some() {
                let reason = format!("dimension {from} or {to} is named twice");
                return Err(Error::invalid("movedim", reason));
            }
        }
        let mut others = (0..self.dim()).filter(|&d| !used[d]);
        let order: SmallVec<[isize; 6]> = order
            .into_iter()
            .map(|d| d.or_else(|| others.next()).unwrap_or_default() as isize)
            .collect();
        self.permute(&order[..]).of("movedim")
    }

    /// Returns a view with a dimension split into several (`torch.unflatten`). One size may be −1; this size is
    /// computed from the others.
    ///
    /// ```
    /// # use warpline::zeros;
    /// assert_eq!(zeros([2, 6], ())?.unflatten(1, [3, -1])?.size(), [2, 3, 2]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks the dimension. [`ErrorKind::InvalidReshape`] if the
    /// sizes do not multiply to the dimension's size.
    #[track_caller]
    pub fn unflatten(&self, dim: impl Integer, sizes: impl IntoSizes) -> Result<Self> {
        let dim = dim.into_isize();
        let (d, mut inner) = (self.layout().dim(dim).of("unflatten")?, sizes.into_sizes());
        let own = if self.dim() == 0 { 1 } else { self.size()[d] } as isize;
        let known: isize = inner.iter().filter(|&&n| n != -1).fold(1, |a, n| a.saturating_mul(*n));
        let open: SmallVec<[usize; 2]> = (0..inner.len()).filter(|&i| inner[i] == -1).collect();
        if let (&[i], true) = (&open[..], known > 0 && own % known == 0) {
            inner[i] = own / known;
        } else if !open.is_empty() || known != own || inner.is_empty() {
            return Err(ErrorKind::InvalidReshape { shape: inner.to_vec(), numel: own as usize }
                .of("unflatten"));
        }
        let mut shape = signed(self.size());
        shape.splice(d..(d + 1).min(self.dim()), inner);
        self.view(&shape).of("unflatten")
    }

    /// Returns a view that is expanded to the sizes of another tensor (`torch.Tensor.expand_as`).
    ///
    /// ```
    /// # use warpline::ones;
    /// assert_eq!(ones([3, 1], ())?.expand_as(&ones([3, 4], ())?)?.size(), [3, 4]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`Tensor::expand`].
    #[track_caller]
    pub fn expand_as(&self, other: &Tensor) -> Result<Self> {
        let _call = CallScope::enter("expand_as");
        self.expand(other.size())
    }

    /// The same as [`Tensor::expand`] (`torch.broadcast_to`).
    ///
    /// # Errors
    /// The same as [`Tensor::expand`].
    #[track_caller]
    pub fn broadcast_to(&self, sizes: impl IntoSizes) -> Result<Self> {
        let _call = CallScope::enter("broadcast_to");
        self.expand(sizes)
    }
}
