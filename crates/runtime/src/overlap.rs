//! Tests whether two layouts of one storage share bytes, and whether two indices of one layout do.

use smallvec::SmallVec;

use crate::Layout;
use crate::race::Span;

/// Relation of two layouts in one storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// The layouts share no bytes.
    None,
    /// Each index is the same element in both layouts.
    Same,
    /// The layouts share some bytes, or the search for a shared byte gave up.
    Partial,
}

/// Maximum number of steps of the search. Layouts of real programs need a handful.
const MAX_STEPS: usize = 4096;

/// Compares two layouts of one storage, each with its element size in bytes.
pub fn between(a: (&Layout, usize), b: (&Layout, usize)) -> Overlap {
    if a.0.numel() == 0 || b.0.numel() == 0 {
        return Overlap::None;
    }
    if a.1 == b.1 && same(a.0, b.0) {
        return Overlap::Same;
    }
    let mut terms: Terms = SmallVec::new();
    let mut target = b.0.offset() as i128 * b.1 as i128 - a.0.offset() as i128 * a.1 as i128;
    for ((layout, item), sign) in [(a, 1i128), (b, -1)] {
        let bytes = layout.strides().iter().map(|&s| sign * s as i128 * item as i128);
        for (&size, coefficient) in layout.sizes().iter().zip(bytes) {
            add_term(&mut terms, &mut target, coefficient, size as i128 - 1);
        }
        add_term(&mut terms, &mut target, sign, item as i128 - 1);
    }
    match solve(terms, target) {
        Some(false) => Overlap::None,
        Some(true) | None => Overlap::Partial,
    }
}

/// Returns whether two spans share a byte. `None` if the search gave up.
pub(crate) fn share_a_byte(a: &Span, b: &Span) -> Option<bool> {
    let (first, second) = (a.hull(), b.hull());
    if first.start >= second.end || second.start >= first.end {
        return Some(false);
    }
    if a.dims.is_empty() && b.dims.is_empty() || a == b {
        return Some(true);
    }
    let mut terms: Terms = SmallVec::new();
    let mut target = i128::from(b.start) - i128::from(a.start);
    for (span, sign) in [(a, 1i128), (b, -1)] {
        for &(count, step) in &span.dims {
            add_term(&mut terms, &mut target, sign * i128::from(step), i128::from(count) - 1);
        }
        add_term(&mut terms, &mut target, sign, i128::from(span.run) - 1);
    }
    solve(terms, target)
}

/// Decides whether two views share a byte. They do if indices i and j and bytes x and y of an
/// element exist with offset_a + Σ i·stride_a + x = offset_b + Σ j·stride_b + y. The terms are this
/// equation in the form Σ coefficient · unknown = target, with each unknown from 0 to its bound.
fn solve(mut terms: Terms, target: i128) -> Option<bool> {
    terms.sort_unstable_by_key(|t| std::cmp::Reverse(t.coefficient));
    let mut reach = 0;
    for term in terms.iter_mut().rev() {
        reach += term.coefficient * term.bound;
        term.reach = reach;
    }
    let mut steps = MAX_STEPS;
    solvable(&terms, target, &mut steps)
}

/// Returns whether two indices of a layout may be the same element. `false` is exact: each step of
/// a dimension is then larger than the reach of all dimensions with smaller steps.
pub(crate) fn may_overlap_itself(layout: &Layout) -> bool {
    if layout.is_contiguous() {
        return false;
    }
    let mut dims: SmallVec<[(usize, usize); 6]> = SmallVec::new();
    for (&size, &stride) in layout.sizes().iter().zip(layout.strides()) {
        match size {
            0 => return false,
            1 => {}
            _ => dims.push((stride.unsigned_abs(), size - 1)),
        }
    }
    dims.sort_unstable();
    let mut reach = 0usize;
    dims.into_iter().any(|(step, bound)| {
        let shared = step <= reach;
        reach = reach.saturating_add(step.saturating_mul(bound));
        shared
    })
}

fn same(a: &Layout, b: &Layout) -> bool {
    a.offset() == b.offset()
        && a.sizes() == b.sizes()
        && (0..a.ndim()).all(|d| a.sizes()[d] == 1 || a.strides()[d] == b.strides()[d])
}

type Terms = SmallVec<[BoundedTerm; 12]>;

/// A positive coefficient, the upper bound of its unknown, and the largest sum of this and all
/// later terms.
#[derive(Clone, Copy)]
struct BoundedTerm {
    coefficient: i128,
    bound: i128,
    reach: i128,
}

/// Adds the term `coefficient · unknown`. Terms of equal coefficient merge, with the sum of their
/// bounds. A negative coefficient becomes positive by counting its unknown down from the bound.
fn add_term(terms: &mut Terms, target: &mut i128, coefficient: i128, bound: i128) {
    if coefficient == 0 || bound == 0 {
        return;
    }
    if coefficient < 0 {
        *target -= coefficient * bound;
    }
    let coefficient = coefficient.abs();
    match terms.iter_mut().find(|t| t.coefficient == coefficient) {
        Some(term) => term.bound += bound,
        None => terms.push(BoundedTerm { coefficient, bound, reach: 0 }),
    }
}

