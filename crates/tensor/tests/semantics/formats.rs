//! Tests of memory formats, and of the strides of results, which must equal PyTorch's.

use warpline::autograd::{GradOptions, grad};
use warpline::functional::{
    BatchNormOptions, ConvOptions, ConvTransposeOptions, adaptive_avg_pool2d, avg_pool2d,
    batch_norm, conv_transpose2d, conv2d, max_pool2d,
};
use warpline::{
    DType, MemoryFormat, Result, Tensor, TensorOptions, arange, ones, randn, tensor, zeros,
};

use crate::common::World;

crate::rows! {
    schedules(1) results_keep_the_order_of_their_operands gpu_results_keep_the_order_of_their_operands
        => results;
    schedules(1) layers_of_images_keep_channels_last gpu_layers_of_images_keep_channels_last => layers;
    schedules(2) copies_keep_the_order_of_dimensions gpu2_copies_keep_the_order_of_dimensions => copies;
}

fn matrix(device: &str) -> Result<Tensor> {
    arange(12, (DType::F32, device))?.reshape([3, 4])
}

fn results(_: &World) -> Result<()> {
    for device in ["cpu", "cuda"] {
        let x = matrix(device)?;
        let turned = x.transpose(0, 1)?;
        for y in [turned.add(1)?, turned.exp()?, (&turned + &turned)?, turned.lt(5)?] {
            assert_eq!((y.size(), y.stride()), (&[4, 3][..], &[1, 4][..]));
        }
        assert_eq!((&turned + 1)?.to_vec::<f32>()?, x.add(1)?.transpose(0, 1)?.to_vec::<f32>()?);
        // The result has the order of dimensions of the first operand for which the order is
        // defined. It is not defined for a row that broadcasts over all rows.
        let plain = turned.contiguous()?;
        assert_eq!((&turned + &plain)?.stride(), [1, 4]);
        assert_eq!((&plain + &turned)?.stride(), [3, 1]);
        let row = ones([3], (DType::F32, device))?;
        assert_eq!((&row + &turned)?.stride(), [1, 4]);
        // A conversion of the dtype keeps the order of dimensions.
        let integers = turned.to(DType::I64)?;
        assert_eq!(integers.stride(), [1, 4]);
        assert_eq!(integers.sqrt()?.stride(), [1, 4]);
    }
    Ok(())
}

/// The strides are those of PyTorch 2.11.
fn layers(_: &World) -> Result<()> {
    for device in ["cpu", "cuda"] {
        for format in [MemoryFormat::Contiguous, MemoryFormat::ChannelsLast] {
            let new = |sizes: &[usize]| randn(sizes, device);
            let x = new(&[2, 4, 6, 6])?.contiguous_in(format)?.requires_grad_(true)?;
            let weight = new(&[8, 4, 3, 3])?.requires_grad_(true)?;
            let y = conv2d(&x, &weight, None, ConvOptions::new().padding(1))?;
            let (gain, shift) = (ones(8, device)?.requires_grad_(true)?, zeros(8, device)?);
            let (mean, var) = (zeros(8, device)?, ones(8, device)?);
            let options = BatchNormOptions::new().weight(&gain).bias(&shift).training(true);
            let normed = batch_norm(&y, &mean, &var, options)?;
            let active = normed.relu()?;
            let largest = max_pool2d(&active, 2, ())?;
            let average = avg_pool2d(&active, 2, ())?;
            let up = ConvTransposeOptions::new().stride(2);
            let upper = conv_transpose2d(&largest, &new(&[8, 4, 2, 2])?, None, up)?;
            let pooled = adaptive_avg_pool2d(&active, 1)?;
            let small = pooled.flatten(1)?.sum(())?;
            let of_active = grad(&[&small], &[&active], GradOptions::new().retain_graph(true))?;
            let sum = largest.sum(())?.add(&average.sum(())?)?.add(&upper.sum(())?)?;
            sum.backward()?;
            let (wide, narrow, up, one, image) = match format {
                MemoryFormat::Contiguous => {
                    ([288, 36, 6, 1], [72, 9, 3, 1], [144, 36, 6, 1], [8, 1, 1, 1], [144, 36, 6, 1])
                }
                _ => (
                    [288, 1, 48, 8],
                    [72, 1, 24, 8],
                    [144, 1, 24, 4],
                    [8, 1, 8, 8],
                    [144, 1, 24, 4],
                ),
            };
            // For a result of size 1 × 1, the order of the gradient's dimensions is not defined.
            let of_active = of_active[0].as_ref().expect("a gradient");
            for (t, strides) in [
                (of_active, wide),
                (&y, wide),
                (&normed, wide),
                (&active, wide),
                (&largest, narrow),
                (&average, narrow),
                (&upper, up),
                (&pooled, one),
            ] {
                assert_eq!(t.stride(), strides, "{device} {format:?}");
            }
            let [of_x, of_weight] = [&x, &weight].map(|t| t.grad().expect("a gradient"));
            assert_eq!(of_x.stride(), image, "{device} {format:?}");
            // The gradient of a leaf has the order of dimensions of the leaf.
            assert_eq!(of_weight.stride(), [36, 9, 3, 1], "{device} {format:?}");
        }
    }
    Ok(())
}

fn copies(_: &World) -> Result<()> {
    let last = TensorOptions::new().memory_format(MemoryFormat::ChannelsLast);
    for device in ["cpu", "cuda"] {
        let x = zeros([2, 3, 4, 5], last.clone().device(device))?;
        assert_eq!(x.stride(), [60, 1, 15, 3]);
        assert!(x.is_contiguous_in(MemoryFormat::ChannelsLast) && !x.is_contiguous());
        for y in [x.copy()?, x.empty_like(())?, x.ones_like(DType::F16)?, x.to(DType::F64)?] {
            assert_eq!(y.stride(), x.stride());
        }
        for to in ["cpu", "cuda", "cuda:1"] {
            let moved = x.to(to)?;
            assert_eq!(moved.stride(), x.stride(), "{device} to {to}");
        }
        let nested = tensor(
            [[[[1.0f32, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]],
            last.clone().device(device),
        )?;
        assert_eq!(nested.stride(), [8, 1, 4, 2]);
        assert_eq!(nested.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        let plain = x.empty_like(MemoryFormat::Contiguous)?;
        assert_eq!(plain.stride(), [60, 20, 5, 1]);
        let values = arange(120, (DType::F32, device))?.reshape([2, 3, 4, 5])?;
        let turned = values.to(MemoryFormat::ChannelsLast)?;
        assert_eq!(turned.stride(), x.stride());
        for to in ["cpu", "cuda", "cuda:1"] {
            assert_eq!(
                turned.to(to)?.to_vec::<f32>()?,
                values.to_vec::<f32>()?,
                "{device} to {to}"
            );
            let view = turned.narrow(1, 1, 2)?;
            assert_eq!(view.copy()?.to(to)?.stride(), [40, 1, 10, 2], "dense, in its order");
            assert_eq!(view.to(to)?.to_vec::<f32>()?, values.narrow(1, 1, 2)?.to_vec::<f32>()?);
        }
        assert!(turned.to(MemoryFormat::Contiguous)?.is_contiguous());
        assert!(turned.transpose(0, 1)?.contiguous()?.is_contiguous());
        assert!(values.contiguous_in(MemoryFormat::ChannelsLast3d).is_err(), "four dimensions");
    }
    Ok(())
}
