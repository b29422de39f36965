//! Sizes, strides and offset of a tensor in its storage, and the views that only change these.

mod format;

use std::panic::Location;

pub use format::MemoryFormat;
use smallvec::SmallVec;

use crate::{DType, Error, ErrorKind, Result};

/// Size of each dimension.
pub type Sizes = SmallVec<[usize; 6]>;
/// Distance between consecutive indices of each dimension, in elements.
pub type Strides = SmallVec<[isize; 6]>;

/// The positions of a tensor's elements in its storage, in units of elements.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    sizes: Sizes,
    strides: Strides,
    offset: usize,
}

impl Clone for Layout {
    fn clone(&self) -> Self {
        let mut clone = self.at_start();
        clone.offset = self.offset;
        clone
    }
}

impl Layout {
    /// Creates a row-major layout at offset 0.
    ///
    /// # Errors
    /// [`ErrorKind::SizeOverflow`] if the number of elements does not fit `isize`.
    #[track_caller]
    pub fn contiguous(sizes: &[usize]) -> Result<Self> {
        let numel = checked_numel(sizes)?;
        debug_assert!(numel <= isize::MAX as usize);
        let mut strides: Strides = SmallVec::from_elem(1, sizes.len());
        let mut step = 1isize;
        for d in (0..sizes.len()).rev() {
            strides[d] = step;
            // A size of 0 counts as 1, as in PyTorch. The product never saturates, because
            // `checked_numel` counts in the same way.
            step = step.saturating_mul(sizes[d].max(1) as isize);
        }
        Ok(Self { sizes: Sizes::from_slice(sizes), strides, offset: 0 })
    }

    /// Returns the same sizes and strides at offset 0.
    fn at_start(&self) -> Self {
        // `from_slice` copies the memory at once; `SmallVec::clone` clones element by element.
        let (sizes, strides) = (Sizes::from_slice(&self.sizes), Strides::from_slice(&self.strides));
        Self { sizes, strides, offset: 0 }
    }

    /// Creates a layout from its parts. The caller ensures that the layout stays inside its
    /// storage. Missing strides are 0.
    #[must_use]
    pub fn from_parts(sizes: Sizes, mut strides: Strides, offset: usize) -> Self {
        strides.resize(sizes.len(), 0);
        Self { sizes, strides, offset }
    }

    /// Returns the size of each dimension.
    #[inline]
    #[must_use]
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Returns the stride of each dimension, in elements.
    #[inline]
    #[must_use]
    pub fn strides(&self) -> &[isize] {
        &self.strides
    }

    /// Returns the first element's offset in the storage, in elements.
    #[inline]
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the number of dimensions.
    #[inline]
    #[must_use]
    pub fn ndim(&self) -> usize {
        self.sizes.len()
    }

    /// Returns the number of elements. `usize::MAX` on overflow.
    #[inline]
    #[must_use]
    pub fn numel(&self) -> usize {
        self.sizes.iter().fold(1, |n, &size| n.saturating_mul(size))
    }

