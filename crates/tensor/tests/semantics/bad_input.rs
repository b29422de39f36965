//! Tests that bad input gives a typed error, changes no tensor, and keeps the memory counters
//! exact.

use warpline::{
    DType, ErrorKind, Result, Tensor, TensorOptions, arange, arange_start_step, cuda, empty,
    functional, linspace, meshgrid, ones, randint, tensor, zeros,
};

use crate::common::World;

rows! {
    worlds(1) bad_devices_are_refused gpu_bad_devices => devices;
    worlds(1) bad_sizes_are_refused gpu_bad_sizes => sizes;
    worlds(1) bad_shapes_are_refused gpu_bad_shapes => shapes;
    worlds(1) bad_numbers_are_refused gpu_bad_numbers => numbers;
    worlds(1) bad_dtypes_are_refused gpu_bad_dtypes => dtypes;
}

macro_rules! fails {
    ($result:expr, $op:literal: $kind:pat) => {{
        let error = $result.map(|_| ()).expect_err(stringify!($result));
        assert!(matches!((error.op(), error.kind()), ($op, $kind)), "{error}");
    }};
    ($result:expr, $kind:pat) => {{
        let error = $result.map(|_| ()).expect_err(stringify!($result));
        assert!(matches!(error.kind(), $kind), "{error}");
    }};
}

fn devices(world: &World) -> Result<()> {
    for name in ["cudaa", "cuda:-1", "gpu", "cuda:x"] {
        fails!(ones([1], name), ErrorKind::InvalidDeviceString { .. });
        fails!(ones([1], ())?.to(name), ErrorKind::InvalidDeviceString { .. });
        fails!(ones([1], TensorOptions::new().device(name)), ErrorKind::InvalidDeviceString { .. });
    }
    fails!(ones([1], world.devices), ErrorKind::NoSuchDevice { .. });
    fails!(ones([1], ())?.to("cuda:99"), ErrorKind::NoSuchDevice { index: 99, .. });
    fails!(cuda::memory_allocated("cpu"), ErrorKind::InvalidArgument { .. });
    Ok(())
}

fn sizes(world: &World) -> Result<()> {
    for at in world.places() {
        let kept = ones([100], at)?;
        let before = cuda::memory_allocated(())?;
        fails!(empty([usize::MAX, 2], at), ErrorKind::SizeOverflow { .. });
        fails!(empty([1 << 62], (DType::F64, at)), ErrorKind::SizeOverflow { .. });
        fails!(empty([isize::MAX as usize], at), ErrorKind::SizeOverflow { .. });
        // The tensor has more than 10¹⁸ bytes, more than any device has.
        assert!(empty([1 << 59], at).is_err());
        if at.is_cuda() {
            let error = empty([1 << 45], at).expect_err("128 TiB");
            assert!(matches!(error.kind(), ErrorKind::Alloc), "{error}");
            assert!(error.to_string().contains("memory"), "{error}");
        }
        assert_eq!(cuda::memory_allocated(())?, before);
        assert_eq!((&kept + 1.0)?.sum(())?.item::<f32>()?, 200.0);
    }
    Ok(())
}

fn shapes(world: &World) -> Result<()> {
    for at in world.places() {
        let a = ones([2, 3], at)?;
        fails!(&a + &ones([2], at)?, ErrorKind::BroadcastMismatch { a: 3, b: 2, dim: 1, .. });
        fails!(a.matmul(&a), ErrorKind::ShapeMismatch { .. });
        let text = a.matmul(&a).expect_err("2x3 and 2x3").to_string();
        assert!(text.contains("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"), "{text}");
        fails!(a.reshape([4]), ErrorKind::InvalidReshape { .. });
        fails!(a.reshape([-1, -1]), ErrorKind::InvalidArgument { .. });
        fails!(a.reshape([-2]), ErrorKind::InvalidReshape { .. });
        fails!(zeros([0], at)?.reshape([0, -1]), ErrorKind::InvalidReshape { .. });
        fails!(a.t()?.view([6]), ErrorKind::ViewNeedsCopy { .. });
        fails!(a.select(0, 2), ErrorKind::IndexOutOfRange { .. });
        fails!(a.select(0, -3), ErrorKind::IndexOutOfRange { .. });
        fails!(a.i((0, 3)), ErrorKind::IndexOutOfRange { .. });
        fails!(a.i((0, 0, 0)), ErrorKind::InvalidArgument { .. });
        fails!(a.narrow(1, 2, 2), ErrorKind::IndexOutOfRange { .. });
        fails!(a.narrow(1, 4, 0), ErrorKind::IndexOutOfRange { .. });
        fails!(a.transpose(0, 2), ErrorKind::DimOutOfRange { .. });
        fails!(a.permute([0, 0]), ErrorKind::InvalidArgument { .. });
        fails!(a.permute([0]), ErrorKind::InvalidArgument { .. });
        fails!(a.expand([2, 4]), ErrorKind::ExpandMismatch { .. });
        fails!(a.expand([3]), ErrorKind::ExpandMismatch { .. });
        fails!(a.expand([-1, 2, 3]), ErrorKind::InvalidArgument { .. });
        fails!(a.sum(2), ErrorKind::DimOutOfRange { .. });
        fails!(a.sum([0, -2]), ErrorKind::InvalidArgument { .. });
        fails!(a.softmax(5), ErrorKind::DimOutOfRange { .. });
        fails!(a.index_select(5, &a), ErrorKind::DimOutOfRange { .. });
        let row = a.select(0, 0)?;
        fails!(a.index_select(0, &row), "index_select": ErrorKind::DTypeMismatch { .. });
        fails!(a.gather(0, &a), "gather": ErrorKind::DTypeMismatch { .. });
        fails!(warpline::embedding(&a, &a), "embedding": ErrorKind::DTypeMismatch { .. });
        let zero = zeros([2], (DType::I64, at))?;
        fails!(a.index_select(0, &zero.unsqueeze(0)?), ErrorKind::ShapeMismatch { .. });
        fails!(a.gather(0, &zero), ErrorKind::ShapeMismatch { .. });
        fails!(warpline::embedding(&zero, &zero), "embedding": ErrorKind::ShapeMismatch { .. });
        fails!(a.split(0, 0), ErrorKind::InvalidArgument { .. });
        fails!(a.chunk(0, 0), ErrorKind::InvalidArgument { .. });
        fails!(a.flatten((1, 0)), ErrorKind::InvalidArgument { .. });
        fails!(a.item::<f32>(), ErrorKind::NotAScalar { numel: 6, .. });
        fails!(warpline::cat::<Tensor>(&[], 0), ErrorKind::InvalidArgument { .. });
        fails!(warpline::stack::<Tensor>(&[], 0), ErrorKind::InvalidArgument { .. });
        fails!(warpline::cat(&[&a, &ones([2, 2], at)?], 0), ErrorKind::ShapeMismatch { .. });
        fails!(warpline::stack(&[&a, &ones([2, 2], at)?], 0), ErrorKind::ShapeMismatch { .. });
        let scalar = ones([], at)?;
        fails!(scalar.select(0, 0), ErrorKind::ShapeMismatch { .. });
        fails!(scalar.matmul(&scalar), ErrorKind::ShapeMismatch { .. });
        fails!(ones([1, 3], at)?.add_(&a), ErrorKind::ShapeMismatch { .. });
        fails!(zeros([0], at)?.amax(()), ErrorKind::InvalidArgument { .. });
    }
    fails!(tensor(vec![vec![1f32], vec![1.0, 2.0]], ()), ErrorKind::ShapeMismatch { .. });
    Ok(())
}

