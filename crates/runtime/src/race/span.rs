//! The bytes that an access touches, as byte ranges or strided views.

use std::ops::Range;

use smallvec::SmallVec;

use crate::{Layout, Operand, Storage};
use warpline_cuda_sys_safe::Access;

/// An op's access to one of its arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch<'a> {
    pub(crate) storage: &'a Storage,
    pub(crate) access: Access,
    bytes: TouchedBytes<'a>,
}

#[derive(Clone, Copy, Debug)]
enum TouchedBytes<'a> {
    Range(usize, usize),
    View(&'a Layout, usize),
}

impl<'a> Touch<'a> {
    /// Creates an access to `len` bytes of a storage from `offset` on.
    pub(crate) fn range(storage: &'a Storage, offset: usize, len: usize, access: Access) -> Self {
        Self { storage, access, bytes: TouchedBytes::Range(offset, len) }
    }

    /// Returns the range of bytes in the storage, and whether the access touches all of them.
    /// `None` if it touches none.
    pub(crate) fn extent(&self) -> Option<(Range<usize>, bool)> {
        let span = match self.bytes {
            TouchedBytes::Range(_, 0) => return None,
            TouchedBytes::Range(offset, len) => {
                return Some((offset..offset.saturating_add(len), true));
            }
            TouchedBytes::View(layout, item) if layout.is_contiguous() && layout.numel() > 0 => {
                let start = layout.offset() * item;
                return Some((start..start + layout.numel() * item, true));
            }
            TouchedBytes::View(layout, item) => Span::of(0, layout, item)?,
        };
        let hull = span.hull();
        let byte = |at: i64| usize::try_from(at).unwrap_or(0);
        Some((byte(hull.start)..byte(hull.end), span.dims.is_empty()))
    }

    /// Returns the bytes by address. `None` if there are none.
    pub(crate) fn span(&self) -> Option<Span> {
        let base = self.storage.address();
        match self.bytes {
            TouchedBytes::Range(_, 0) => None,
            TouchedBytes::Range(offset, len) => {
                let start = base.wrapping_add(offset as u64) as i64;
                Some(Span { start, run: len as i64, dims: SmallVec::new() })
            }
            TouchedBytes::View(layout, item) => Span::of(base, layout, item),
        }
    }
}

impl<'a> From<Operand<'a>> for Touch<'a> {
    fn from(operand: Operand<'a>) -> Self {
        let Operand { view, access } = operand;
        Self {
            storage: view.storage,
            access,
            bytes: TouchedBytes::View(view.layout, view.dtype.size()),
        }
    }
}

/// Creates an access to all bytes of a storage. The flag tells whether it is a write.
impl<'a> From<(&'a Storage, bool)> for Touch<'a> {
    fn from((storage, write): (&'a Storage, bool)) -> Self {
        let access = if write { Access::Write } else { Access::Read };
        Self::range(storage, 0, storage.bytes(), access)
    }
}

/// `run` bytes at each address `start + Σ index · step`, with every index below its count.
///
/// Adjacent runs are joined, and steps ascend. Dense memory is one run without dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Signed like all numbers here, because part of a span may have no valid address after the
    /// memory was moved.
    pub(crate) start: i64,
    pub(crate) run: i64,
    /// Counts, at least 2, and steps in bytes.
    pub(crate) dims: SmallVec<[(i64, i64); 2]>,
}

impl Span {
    /// Returns the bytes of a layout that lies inside its storage.
    fn of(base: u64, layout: &Layout, item: usize) -> Option<Self> {
        let (base, item) = (base as i64, item as i64);
        let mut start = base.wrapping_add((layout.offset() as i64).wrapping_mul(item));
        let mut run = item;
        let mut dims: SmallVec<[(i64, i64); 6]> = SmallVec::new();
        for (&size, &stride) in layout.sizes().iter().zip(layout.strides()) {
            let (size, step) = (size as i64, (stride.unsigned_abs() as i64).wrapping_mul(item));
            match (size, step) {
                (0, _) => return None,
                (1, _) | (_, 0) => continue,
                _ => {}
            }
            if stride < 0 {
                start = start.wrapping_sub((size - 1).wrapping_mul(step));
            }
            dims.push((size, step));
        }
        dims.sort_unstable_by_key(|dim| dim.1);
        let mut joined: SmallVec<[(i64, i64); 2]> = SmallVec::new();
        for (count, step) in dims {
            match joined.last_mut() {
                None if step <= run => run += (count - 1) * step,
                Some((inner, inner_step)) if *inner * *inner_step == step => *inner *= count,
                _ => joined.push((count, step)),
            }
        }
        Some(Self { start, run, dims: joined })
    }

    /// Returns the range from the first byte to the last.
    pub(crate) fn hull(&self) -> Range<i64> {
        let reach: i64 = self.dims.iter().map(|(count, step)| (count - 1) * step).sum();
        self.start..self.start + reach + self.run
    }

    /// Returns whether this span contains all bytes of another. May return `false` for a span that
    /// does.
    pub(crate) fn contains(&self, other: &Self) -> bool {
        if self == other {
            return true;
        }
        let (hull, inner) = (self.hull(), other.hull());
        self.dims.is_empty() && hull.start <= inner.start && inner.end <= hull.end
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::overlap;
    use crate::overlap::tests::{bytes, layout};

    fn listed(span: &Span) -> HashSet<i64> {
        let mut starts = vec![span.start];
        for &(count, step) in &span.dims {
            starts = starts.iter().flat_map(|at| (0..count).map(move |i| at + i * step)).collect();
        }
        starts.iter().flat_map(|at| *at..at + span.run).collect()
    }

    fn of_layout(layout: &Layout, item: usize) -> HashSet<i64> {
        bytes(layout, item).into_iter().map(|at| 1000 + at as i64).collect()
    }

    proptest! {
        #[test]
        fn a_span_has_the_bytes_of_its_layout(
            layouts in (layout(), layout()),
            items in (prop::sample::select(vec![1usize, 2, 4]), 1usize..5),
        ) {
            let spans = (Span::of(1000, &layouts.0, items.0), Span::of(1000, &layouts.1, items.1));
            let bytes = (of_layout(&layouts.0, items.0), of_layout(&layouts.1, items.1));
            prop_assert_eq!(spans.0.as_ref().map(listed).unwrap_or_default(), bytes.0.clone());
            let (Some(a), Some(b)) = spans else { return Ok(()) };
            prop_assert_eq!(overlap::share_a_byte(&a, &b), Some(!bytes.0.is_disjoint(&bytes.1)));
            prop_assert!(!a.contains(&b) || bytes.0.is_superset(&bytes.1));
            let ends = (bytes.0.iter().min().copied(), bytes.0.iter().max().map(|m| m + 1));
            prop_assert_eq!((Some(a.hull().start), Some(a.hull().end)), ends);
        }
    }

    #[test]
    fn dense_views_are_one_run() {
        let whole = Layout::contiguous(&[4, 6, 5]).unwrap();
        for view in [whole.clone(), whole.transpose(0, 2).unwrap(), whole.select(0, 2).unwrap()] {
            assert!(Span::of(0, &view, 4).unwrap().dims.is_empty(), "{view:?}");
        }
        let rows = whole.narrow(2, 1, 2).unwrap();
        let span = Span::of(0, &rows, 4).unwrap();
        assert_eq!((span.run, &span.dims[..]), (8, &[(24, 20)][..]));
    }
}