    /// Returns whether the elements follow each other without gaps, in row-major order.
    #[inline]
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        is_row_major(&self.sizes, &self.strides)
    }

    /// Converts `dim`, which may count from the end if negative, to an index.
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the layout has no such dimension.
    #[inline]
    #[track_caller]
    pub fn dim(&self, dim: isize) -> Result<usize> {
        dim_of("dim", dim, self.ndim())
    }

    /// Converts `dim` as [`Layout::dim`] does, but fails for a layout without dimensions.
    #[track_caller]
    fn own_dim(&self, op: &'static str, dim: isize) -> Result<usize> {
        match self.ndim() {
            0 => Err(ErrorKind::DimOutOfRange { dim, ndim: 0 }.of(op)),
            ndim => dim_of(op, dim, ndim),
        }
    }

    /// Swaps two dimensions (`torch.transpose`). A layout without dimensions accepts 0 and -1 and
    /// stays the same.
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the layout has no such dimension.
    #[track_caller]
    pub fn transpose(&self, dim0: isize, dim1: isize) -> Result<Self> {
        let ndim = self.ndim();
        let (a, b) = (dim_of("transpose", dim0, ndim)?, dim_of("transpose", dim1, ndim)?);
        let mut out = self.clone();
        if a != b {
            out.sizes.swap(a, b);
            out.strides.swap(a, b);
        }
        Ok(out)
    }

    /// Reorders all dimensions (`torch.permute`).
    ///
    /// # Errors
    /// - [`ErrorKind::DimOutOfRange`] if the layout has no such dimension.
    /// - [`ErrorKind::InvalidArgument`] if `dims` is not a permutation of all dimensions.
    #[track_caller]
    pub fn permute(&self, dims: &[isize]) -> Result<Self> {
        let mut seen: SmallVec<[bool; 6]> = SmallVec::from_elem(false, self.ndim());
        let (mut sizes, mut strides) = (Sizes::new(), Strides::new());
        for &dim in dims {
            let d = self.own_dim("permute", dim)?;
            if std::mem::replace(&mut seen[d], true) {
                return Err(Error::invalid(
                    "permute",
                    format!("dimension {d} is named twice in {dims:?}"),
                ));
            }
            sizes.push(self.sizes[d]);
            strides.push(self.strides[d]);
        }
        if dims.len() != self.ndim() {
            return Err(Error::invalid(
                "permute",
                format!(
                    "{dims:?} names {} dimensions, but the tensor has {}",
                    dims.len(),
                    self.ndim()
                ),
            ));
        }
        Ok(Self { sizes, strides, offset: self.offset })
    }

    /// Returns `length` indices of `dim` from `start` on (`torch.narrow`). A negative `start`
    /// counts from the end.
    ///
    /// # Errors
    /// - [`ErrorKind::DimOutOfRange`] if the layout has no such dimension.
    /// - [`ErrorKind::IndexOutOfRange`] if the range reaches outside the dimension.
    #[track_caller]
    pub fn narrow(&self, dim: isize, start: isize, length: usize) -> Result<Self> {
        let d = self.own_dim("narrow", dim)?;
        let size = self.sizes[d];
        let first = if start < 0 { start.saturating_add_unsigned(size) } else { start };
        if first < 0 || first as usize > size || length > size - first as usize {
            return Err(
                ErrorKind::IndexOutOfRange { dim: d, index: start, length, size }.of("narrow")
            );
        }
        let mut out = self.clone();
        out.sizes[d] = length;
        out.offset = out.offset_by(first, self.strides[d]);
        Ok(out)
    }

    /// Returns every `step`-th index of `dim` in `start..end`, clipped to the dimension.
    ///
    /// # Errors
    /// - [`ErrorKind::DimOutOfRange`] if the layout has no such dimension.
    /// - [`ErrorKind::InvalidArgument`] if `step` is zero.
    #[track_caller]
    pub fn slice(&self, dim: isize, start: usize, end: usize, step: usize) -> Result<Self> {
        if step == 0 {
            return Err(Error::invalid("slice", "the step must be greater than zero"));
        }
        let d = self.own_dim("slice", dim)?;
        let size = self.sizes[d];
        let (start, end) = (start.min(size), end.min(size));
        let mut out = self.narrow(dim, start as isize, end.saturating_sub(start))?;
        out.sizes[d] = out.sizes[d].div_ceil(step);
        // Saturates only if the dimension has at most one index, so the stride is never used.
        let step = isize::try_from(step).unwrap_or(isize::MAX);
        out.strides[d] = out.strides[d].saturating_mul(step);
        Ok(out)
    }

    /// Returns one index of `dim` and removes the dimension (`torch.select`). A negative `index`
    /// counts from the end.
    ///
    /// # Errors
    /// - [`ErrorKind::DimOutOfRange`] if the layout has no such dimension.
    /// - [`ErrorKind::IndexOutOfRange`] if the dimension does not have this index.
    #[track_caller]
    pub fn select(&self, dim: isize, index: isize) -> Result<Self> {
        let d = self.own_dim("select", dim)?;
        let size = self.sizes[d];
        let i = if index < 0 { index.saturating_add_unsigned(size) } else { index };
        if i < 0 || i as usize >= size {
            return Err(ErrorKind::IndexOutOfRange { dim: d, index, length: 1, size }.of("select"));
        }
        let mut out = self.clone();
        out.offset = out.offset_by(i, self.strides[d]);
        out.sizes.remove(d);
        out.strides.remove(d);
        Ok(out)
    }

    /// Removes `dim` if its size is 1 (`torch.squeeze`).
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the layout has no such dimension.
    #[track_caller]
    pub fn squeeze(&self, dim: isize) -> Result<Self> {
        let d = dim_of("squeeze", dim, self.ndim())?;
        let mut out = self.clone();
        if !out.sizes.is_empty() && out.sizes[d] == 1 {
            out.sizes.remove(d);
            out.strides.remove(d);
        }
        Ok(out)
    }

    /// Removes every dimension of size 1.
    #[must_use]
    pub fn squeeze_all(&self) -> Self {
        let keep = |d: &usize| self.sizes[*d] != 1;
        Self {
            sizes: (0..self.ndim()).filter(keep).map(|d| self.sizes[d]).collect(),
            strides: (0..self.ndim()).filter(keep).map(|d| self.strides[d]).collect(),
            offset: self.offset,
        }
    }

    /// Inserts a dimension of size 1 before `dim` (`torch.unsqueeze`). `dim` may be one past the
    /// last dimension.
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if `dim` is outside this range.
    #[track_caller]
    pub fn unsqueeze(&self, dim: isize) -> Result<Self> {
        let d = dim_of("unsqueeze", dim, self.ndim() + 1)?;
        let stride = if d < self.ndim() {
            // The product overflows only in a layout without elements. The stride of a dimension of
            // size 1 is never used, so saturation is harmless.
            self.strides[d].saturating_mul(isize::try_from(self.sizes[d]).unwrap_or(isize::MAX))
        } else {
            1
        };
        let mut out = self.clone();
        out.sizes.insert(d, 1);
        out.strides.insert(d, stride);
        Ok(out)
    }

    /// Expands dimensions of size 1, and adds leading dimensions, with a stride of 0
    /// (`Tensor.expand`).
    ///
    /// # Errors
    /// - [`ErrorKind::ExpandMismatch`] if a dimension whose size is not 1 would change, or `sizes`
    ///   has fewer dimensions.
    /// - [`ErrorKind::SizeOverflow`] if the number of elements does not fit `isize`.
    #[track_caller]
    pub fn expand(&self, sizes: &[usize]) -> Result<Self> {
        let location = Location::caller();
        let mismatch = || {
            ErrorKind::ExpandMismatch { from: self.sizes.to_vec(), to: sizes.to_vec() }
                .of("expand")
                .at(location)
        };
        let new = sizes.len().checked_sub(self.ndim()).ok_or_else(mismatch)?;
        checked_numel(sizes)?;
        let mut strides = Strides::new();
        for (d, &size) in sizes.iter().enumerate() {
            strides.push(match d.checked_sub(new) {
                None => 0,
                Some(old) if self.sizes[old] == size => self.strides[old],
                Some(old) if self.sizes[old] == 1 => 0,
                Some(_) => return Err(mismatch()),
            });
        }
        Ok(Self { sizes: Sizes::from_slice(sizes), strides, offset: self.offset })
    }

    /// Returns the offset moved by `index` steps of `stride`. A layout without elements keeps its
    /// offset, because its strides are unbounded and could move the offset out of the storage.
    fn offset_by(&self, index: isize, stride: isize) -> usize {
        if self.sizes.contains(&0) {
            return self.offset;
        }
        // Does not wrap for a layout that lies inside a storage.
        self.offset.wrapping_add_signed(index.wrapping_mul(stride))
    }

    /// Returns a layout of the same elements in the same order with other sizes, without a copy.
    /// `None` if the strides do not allow it or the number of elements differs.
    #[must_use]
    pub fn view(&self, sizes: &[usize]) -> Option<Self> {
        if self.numel() != checked_numel(sizes).ok()? {
            return None;
        }
        if self.numel() == 0 {
            let mut out = Self::contiguous(sizes).ok()?;
            out.offset = self.offset;
            return Some(out);
        }
        // Match runs of dimensions, beginning with the last: each contiguous run of old dimensions
        // must have as many elements as a run of new dimensions.
        let mut strides: Strides = SmallVec::from_elem(1, sizes.len());
        let mut new = sizes.len();
        let mut old = self.ndim();
        while old > 0 {
            let base = self.strides[old - 1];
            let mut chunk = self.sizes[old - 1];
            old -= 1;
            while old > 0
                && (self.sizes[old - 1] == 1
                    || self.strides[old - 1] == base.wrapping_mul(chunk as isize))
            {
                chunk *= self.sizes[old - 1];
                old -= 1;
            }
            let mut covered = 1;
            while new > 0 && (covered < chunk || sizes[new - 1] == 1) {
                strides[new - 1] = base.wrapping_mul(covered as isize);
                covered *= sizes[new - 1];
                new -= 1;
            }
            if covered != chunk {
                return None;
            }
        }
        while new > 0 {
            // The remaining new sizes are all 1.
            if sizes[new - 1] != 1 {
                return None;
            }
            new -= 1;
        }
        Some(Self { sizes: Sizes::from_slice(sizes), strides, offset: self.offset })
    }
}

