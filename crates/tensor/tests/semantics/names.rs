//! Tests of names and argument types that users of PyTorch, candle or ndarray try first.

use warpline::autograd::no_grad;
use warpline::functional::{
    AvgPoolOptions, ConvOptions, ConvTransposeOptions, CosineSimilarityOptions, EmbeddingOptions,
    FoldOptions, GLUOptions, MaxPoolOptions, NormalizeOptions, adaptive_avg_pool2d, avg_pool2d,
    conv_transpose2d, conv2d, cosine_similarity, embedding, glu, max_pool2d, normalize, pad,
    unfold,
};
use warpline::{
    BincountOptions, DType, Device, ErrorKind, Result, ResultExt, Tensor, arange, cuda, ones,
    simulated, tensor, with_runtime, zeros,
};

use crate::common::bad_calls::everywhere;

#[test]
#[allow(clippy::needless_borrows_for_generic_args)] // it shows that either does
fn shapes_are_arrays_references_slices_or_vectors() -> Result<()> {
    everywhere(|at| {
        let sizes = vec![2, 3];
        let six = arange(6, at)?;
        for t in [
            zeros([2, 3], at)?,
            zeros(&[2, 3], at)?,
            zeros(&sizes, at)?,
            zeros(&sizes[..], at)?,
            zeros(sizes.clone(), at)?,
            six.reshape([2, 3])?,
            six.reshape(&[2, -1])?,
            six.reshape(&sizes)?,
            six.reshape([2i64, 3])?,
            six.view(zeros([2, 3], at)?.size())?,
            six.view(vec![-1isize, 3])?,
            ones(3, at)?.expand([2, -1])?,
            six.new_zeros([2, 3], ())?,
        ] {
            assert_eq!(t.size(), [2, 3]);
        }
        assert_eq!(zeros((), at)?.size(), [0usize; 0]);
        assert_eq!(ones(1, at)?.reshape(())?.dim(), 0);
        assert_eq!(six.reshape([2, 3])?.reshape(-1)?.size(), [6]);
        assert_eq!(six.reshape([1, 2, 3])?.permute([2, 0, 1])?.size(), [3, 1, 2]);
        Ok(())
    })
}

#[test]
fn a_tensor_from_a_vector_and_a_shape() -> Result<()> {
    everywhere(|at| {
        let t = Tensor::from_vec(vec![1f32, 2.0, 3.0, 4.0], [2, 2], at)?;
        assert_eq!(t.i((1, 0))?.item::<f32>()?, 3.0);
        let t = Tensor::from_vec(vec![1i64, 2], 2, (DType::F16, at))?;
        assert_eq!((t.size(), t.dtype()), (&[2][..], DType::F16));
        let error = Tensor::from_vec(vec![1i64, 2], [3], at).unwrap_err();
        assert!(
            matches!(
                (error.op(), error.kind()),
                ("from_vec", ErrorKind::InvalidReshape { numel: 2, .. })
            ),
            "{error}"
        );
        Ok(())
    })
}

#[test]
fn ranges_of_all_kinds_select_elements() -> Result<()> {
    everywhere(|at| {
        let t = arange(5, at)?;
        let read = |t: Tensor| t.to_vec::<i64>();
        assert_eq!(read(t.i(1..3)?)?, [1, 2]);
        assert_eq!(read(t.i(1..=3)?)?, [1, 2, 3]);
        assert_eq!(read(t.i(3..)?)?, [3, 4]);
        assert_eq!(read(t.i(..2)?)?, [0, 1]);
        assert_eq!(read(t.i(..=2)?)?, [0, 1, 2]);
        assert_eq!(read(t.i(..=-1)?)?, [0, 1, 2, 3, 4]);
        assert_eq!(read(t.i(-2..=-1)?)?, [3, 4]);
        assert_eq!(read(t.i(-2..-1)?)?, [3]);
        assert_eq!(read(t.i(..)?)?.len(), 5);
        assert_eq!(read(t.i(1usize..t.numel())?)?, [1, 2, 3, 4]);
        assert_eq!(read(t.i(0i64..=1)?)?, [0, 1]);
        assert_eq!(t.i(3i64)?.item::<i64>()?, 3);
        Ok(())
    })
}

#[test]
fn none_and_the_unit_are_all_dimensions() -> Result<()> {
    everywhere(|at| {
        let t = arange(6, at)?.reshape([2, 3])?;
        assert_eq!(t.sum(None)?.item::<i64>()?, t.sum(())?.item::<i64>()?);
        assert_eq!(t.sum(Some(0))?.to_vec::<i64>()?, t.sum(0)?.to_vec::<i64>()?);
        assert_eq!(t.sum(vec![0, 1])?.item::<i64>()?, 15);
        assert_eq!(t.argmax(None)?.item::<i64>()?, t.argmax(())?.item::<i64>()?);
        assert_eq!(t.argmax(1)?.to_vec::<i64>()?, [2, 2]);
        let thin = t.reshape([1, 6, 1])?;
        assert_eq!(thin.squeeze(None)?.size(), thin.squeeze(())?.size());
        assert_eq!(thin.squeeze(-1)?.size(), [1, 6]);
        Ok(())
    })
}

