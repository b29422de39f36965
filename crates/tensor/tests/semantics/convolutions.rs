//! Tests of convolutions, pools and resizing, for cases that the golden files lack. Gradients, and
//! gradients of gradients, are compared with finite differences.

use warpline::autograd::{GradcheckOptions, gradcheck, gradgradcheck};
use warpline::functional::{
    AvgPoolOptions, ConvOptions, ConvTransposeOptions, FoldOptions, InterpolateMode,
    InterpolateOptions, MaxPoolOptions, Padding, adaptive_avg_pool2d, adaptive_max_pool1d,
    avg_pool2d, conv_transpose2d, conv1d, conv2d, conv3d, fold, interpolate, max_pool1d,
    max_pool2d_with_indices, max_pool3d, unfold,
};
use warpline::{
    DType, Device, ErrorKind, Result, Tensor, TensorOptions, arange, manual_seed, randn,
};

use crate::common;

fn on(device: Device, dtype: DType) -> TensorOptions {
    (dtype, device).into()
}

/// Returns random elements that require a gradient.
fn leaf<const D: usize>(device: Device, sizes: [usize; D]) -> Result<Tensor> {
    randn(sizes, on(device, DType::F64))?.requires_grad_(true)
}

/// Returns elements that are all different.
fn distinct<const D: usize>(device: Device, sizes: [usize; D]) -> Result<Tensor> {
    let count: usize = sizes.iter().product();
    let values = arange(count as f64, on(device, DType::F64))?.mul(0.37)?.sin()?;
    values.reshape(sizes)?.contiguous()?.requires_grad_(true)
}

fn check(inputs: &[Tensor], f: impl Fn(&[Tensor]) -> Result<Tensor>) -> Result<()> {
    gradcheck(|x| Ok(vec![f(x)?]), inputs, GradcheckOptions::default())?;
    gradgradcheck(|x| Ok(vec![f(x)?]), inputs, GradcheckOptions::default())
}

fn places(body: impl Fn(Device) -> Result<()>) {
    common::worlds(1, |world| {
        manual_seed(3);
        world.places().into_iter().take(2).try_for_each(&body)
    });
}

#[test]
fn gradients_of_convolutions_agree_with_differences() {
    places(|device| {
        let bias = leaf(device, [4])?;
        let options = [
            ConvOptions::new().stride([2, 1]).padding([1, 0]),
            ConvOptions::new().padding(Padding::Same).dilation([1, 2]),
        ];
        for options in options {
            let inputs = [leaf(device, [2, 3, 4, 5])?, leaf(device, [4, 3, 2, 2])?, bias.clone()];
            check(&inputs, |x| conv2d(&x[0], &x[1], Some(&x[2]), options))?;
        }
        let grouped = ConvOptions::new().groups(2).padding(1);
        let inputs = [leaf(device, [2, 4, 3])?, leaf(device, [4, 2, 2])?, bias.clone()];
        check(&inputs, |x| conv1d(&x[0], &x[1], Some(&x[2]), grouped))?;
        let inputs = [leaf(device, [2, 3, 2, 2])?, leaf(device, [4, 3, 1, 1])?, bias];
        check(&inputs, |x| conv2d(&x[0], &x[1], Some(&x[2]), ()))?;
        let inputs = [leaf(device, [1, 2, 3, 2])?, leaf(device, [2, 1, 2, 1, 2])?];
        let one = ConvOptions::new().padding([0, 1, 0]);
        check(&inputs, |x| conv3d(&x[0], &x[1].select(0, 0)?.unsqueeze(0)?, None, one))
    });
}

#[test]
fn gradients_of_transposed_convolutions_agree_with_differences() {
    places(|device| {
        let options =
            ConvTransposeOptions::new().stride(2).padding([1, 0]).output_padding([1, 0]).groups(2);
        let inputs = [leaf(device, [2, 4, 2, 3])?, leaf(device, [4, 1, 3, 2])?, leaf(device, [2])?];
        check(&inputs, |x| conv_transpose2d(&x[0], &x[1], Some(&x[2]), options))
    });
}

