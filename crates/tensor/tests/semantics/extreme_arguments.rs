//! Tests of arguments far beyond the size of any tensor, on the CPU and on a simulated GPU.

use std::time::{Duration, Instant};

use warpline::functional::{
    AvgPoolOptions, ConvOptions, ConvTransposeOptions, FoldOptions, MaxPoolOptions, avg_pool2d,
    conv_transpose1d, conv1d, fold, max_pool2d, unfold,
};
use warpline::{
    DiagonalOptions, DiffOptions, ErrorKind, Result, ResultExt, arange, ones, tensor, tril_indices,
    triu_indices, zeros,
};

use crate::common::bad_calls::everywhere;

const STEPS: [usize; 6] = [1 << 31, (1 << 31) + 1, 1 << 32, 1 << 63, usize::MAX - 1, usize::MAX];

/// A stride has an effect only if there is more than one window, and a dilation only if the window
/// has more than one element.
#[test]
fn a_huge_stride_or_dilation_has_no_effect_with_a_single_window_or_element() -> Result<()> {
    everywhere(|at| {
        let image = arange(36f32, at)?.reshape([1, 1, 6, 6])?;
        let row = ones([1, 1, 64], at)?;
        for step in STEPS {
            let options = MaxPoolOptions::new().dilation([1, step]);
            let y = max_pool2d(&image, [1, 1], options)?;
            assert_eq!(y.to_vec::<f32>()?, image.to_vec::<f32>()?, "dilation of {step}");
            let options = AvgPoolOptions::new().stride(step);
            let y = avg_pool2d(&image, [2, 2], options)?;
            assert_eq!(y.to_vec::<f32>()?, [3.5], "stride of {step}");
            let weight = tensor([2f32, 3.0], at)?.reshape([1, 1, 2])?;
            weight.requires_grad_(true)?;
            let options = ConvOptions::new().stride([step]);
            let y = conv1d(&row, &weight, None, options)?;
            assert_eq!(y.to_vec::<f32>()?, [5.0], "stride of {step}");
            y.sum(())?.backward()?;
            assert_eq!(weight.grad().expect("a gradient").to_vec::<f32>()?, [1.0, 1.0]);
            let options = ConvTransposeOptions::new().stride([step]);
            let y = conv_transpose1d(&y.detach(), &weight.detach(), None, options)?;
            assert_eq!(y.to_vec::<f32>()?, [10.0, 15.0], "stride of {step}");
            let options = FoldOptions::new().stride(step);
            let columns = unfold(&image, [6, 6], options)?;
            let back = fold(&columns, [6, 6], [6, 6], options)?;
            assert_eq!(back.to_vec::<f32>()?, image.to_vec::<f32>()?, "stride of {step}");
            // With two elements in the kernel, the dilation is used and does not fit.
            let options = FoldOptions::new().dilation([1, step]);
            assert!(unfold(&image, [1, 2], options).is_err());
        }
        assert_eq!(image.sum(())?.item::<f32>()?, 630.0, "the device works on");
        Ok(())
    })
}

#[test]
fn a_padding_of_two_to_the_40_is_an_error() -> Result<()> {
    everywhere(|at| {
        let (image, row) = (ones([1, 1, 6, 6], at)?, ones([1, 1, 6], at)?);
        for padding in [1 << 31, 1 << 40, isize::MAX as usize, usize::MAX] {
            let options = FoldOptions::new().padding(padding);
            let error = unfold(&image, [2, 2], options).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::ShapeMismatch { .. }), "{error}");
            let options = ConvOptions::new().padding([padding]);
            assert!(conv1d(&row, &ones([1, 1, 2], at)?, None, options).is_err());
            let options = MaxPoolOptions::new().padding(padding);
            assert!(max_pool2d(&image, [usize::MAX; 2], options).is_err());
        }
        Ok(())
    })
}