fn numbers(world: &World) -> Result<()> {
    for at in world.places() {
        fails!(arange(f64::INFINITY, at), ErrorKind::InvalidArgument { .. });
        fails!(arange(f64::NAN, at), ErrorKind::InvalidArgument { .. });
        fails!(arange(-1, at), ErrorKind::InvalidArgument { .. });
        fails!(arange_start_step(0, 5, 0, at), ErrorKind::InvalidArgument { .. });
        fails!(arange_start_step(0, 5, -1, at), ErrorKind::InvalidArgument { .. });
        fails!(arange_start_step(0.0, 1.0, 1e-300, at), ErrorKind::InvalidArgument { .. });
        assert!(arange_start_step(i64::MIN, i64::MAX, 1, at).is_err());
        fails!(linspace(0, f64::NAN, 3, at), ErrorKind::InvalidArgument { .. });
        fails!(randint(3, 3, [1], at), ErrorKind::InvalidArgument { .. });
        let bytes = ones([2], (DType::U8, at))?;
        fails!(bytes.lt(300), ErrorKind::InvalidArgument { .. });
        fails!(cuda::set_per_process_memory_fraction(1.5, ()), ErrorKind::InvalidArgument { .. });
        fails!(
            cuda::set_per_process_memory_fraction(f64::NAN, ()),
            ErrorKind::InvalidArgument { .. }
        );
        // Division by zero gives infinity, not an error.
        assert_eq!((ones([1], at)? / 0)?.item::<f32>()?, f32::INFINITY);
    }
    Ok(())
}

fn dtypes(world: &World) -> Result<()> {
    for at in world.places() {
        let (ints, bools) = (ones([2], (DType::I64, at))?, ones([2], (DType::Bool, at))?);
        fails!(ints.to_vec::<f32>(), ErrorKind::DTypeMismatch { .. });
        fails!(ints.mean(()), ErrorKind::UnsupportedDType { .. });
        fails!(ints.add_(0.5), ErrorKind::CannotCast { .. });
        fails!(ints.div_(2), ErrorKind::CannotCast { .. });
        fails!(bools.sub(&bools), ErrorKind::UnsupportedDType { .. });
        fails!(&ints - true, ErrorKind::UnsupportedDType { .. });
        fails!(-&bools, ErrorKind::UnsupportedDType { .. });
        fails!(ints.matmul(&ones([2], at)?), ErrorKind::OperandDTypes { .. });
        let floats = ones([2, 2], at)?;
        fails!(functional::linear(&ints, &floats, None), "linear": ErrorKind::OperandDTypes { .. });
        fails!(meshgrid(&[&ints, &floats], ()), "meshgrid": ErrorKind::OperandDTypes { .. });
        fails!(functional::one_hot(&floats, ()), "one_hot": ErrorKind::DTypeMismatch { .. });
        fails!(floats.masked_fill(&ints, 0), "masked_fill": ErrorKind::DTypeMismatch { .. });
        fails!(floats.masked_select(&ints), "masked_select": ErrorKind::DTypeMismatch { .. });
        fails!(floats.index_add(0, &bools, &floats), "index_add": ErrorKind::DTypeMismatch { .. });
        fails!(functional::cross_entropy(&floats, &bools, ()), "cross_entropy": ErrorKind::DTypeMismatch { .. });
        assert_eq!(ints.to_vec::<i64>()?, [1, 1], "untouched");
        assert_eq!(ones([2], at)?.add_(&ints)?.to_vec::<f32>()?, [2.0; 2]);
    }
    Ok(())
}