/// Returns whether sizes or strides are equal. For few dimensions, `==` would spend most of its time on the call of
/// `memcmp`.
#[inline]
pub(crate) fn is_same<T: Copy + PartialEq>(a: &[T], b: &[T]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b)
}

/// Returns whether elements with these sizes and strides follow each other without gaps, in
/// row-major order.
#[inline]
pub(crate) fn is_row_major(sizes: &[usize], strides: &[isize]) -> bool {
    let mut step = 1isize;
    for (&size, &stride) in sizes.iter().zip(strides).rev() {
        if size == 0 {
            return true;
        }
        if size != 1 {
            if stride != step {
                // A layout without elements is row-major.
                return sizes.contains(&0);
            }
            // In a layout without elements, the other sizes may be larger than memory.
            step = step.saturating_mul(size as isize);
        }
    }
    true
}

/// Converts a dimension, which may count from the end if negative, to an index. A tensor without
/// dimensions accepts 0 and -1.
///
/// # Errors
/// [`ErrorKind::DimOutOfRange`] if there is no such dimension.
#[track_caller]
pub fn resolve_dim(dim: isize, ndim: usize) -> Result<usize> {
    dim_of("resolve_dim", dim, ndim)
}

#[inline]
#[track_caller]
fn dim_of(op: &'static str, dim: isize, ndim: usize) -> Result<usize> {
    let n = ndim.max(1) as isize;
    if dim < -n || dim >= n {
        return Err(ErrorKind::DimOutOfRange { dim, ndim }.of(op));
    }
    Ok(if dim < 0 { dim + n } else { dim } as usize)
}