#[test]
fn diff_and_triangles_of_huge_sizes_return() -> Result<()> {
    everywhere(|at| {
        let start = Instant::now();
        let t = tensor([1i64, 4, 9], at)?;
        for n in [3, 4, 1 << 32, usize::MAX] {
            assert_eq!(t.diff(DiffOptions::new().n(n).dim(0))?.size(), [0]);
        }
        assert_eq!(
            zeros([0, 2], at)?.diff(DiffOptions::new().n(usize::MAX).dim(0))?.size(),
            [0, 2]
        );
        assert_eq!(t.diff(DiffOptions::new().n(2).dim(0))?.to_vec::<i64>()?, [2]);
        for rows in [1 << 32, 1 << 63, usize::MAX] {
            assert_eq!(tril_indices(rows, 0, 0, at)?.size(), [2, 0]);
            assert_eq!(triu_indices(rows, 2, 0, at)?.to_vec::<i64>()?, [0, 0, 1, 0, 1, 1]);
            assert_eq!(tril_indices(2, rows, 0, at)?.to_vec::<i64>()?, [0, 1, 1, 0, 0, 1]);
            assert!(triu_indices(2, rows, isize::MIN, at).is_err());
            assert!(tril_indices(rows, rows, isize::MAX, at).is_err());
            assert_eq!(tril_indices(3, 3, isize::MIN, at)?.size(), [2, 0]);
            assert_eq!(triu_indices(3, 3, isize::MAX, at)?.size(), [2, 0]);
        }
        // Calls that loop over these sizes take years.
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
        for offset in -5..5isize {
            for (rows, columns) in [(3, 4), (4, 3), (1, 5), (5, 1), (3, 0), (0, 3)] {
                let lower = tril_indices(rows, columns, offset, at)?;
                let upper = triu_indices(rows, columns, offset + 1, at)?;
                assert_eq!(lower.size()[1] + upper.size()[1], rows * columns);
                let places = lower.to_vec::<i64>()?;
                let (i, j) = places.split_at(places.len() / 2);
                assert!(i.iter().zip(j).all(|(i, j)| *j <= i + offset as i64));
            }
        }
        Ok(())
    })
}

#[test]
fn repeating_beyond_the_largest_size_is_an_error() -> Result<()> {
    everywhere(|at| {
        let one = ones([1], at)?;
        for times in [usize::MAX, 1 << 63] {
            let errors = [one.repeat([times]), one.tile([times]), one.repeat_interleave(times, 0)];
            for error in errors.map(|out| out.unwrap_err()) {
                assert!(matches!(error.kind(), ErrorKind::SizeOverflow { .. }), "{error}");
            }
        }
        Ok(())
    })
}

#[test]
fn empty_views_with_huge_strides_can_be_made_and_used() -> Result<()> {
    everywhere(|at| {
        let none = zeros([1, 0], at)?.expand([1isize << 61, 0])?.reshape([4isize, 1 << 59, 0])?;
        let views = [
            none.select(0, 3)?,
            none.narrow(0, 3, 1)?,
            none.diagonal(DiagonalOptions::new().offset(3).dim1(1).dim2(0))?,
            none.unsqueeze(0)?,
            none.slice(1, 5.., usize::MAX)?,
            none.i((.., -1))?,
        ];
        for view in views {
            assert_eq!(view.numel(), 0);
            let _ = view.data_ptr();
            assert_eq!(view.sum(())?.item::<f32>()?, 0.0);
            assert_eq!(view.unsqueeze(-1)?.add(1.0)?.numel(), 0);
        }
        let t = arange(6, at)?.reshape([2, 3])?;
        let one = t.slice(0, .., usize::MAX)?;
        assert_eq!(one.unsqueeze(0)?.flip(1)?.to_vec::<i64>()?, [0, 1, 2]);
        assert_eq!(one.select(0, -1)?.sum(())?.item::<i64>()?, 3);
        assert_eq!(one.add(&one.t()?.t()?)?.to_vec::<i64>()?, [0, 2, 4]);
        assert!(one.select(0, isize::MIN).is_err() && one.narrow(0, isize::MIN, 1).is_err());
        Ok(())
    })
}

#[test]
fn roll_reduces_any_shift_to_its_remainder() -> Result<()> {
    everywhere(|at| {
        let t = arange(3, at)?;
        // Both shifts have the remainder 1 when divided by 3.
        for shift in [isize::MIN, isize::MAX] {
            assert_eq!(t.roll(shift, 0)?.to_vec::<i64>()?, [2, 0, 1]);
            assert_eq!(t.roll(shift, ())?.to_vec::<i64>()?, [2, 0, 1]);
        }
        Ok(())
    })
}

#[test]
fn more_views_than_fit_in_memory_are_an_error() -> Result<()> {
    everywhere(|at| {
        let wide = ones([1], at)?.expand([1isize << 46])?;
        assert!(matches!(wide.unbind(0).kind(), Some(ErrorKind::InvalidArgument { .. })));
        assert!(matches!(wide.split(1, 0).kind(), Some(ErrorKind::InvalidArgument { .. })));
        assert!(matches!(wide.chunk(1 << 46, 0).kind(), Some(ErrorKind::InvalidArgument { .. })));
        assert!(matches!(
            wide.tensor_split(1 << 46, 0).kind(),
            Some(ErrorKind::InvalidArgument { .. })
        ));
        Ok(())
    })
}

#[test]
fn more_samples_than_fit_in_memory_are_an_error() -> Result<()> {
    everywhere(|at| {
        for n in [1 << 50, 1 << 63, usize::MAX - 5, usize::MAX] {
            assert!(ones([3], at)?.multinomial(n, true).is_err());
        }
        Ok(())
    })
}
