//! Tests that errors in gradients name the line of the forward call, also for functions that
//! consist of several ops.

use warpline::autograd::detect_anomaly;
use warpline::functional::{
    InterpolateOptions, adaptive_avg_pool2d, avg_pool2d, conv_transpose1d, conv_transpose2d,
    conv1d, conv2d, conv3d, fold, interpolate, max_pool2d, unfold,
};
use warpline::{Device, Result, Tensor, full, rand};

use crate::common;

/// Runs the backward pass of a result with an incoming gradient of NaN. The error of anomaly
/// detection must name the line of the forward call.
#[track_caller]
fn check(name: &str, line: u32, result: Result<Tensor>) -> Result<()> {
    let y = result?;
    let grad = full(y.size(), f64::NAN, y.device())?.to(y.dtype())?;
    let error = detect_anomaly(|| y.backward_with(&grad)).expect_err(name);
    let location = error.location().expect("a line");
    assert_eq!((location.file(), location.line()), (file!(), line), "{name}: {error}");
    Ok(())
}

fn lines(device: Device) -> Result<()> {
    let leaf = |sizes: &[usize]| rand(sizes, device)?.requires_grad_(true);
    let row = leaf(&[2, 4, 8])?;
    let image = leaf(&[2, 4, 8, 8])?;
    let single = leaf(&[4, 8, 8])?;
    let volume = leaf(&[1, 2, 4, 4, 4])?;
    let matrix = leaf(&[4, 4])?;
    macro_rules! checked {
        ($($name:literal $call:expr;)*) => {$(check($name, line!(), $call)?;)*};
    }
    checked! { "conv1d" conv1d(&row, &leaf(&[3, 4, 3])?, None, ()); }
    checked! { "conv2d" conv2d(&image, &leaf(&[3, 4, 3, 3])?, &leaf(&[3])?, ()); }
    checked! { "conv2d of one image" conv2d(&single, &leaf(&[3, 4, 3, 3])?, None, ()); }
    checked! { "conv3d" conv3d(&volume, &leaf(&[2, 2, 2, 2, 2])?, None, ()); }
    checked! { "conv_transpose1d" conv_transpose1d(&row, &leaf(&[4, 3, 3])?, None, ()); }
    checked! { "conv_transpose2d" conv_transpose2d(&image, &leaf(&[4, 3, 3, 3])?, None, ()); }
    checked! { "max_pool2d" max_pool2d(&image, 2, ()); }
    checked! { "avg_pool2d" avg_pool2d(&image, 2, ()); }
    checked! { "avg_pool2d of one image" avg_pool2d(&single, 2, ()); }
    checked! { "adaptive_avg_pool2d" adaptive_avg_pool2d(&image, 2); }
    checked! { "unfold" unfold(&image, 2, ()); }
    checked! { "fold" fold(&leaf(&[1, 4, 9])?, 4, 2, ()); }
    checked! { "interpolate" interpolate(&image, InterpolateOptions::new().size([4, 4])); }
    checked! { "median" matrix.median(0).map(|found| found.0); }
    checked! { "kthvalue" matrix.kthvalue(2, ()).map(|found| found.0); }
    Ok(())
}

#[test]
fn errors_of_gradients_have_the_line_of_the_forward_call() {
    common::worlds(1, |world| world.places().into_iter().take(2).try_for_each(lines));
}