/// Returns whether the terms can sum to `target`. `None` if the search gave up.
fn solvable(terms: &[BoundedTerm], target: i128, steps: &mut usize) -> Option<bool> {
    let Some((first, rest)) = terms.split_first() else { return Some(target == 0) };
    if target < 0 || target > first.reach {
        return Some(false);
    }
    *steps = steps.checked_sub(1)?;
    let later = rest.first().map_or(0, |t| t.reach);
    let most = first.bound.min(target / first.coefficient);
    let least = (target - later).max(0).div_ceil_(first.coefficient);
    for value in least..=most {
        if solvable(rest, target - value * first.coefficient, steps)? {
            return Some(true);
        }
    }
    Some(false)
}

trait DivCeil {
    fn div_ceil_(self, by: Self) -> Self;
}

impl DivCeil for i128 {
    /// Divides non-negative numbers, rounding up.
    fn div_ceil_(self, by: Self) -> Self {
        (self + by - 1) / by
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;
    use smallvec::smallvec;

    use super::*;

    /// Returns each byte offset of a layout.
    pub(crate) fn bytes(layout: &Layout, item: usize) -> HashSet<isize> {
        let mut starts = vec![layout.offset() as isize];
        for (&size, &stride) in layout.sizes().iter().zip(layout.strides()) {
            let steps = 0..size as isize;
            starts =
                starts.iter().flat_map(|at| steps.clone().map(move |i| at + i * stride)).collect();
        }
        starts.iter().flat_map(|s| s * item as isize..(s + 1) * item as isize).collect()
    }

    /// Generates small layouts with any strides.
    pub(crate) fn layout() -> impl Strategy<Value = Layout> {
        (prop::collection::vec((0usize..4, -6isize..12), 0..4), 20usize..60).prop_map(
            |(dims, offset)| {
                let (sizes, strides) = dims.into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
                Layout::from_parts(sizes.into(), strides.into(), offset)
            },
        )
    }

    proptest! {
        #[test]
        fn the_test_for_overlap_agrees_with_enumeration(
            a in layout(),
            b in layout(),
            items in prop::sample::select(vec![(1usize, 1usize), (4, 4), (2, 8), (4, 1)]),
        ) {
            let shared = !bytes(&a, items.0).is_disjoint(&bytes(&b, items.1));
            let found = between((&a, items.0), (&b, items.1));
            prop_assert_eq!(found != Overlap::None, shared);
        }

        #[test]
        fn a_layout_reported_without_overlap_has_distinct_bytes(a in layout()) {
            if !may_overlap_itself(&a) {
                prop_assert_eq!(bytes(&a, 1).len(), a.numel());
            }
        }
    }

    #[test]
    fn views_of_a_plain_tensor_do_not_overlap_themselves() {
        let whole = Layout::contiguous(&[4, 6, 5]).unwrap();
        let views = [
            whole.clone(),
            whole.transpose(0, 2).unwrap(),
            whole.slice(1, 0, 6, 2).unwrap().transpose(0, 1).unwrap(),
            whole.select(1, 3).unwrap(),
            Layout::from_parts(smallvec![5], smallvec![6], 0), // a diagonal
            Layout::from_parts(smallvec![1, 3], smallvec![0, -2], 9),
            Layout::contiguous(&[4, 0, 5]).unwrap(),
        ];
        assert!(views.iter().all(|v| !may_overlap_itself(v)));
        for strides in [[0, 1], [1, 1], [3, 1], [2, -1]] {
            assert!(
                may_overlap_itself(&Layout::from_parts(
                    smallvec![4, 4],
                    SmallVec::from_slice(&strides),
                    8
                )),
                "{strides:?}"
            );
        }
    }

    #[test]
    fn halves_of_columns_and_interleaved_rows_do_not_overlap() {
        let whole = Layout::contiguous(&[64, 64]).unwrap();
        let left = whole.narrow(1, 0, 32).unwrap();
        let right = whole.narrow(1, 32, 32).unwrap();
        assert_eq!(between((&left, 4), (&right, 4)), Overlap::None);
        let even = whole.slice(0, 0, 64, 2).unwrap();
        let odd = whole.slice(0, 1, 64, 2).unwrap();
        assert_eq!(between((&even, 4), (&odd, 4)), Overlap::None);
        assert_eq!(between((&even, 4), (&even, 4)), Overlap::Same);
        let transposed = whole.transpose(0, 1).unwrap();
        assert_eq!(between((&whole, 4), (&transposed, 4)), Overlap::Partial);
        let row = Layout::from_parts(smallvec![64, 64], smallvec![0, 1], 0);
        assert_eq!(between((&row, 4), (&whole, 4)), Overlap::Partial);
    }
}