/// The columns of a batch are computed for one image at a time, or for all images at once.
#[test]
fn a_batch_gives_the_results_of_its_images() {
    places(|device| {
        for groups in [1, 2] {
            let x = randn([3, 32, 40, 41], on(device, DType::F32))?;
            let x = x.requires_grad_(true)?;
            let weight = randn([6, 32 / groups, 3, 3], on(device, DType::F32))?;
            let weight = weight.mul(0.1)?.detach().requires_grad_(true)?;
            let options = ConvOptions::new().padding(1).groups(groups);
            let whole = conv2d(&x, &weight, None, options)?;
            whole.square()?.sum(())?.backward()?;
            let (of_x, of_weight) = (x.grad().unwrap(), weight.grad().unwrap());
            weight.set_grad(None)?;
            for n in 0..3 {
                let image = x.detach().select(0, n)?.requires_grad_(true)?;
                let own = conv2d(&image, &weight, None, options)?;
                own.square()?.sum(())?.backward()?;
                close(&own, &whole.select(0, n)?)?;
                close(&image.grad().unwrap(), &of_x.select(0, n)?)?;
            }
            close(&weight.grad().unwrap(), &of_weight)?;
        }
        Ok(())
    });
}

fn close(a: &Tensor, b: &Tensor) -> Result<()> {
    let scale = b.abs()?.amax(())?.item::<f32>()?;
    let error = a.sub(b)?.abs()?.amax(())?.item::<f32>()?;
    assert!(error <= 1e-4 * scale, "{error} beside {scale}");
    Ok(())
}

#[test]
fn strided_and_empty_operands_are_supported() {
    places(|device| {
        let base = randn([2, 5, 6, 3], on(device, DType::F64))?;
        let weight = randn([3, 3, 2, 4], on(device, DType::F64))?;
        let (x, w) = (base.permute([0, 3, 1, 2])?, weight.transpose(2, 3)?);
        let options = ConvOptions::new().stride([1, 2]);
        let expected = conv2d(&x.contiguous()?, &w.contiguous()?, None, options)?;
        assert_eq!(conv2d(&x, &w, None, options)?.to_vec::<f64>()?, expected.to_vec::<f64>()?);
        let none = randn([0, 3, 5, 6], on(device, DType::F64))?.requires_grad_(true)?;
        let weight = w.contiguous()?.detach().requires_grad_(true)?;
        let out = conv2d(&none, &weight, None, options)?;
        assert_eq!(out.size(), [0, 3, 2, 3]);
        out.sum(())?.backward()?;
        assert!(weight.grad().unwrap().to_vec::<f64>()?.iter().all(|g| *g == 0.0));
        Ok(())
    });
}

#[test]
fn gradients_of_pools_agree_with_differences() {
    places(|device| {
        let options = MaxPoolOptions::new().padding(1).ceil_mode(true);
        let x = distinct(device, [2, 2, 5, 4])?;
        check(
            std::slice::from_ref(&x),
            |x| Ok(max_pool2d_with_indices(&x[0], [3, 2], options)?.0),
        )?;
        let average = AvgPoolOptions::new()
            .stride([2, 1])
            .padding([1, 0])
            .ceil_mode(true)
            .count_include_pad(false);
        check(std::slice::from_ref(&x), |x| avg_pool2d(&x[0], [3, 2], average))?;
        check(&[x], |x| adaptive_avg_pool2d(&x[0], [3, 3]))?;
        let row = distinct(device, [2, 7])?;
        check(std::slice::from_ref(&row), |x| max_pool1d(&x[0], [3], ()))?;
        check(&[row], |x| adaptive_max_pool1d(&x[0], [3]))?;
        let volume = distinct(device, [1, 3, 4, 3])?;
        check(&[volume], |x| max_pool3d(&x[0], [2, 2, 2], ()))
    });
}

