//! Tests that compare layouts with a model that lists the offset of every element.

use proptest::prelude::*;
use warpline_runtime::{Error, ErrorKind, Layout, ResultExt, broadcast};

/// Returns the offset of every element, in row-major order.
fn offsets(layout: &Layout) -> Vec<isize> {
    let mut out = vec![layout.offset() as isize];
    for (&size, &stride) in layout.sizes().iter().zip(layout.strides()) {
        out = out
            .iter()
            .flat_map(|&base| (0..size as isize).map(move |i| base + i * stride))
            .collect();
    }
    out
}

fn contiguous(sizes: &[usize]) -> Layout {
    Layout::contiguous(sizes).expect("small sizes")
}

/// Generates layouts: a contiguous layout after a few random view operations.
fn any_layout() -> impl Strategy<Value = Layout> {
    let steps = prop::collection::vec((0..4u8, any::<u8>(), any::<u8>()), 0..4);
    (prop::collection::vec(1usize..5, 0..4), steps).prop_map(|(sizes, steps)| {
        let mut layout = contiguous(&sizes);
        for (kind, a, b) in steps {
            let n = layout.ndim();
            if n == 0 {
                break;
            }
            let (x, y) = ((a as usize % n) as isize, (b as usize % n) as isize);
            let size = layout.sizes()[x as usize];
            layout = match kind {
                0 => layout.transpose(x, y),
                1 => layout.narrow(x, (b as usize % size) as isize, size - b as usize % size),
                2 => layout.slice(x, 0, size, 1 + b as usize % 3),
                _ => layout.unsqueeze(x),
            }
            .expect("in range");
        }
        layout
    })
}

proptest! {
    #[test]
    fn a_view_keeps_the_order_of_all_elements(layout in any_layout(), split in 1usize..5) {
        let numel = layout.numel();
        prop_assume!(numel > 0 && numel % split == 0);
        for sizes in [vec![numel], vec![split, numel / split], vec![numel / split, 1, split]] {
            if let Some(view) = layout.view(&sizes) {
                prop_assert_eq!(offsets(&view), offsets(&layout));
            }
        }
    }

    #[test]
    fn a_view_is_returned_if_strides_allow_it(layout in any_layout(), split in 1usize..5) {
        let numel = layout.numel();
        prop_assume!(numel > 1 && numel % split == 0);
        // A layout with two dimensions has strides if and only if the offsets in all rows, and
        // those of all row starts, have equal steps.
        let all = offsets(&layout);
        let (rows, columns) = (split, numel / split);
        let steps = |xs: Vec<isize>| xs.windows(2).map(|w| w[1] - w[0]).collect::<Vec<_>>();
        let even = |xs: &[isize]| xs.windows(2).all(|w| w[0] == w[1]);
        let column_steps: Vec<isize> =
            all.chunks(columns).flat_map(|row| steps(row.to_vec())).collect();
        let row_steps = steps(all.iter().step_by(columns).copied().collect());
        let possible = even(&column_steps) && even(&row_steps);
        prop_assert_eq!(layout.view(&[rows, columns]).is_some(), possible);
    }

    #[test]
    fn a_layout_is_contiguous_if_its_offsets_are(layout in any_layout()) {
        let start = layout.offset() as isize;
        let expected: Vec<isize> = (start..start + layout.numel() as isize).collect();
        prop_assert_eq!(layout.is_contiguous(), offsets(&layout) == expected);
    }

    #[test]
    fn select_equals_narrow_and_squeeze(layout in any_layout(), dim in 0usize..4, index in 0usize..5) {
        prop_assume!(layout.ndim() > 0);
        let dim = dim % layout.ndim();
        let index = index % layout.sizes()[dim];
        let dim = dim as isize;
        let narrowed = layout.narrow(dim, index as isize, 1)?.squeeze(dim)?;
        prop_assert_eq!(layout.select(dim, index as isize)?, narrowed);
    }
}

#[test]
fn expand_repeats_size_one_and_refuses_other_sizes() -> Result<(), Error> {
    let expanded = contiguous(&[3, 1]).expand(&[2, 3, 4])?;
    assert_eq!(expanded.strides(), [0, 1, 0]);
    assert!(matches!(contiguous(&[3]).expand(&[2]).kind(), Some(ErrorKind::ExpandMismatch { .. })));
    Ok(())
}

#[test]
fn broadcast_follows_pytorchs_rules() -> Result<(), Error> {
    assert_eq!(broadcast(&[5, 1, 3], &[4, 1])?.as_slice(), [5, 4, 3]);
    assert_eq!(broadcast(&[0], &[1])?.as_slice(), [0]);
    let error = broadcast(&[2], &[3]).expect_err("2 and 3 do not broadcast");
    let message = error.to_string();
    let facts =
        "The size of tensor a (2) must match the size of tensor b (3) at non-singleton dimension 0";
    assert!(message.contains(facts) && message.contains("host_suite/layout.rs"), "{message}");
    Ok(())
}

#[test]
fn bad_dimensions_indices_and_sizes_are_errors() {
    let layout = contiguous(&[2, 3]);
    assert!(matches!(
        layout.transpose(0, 2).kind(),
        Some(ErrorKind::DimOutOfRange { dim: 2, ndim: 2, .. })
    ));
    assert!(matches!(
        layout.select(1, -4).kind(),
        Some(ErrorKind::IndexOutOfRange { index: -4, .. })
    ));
    assert!(matches!(layout.narrow(0, 1, 2).kind(), Some(ErrorKind::IndexOutOfRange { .. })));
    assert!(layout.permute(&[0, 0]).is_err());
    assert!(layout.permute(&[0]).is_err());
    assert!(matches!(
        Layout::contiguous(&[usize::MAX, 2]).kind(),
        Some(ErrorKind::SizeOverflow { .. })
    ));
    assert!(layout.narrow(0, isize::MAX, 1).is_err());
    assert!(layout.narrow(0, 0, usize::MAX).is_err());
}

#[test]
fn a_scalar_has_no_dimension_to_select_or_narrow() -> Result<(), Error> {
    let scalar = contiguous(&[]);
    assert_eq!(scalar.transpose(0, -1)?, scalar);
    assert!(scalar.transpose(0, 1).is_err());
    assert_eq!(scalar.permute(&[])?, scalar);
    assert!(scalar.permute(&[0]).is_err());
    assert!(matches!(
        scalar.narrow(0, 0, 1).kind(),
        Some(ErrorKind::DimOutOfRange { ndim: 0, .. })
    ));
    assert!(matches!(scalar.select(0, 0).kind(), Some(ErrorKind::DimOutOfRange { ndim: 0, .. })));
    assert!(scalar.slice(0, 0, 1, 1).is_err());
    assert_eq!(scalar.squeeze(0)?, scalar);
    Ok(())
}

#[test]
fn every_dimension_has_a_stride() {
    let parts = |sizes: &[usize], strides: &[isize]| {
        Layout::from_parts(sizes.into(), strides.into(), 0).strides().to_vec()
    };
    assert_eq!(parts(&[2, 3], &[1]), [1, 0]);
    assert_eq!(parts(&[2], &[1, 7]), [1]);
}

#[test]
fn sizes_whose_product_overflows_give_no_view() {
    let layout = contiguous(&[4]);
    assert_eq!(layout.view(&[usize::MAX, 2]), None);
    // The product of the sizes overflows to 4.
    assert_eq!(layout.view(&[(1 << 62) + 1, 4]), None);
    assert_eq!(contiguous(&[0]).view(&[1 << 62, 4]), None);
}