#[test]
fn a_step_of_gradient_descent_in_place() -> Result<()> {
    everywhere(|at| {
        let (weight, grad) = (ones([3], at)?, tensor([1f32, 2.0, 4.0], at)?);
        let address = weight.data_ptr();
        assert_eq!(weight.add_scaled_(&grad, -0.5)?.to_vec::<f32>()?, [0.5, 0.0, -1.0]);
        assert_eq!(weight.data_ptr(), address);
        let whole = ones([3], (DType::I64, at))?;
        assert_eq!(whole.add_scaled_(&whole, 2)?.to_vec::<i64>()?, [3; 3]);
        let error = whole.add_scaled_(&whole, 0.5).unwrap_err();
        assert!(
            matches!(
                (error.op(), error.kind()),
                ("add_scaled_", ErrorKind::InvalidArgument { .. })
            ),
            "{error}"
        );
        assert!(matches!(whole.add_scaled_(&grad, 1).kind(), Some(ErrorKind::CannotCast { .. })));
        let error = weight.add_scaled_(&ones([2], at)?, 1).unwrap_err();
        assert!(error.to_string().starts_with("add_scaled_: "), "{error}");
        // Pass the tensor itself as the operand.
        assert_eq!(weight.add_scaled_(&weight, 1)?.to_vec::<f32>()?, [1.0, 0.0, -2.0]);
        Ok(())
    })
}

#[test]
fn streams_and_events_are_made_by_their_types() -> Result<()> {
    with_runtime(&simulated(2)?, || {
        for stream in [cuda::Stream::new(1)?, cuda::Stream::new("cuda:1")?] {
            assert_eq!(stream.device_index(), 1);
        }
        let stream = cuda::Stream::new(())?;
        assert_eq!(stream.device_index(), 0);
        assert!(cuda::Stream::new(cuda::StreamOptions::new().priority(-1))? != stream);
        assert!(cuda::Stream::new(7).is_err());
        let (start, end) = (
            cuda::Event::new(cuda::EventFlags::new().enable_timing(true)),
            cuda::Event::new(cuda::EventFlags::new().enable_timing(true)),
        );
        start.record(&stream)?;
        // The closure may fail, and one `?` handles both errors.
        let sum = cuda::with_stream(&stream, || ones([4], "cuda")?.sum(()))?;
        end.record(&stream)?;
        end.synchronize()?;
        assert!(start.elapsed_time(&end)? >= 0.0);
        assert_eq!(sum.item::<f32>()?, 4.0);
        let error = cuda::Event::new(()).elapsed_time(&end).unwrap_err();
        assert!(
            error.to_string().contains("Event::new(EventFlags::new().enable_timing(true))"),
            "{error}"
        );
        Ok(())
    })
}

#[test]
fn view_as_and_m_t_are_views_and_refuse_what_pytorch_refuses() -> Result<()> {
    everywhere(|at| {
        let t = arange(6, at)?;
        let view = t.view_as(&zeros([2, 3], ())?)?;
        assert_eq!((view.size(), view.data_ptr()), (&[2, 3][..], t.data_ptr()));
        assert_eq!(view.m_t()?.to_vec::<i64>()?, [0, 3, 1, 4, 2, 5]);
        assert_eq!(view.m_t()?.data_ptr(), t.data_ptr());
        let error = t.m_t().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::DimOutOfRange { .. }), "{error}");
        assert_eq!((error.op(), t.view_as(&view.i(0)?).unwrap_err().op()), ("m_t", "view_as"));
        Ok(())
    })
}

#[test]
fn a_tensor_takes_sizes_dtype_and_device_of_another() -> Result<()> {
    everywhere(|at| {
        let t = arange(2, at)?.unsqueeze(1)?;
        let wide = t.expand_as(&zeros([3, 2, 4], ())?)?;
        assert_eq!((wide.size(), wide.data_ptr()), (&[3, 2, 4][..], t.data_ptr()));
        assert_eq!(t.expand_as(&zeros([3], ())?).unwrap_err().op(), "expand_as");
        let float = t.type_as(&zeros([1], ())?)?;
        assert_eq!((float.dtype(), float.device()), (DType::F32, Device::Cpu));
        assert_eq!(zeros([1], ())?.type_as(&t)?.device(), t.device());
        assert!(t.type_as(&wide)?.is_same(&t));
        Ok(())
    })
}