/// Returns the number of elements.
///
/// # Errors
/// [`ErrorKind::SizeOverflow`] if the product of the nonzero sizes does not fit `isize`. Products
/// of some of a layout's sizes therefore never overflow.
#[track_caller]
pub fn checked_numel(sizes: &[usize]) -> Result<usize> {
    let numel = sizes.iter().fold(1usize, |n, &size| n.saturating_mul(size.max(1)));
    if numel > isize::MAX as usize {
        return Err(ErrorKind::SizeOverflow { sizes: sizes.to_vec() }.of("numel"));
    }
    Ok(if sizes.contains(&0) { 0 } else { numel })
}

/// Returns the size of the elements of a dense layout, in bytes.
///
/// # Errors
/// [`ErrorKind::SizeOverflow`] if the size is greater than `isize::MAX`.
#[track_caller]
pub fn byte_size(layout: &Layout, dtype: DType) -> Result<usize> {
    match layout.numel().checked_mul(dtype.size()) {
        Some(bytes) if bytes <= isize::MAX as usize => Ok(bytes),
        _ => Err(ErrorKind::SizeOverflow { sizes: layout.sizes().into() }.of("byte_size")),
    }
}

/// Returns the shape that two shapes broadcast to (`torch.broadcast_shapes`).
///
/// # Errors
/// [`ErrorKind::BroadcastMismatch`] if two sizes of a dimension differ and neither is 1.
#[track_caller]
pub fn broadcast(a: &[usize], b: &[usize]) -> Result<Sizes> {
    let ndim = a.len().max(b.len());
    let at = |s: &[usize], d: usize| (d + s.len()).checked_sub(ndim).map_or(1, |i| s[i]);
    let mut sizes = Sizes::new();
    for d in 0..ndim {
        sizes.push(match (at(a, d), at(b, d)) {
            (x, y) if x == y => x,
            (1, y) => y,
            (x, 1) => x,
            (x, y) => {
                let kind = ErrorKind::BroadcastMismatch { a: x, b: y, dim: d };
                return Err(kind.of("broadcast"));
            }
        });
    }
    Ok(sizes)
}