#[test]
fn gradients_of_resizing_and_folding_agree_with_differences() {
    places(|device| {
        let modes = [InterpolateMode::Nearest, InterpolateMode::Bicubic, InterpolateMode::Area];
        for mode in modes {
            let options = InterpolateOptions::new().size([5, 2]).mode(mode);
            check(&[leaf(device, [1, 2, 3, 4])?], |x| interpolate(&x[0], options.clone()))?;
        }
        let options = FoldOptions::new().stride([2, 1]).padding([1, 0]);
        check(&[leaf(device, [2, 2, 3, 4])?], |x| unfold(&x[0], [2, 2], options))?;
        check(&[leaf(device, [8, 6])?], |x| fold(&x[0], [3, 4], [2, 2], options))
    });
}

#[test]
fn output_sizes_of_windows_follow_pytorchs_rounding() {
    common::cpu(|_| {
        let x = arange(7f32, ())?.reshape([1, 7])?;
        let size = |ceil_mode, stride| -> Result<Vec<f32>> {
            let options = MaxPoolOptions::new().stride([stride]).ceil_mode(ceil_mode);
            max_pool1d(&x, [2], options)?.to_vec()
        };
        assert_eq!(size(false, 3)?, [1.0, 4.0]);
        assert_eq!(size(true, 3)?, [1.0, 4.0, 6.0]);
        // A window that starts beyond the end is dropped.
        assert_eq!(size(true, 7)?, [1.0]);
        let pair = arange(2f32, ())?.reshape([1, 2])?;
        let options = MaxPoolOptions::new().ceil_mode(true);
        assert_eq!(max_pool1d(&pair, [3], options)?.to_vec::<f32>()?, [1.0]);
        let same = ConvOptions::new().padding(Padding::Same);
        let weight = arange(4f32, ())?.reshape([1, 1, 4])?;
        // The padding is one zero before the elements and two after them.
        let out = conv1d(&x, &weight, None, same)?.to_vec::<f32>()?;
        assert_eq!(out, [8.0, 14.0, 20.0, 26.0, 32.0, 17.0, 6.0]);
        Ok(())
    });
}

#[test]
fn operands_that_do_not_fit_are_refused_by_name() {
    common::cpu(|_| {
        let x = randn([1, 4, 5, 5], ())?;
        let weight = |channels: usize, kernel: usize| randn([6, channels, kernel, kernel], ());
        let default = ConvOptions::default();
        let fails = |weight: &Tensor, options: ConvOptions<2>| {
            conv2d(&x, weight, None, options).unwrap_err()
        };
        let all = [
            fails(&weight(3, 3)?, default),
            fails(&weight(4, 6)?, default),
            fails(&weight(1, 3)?, default.groups(4)),
            fails(&weight(4, 3)?, default.groups(0)),
            fails(&weight(4, 3)?, default.stride([0, 1])),
            fails(&weight(4, 3)?, default.stride([2, 1]).padding(Padding::Same)),
            fails(&weight(4, 0)?, default.padding(Padding::Same)),
            fails(&weight(4, 3)?.to(DType::F64)?, default),
            conv2d(&x, &weight(4, 3)?, Some(&randn([5], ())?), default).unwrap_err(),
        ];
        for error in all {
            assert!(error.to_string().contains("conv2d"), "{error}");
            assert_eq!(error.location().map(|at| at.file()), Some(file!()), "{error}");
        }
        let integers = arange(9i64, ())?.reshape([1, 3, 3])?;
        let error = avg_pool2d(&integers, [2, 2], ()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::UnsupportedDType { .. }), "{error}");
        let wide = MaxPoolOptions::new().padding([2, 0]);
        let error = max_pool2d_with_indices(&x, [3, 3], wide).unwrap_err();
        assert!(error.to_string().contains("half"), "{error}");
        let options = InterpolateOptions::default();
        assert!(interpolate(&x, options).unwrap_err().to_string().contains("scale_factor"));
        Ok(())
    });
}