#[test]
fn one_number_an_array_or_a_tuple_of_any_integers_sets_a_window() -> Result<()> {
    everywhere(|at| {
        let x = ones([1, 4, 6], at)?;
        for pooled in [
            max_pool2d(&x, (2i64, 3usize), ())?,
            max_pool2d(&x, [2i32, 3], MaxPoolOptions::new().stride((2, 3)))?,
            avg_pool2d(&x, [2isize, 3], AvgPoolOptions::new().padding(0i64))?,
        ] {
            assert_eq!(pooled.size(), [1, 2, 2]);
        }
        let weight = ones([1, 1, 1, 1], at)?;
        let conv = |options| conv2d(&x, &weight, None, options);
        assert_eq!(conv(ConvOptions::new().padding((1, 0)))?.size(), [1, 6, 6]);
        for (result, name) in [
            (max_pool2d(&x, (2, -3), ()), "kernel_size must be greater than zero, but is -3"),
            (max_pool2d(&x, 2, MaxPoolOptions::new().padding(-1)), "padding must not be negative"),
            (max_pool2d(&x, 2, MaxPoolOptions::new().dilation(-1)), "dilation"),
            (avg_pool2d(&x, 2, AvgPoolOptions::new().stride(-2)), "stride"),
            (adaptive_avg_pool2d(&x, (1, -1)), "output_size"),
            (conv(ConvOptions::new().stride(-1)), "stride"),
            (conv(ConvOptions::new().dilation(-1)), "dilation"),
            (conv(ConvOptions::new().padding((0, -1))), "padding"),
            (unfold(&x, 1, FoldOptions::new().padding(-1)), "padding"),
        ] {
            let error = result.expect_err(name);
            assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
            assert!(error.to_string().contains(name), "{error}");
        }
        let transposed = |options| conv_transpose2d(&x, &weight, None, options);
        for (options, name) in [
            (ConvTransposeOptions::new().padding(-1), "padding"),
            (ConvTransposeOptions::new().output_padding(-1), "output_padding"),
        ] {
            let error = transposed(options).expect_err(name).to_string();
            assert!(error.contains("must not be negative"), "{error}");
        }
        Ok(())
    })
}

#[test]
fn dimension_arguments_take_four_integer_types() -> Result<()> {
    everywhere(|at| {
        let x = ones([2, 4], at)?;
        normalize(&x, NormalizeOptions::new().dim(1usize))?;
        normalize(&x, NormalizeOptions::new().dim(-1i64))?;
        cosine_similarity(&x, &x, CosineSimilarityOptions::new().dim(1i32))?;
        assert_eq!(glu(&x, 1usize)?.size(), glu(&x, GLUOptions::new().dim(-1i64))?.size());
        assert_eq!(pad(&x, (1usize, -1i64), ())?.size(), [2, 4]);
        assert_eq!(x.tensor_split_at((1usize, 3i64), 1)?.len(), 3);
        let (index, weight) = (tensor(1i64, at)?, ones([3, 2], at)?);
        embedding(&index, &weight, EmbeddingOptions::new().padding_idx(-1i64))?;
        embedding(&index, &weight, EmbeddingOptions::new().padding_idx(2usize))?;
        Ok(())
    })
}

#[test]
fn optional_tensors_have_one_form() -> Result<()> {
    everywhere(|at| {
        let (i, w) = (tensor([0i64, 2], at)?, ones([2], at)?);
        let some = Some(w.clone());
        for counts in [
            i.bincount(BincountOptions::new().weights(&w))?,
            i.bincount(BincountOptions::new().weights(Some(&w)))?,
            i.bincount(BincountOptions::new().weights(&some))?,
            i.bincount(BincountOptions::new().weights(some.as_ref()))?,
            i.bincount(())?,
        ] {
            assert_eq!(counts.to(DType::I64)?.to_vec::<i64>()?, [1, 0, 1]);
        }
        let leaf = ones([2], at)?.requires_grad_(true)?;
        leaf.set_grad(&w)?;
        assert!(leaf.grad().is_some());
        leaf.set_grad(None)?;
        assert!(leaf.grad().is_none());
        leaf.set_grad(&some)?;
        assert!(leaf.grad().is_some());
        Ok(())
    })
}

#[test]
fn a_closure_without_gradients_needs_no_annotation() -> Result<()> {
    let weight = ones([2], ())?.requires_grad_(true)?;
    no_grad(|| {
        weight.mul_(2)?;
        weight.add_(1)?;
        Ok(())
    })?;
    assert_eq!(weight.to_vec::<f32>()?, [3.0; 2]);
    Ok(())
}

#[test]
fn a_stream_takes_a_device_and_a_priority() -> Result<()> {
    with_runtime(&simulated(2)?, || {
        let stream = cuda::Stream::new(cuda::StreamOptions::new().device("cuda:1").priority(-1))?;
        assert_eq!((stream.device_index(), stream.priority()?), (1, -1));
        let wrong = cuda::StreamOptions::new().device("no device");
        assert!(cuda::Stream::new(wrong).unwrap_err().to_string().contains("no device"));
        Ok(())
    })
}
