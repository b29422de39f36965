//! Tests of rows S22–S24: dtypes, devices and values of new tensors.

use warpline::{
    DType, Device, Result, Tensor, TensorOptions, arange, arange_start_step, empty, eye, full,
    linspace, ones, rand, randint, randn, randperm, tensor, zeros,
};

use crate::common::World;

rows! {
    worlds(1) s22_new_keeps_dtype_and_device gpu_s22_new_keeps_dtype_and_device => new;
    worlds(1) s23_like_keeps_dtype_and_device gpu_s23_like_keeps_dtype_and_device => like;
    worlds(1) s24_factories_follow_their_arguments gpu_s24_factories_follow_their_arguments => arguments;
    worlds(1) s24_factories_give_pytorchs_values gpu_s24_factories_give_pytorchs_values => values;
}

fn kind(t: &Tensor) -> (DType, Device) {
    (t.dtype(), t.device())
}

fn new(world: &World) -> Result<()> {
    for at in world.places() {
        for dtype in DType::ALL {
            let x = zeros([1], (dtype, at))?;
            let made = [
                x.new_empty([2, 3], ())?,
                x.new_full([2, 3], 1, ())?,
                x.new_zeros([2, 3], ())?,
                x.new_ones([2, 3], ())?,
                x.new_tensor([[0, 1, 1], [1, 0, 1]], ())?,
            ];
            for t in &made {
                assert_eq!((kind(t), t.size()), ((dtype, at), &[2, 3][..]));
            }
            assert_eq!(made[1].to(DType::I64)?.to_vec::<i64>()?, [1; 6]);
            assert_eq!(made[2].to(DType::I64)?.to_vec::<i64>()?, [0; 6]);
            assert_eq!(made[3].to(DType::I64)?.to_vec::<i64>()?, [1; 6]);
            assert_eq!(made[4].to(DType::I64)?.to_vec::<i64>()?, [0, 1, 1, 1, 0, 1]);
        }
        // An explicit dtype or device takes precedence.
        let x = zeros([1], (DType::F64, at))?;
        assert_eq!(kind(&x.new_ones([1], DType::I8)?), (DType::I8, at));
        assert_eq!(kind(&x.new_tensor([1.0], "cpu")?), (DType::F64, Device::Cpu));
    }
    Ok(())
}

fn like(world: &World) -> Result<()> {
    for at in world.places() {
        let x = zeros([2, 3], (DType::F16, at))?;
        for t in [
            x.empty_like(())?,
            x.zeros_like(())?,
            x.ones_like(())?,
            x.full_like(2.5, ())?,
            x.rand_like(())?,
            x.randn_like(())?,
        ] {
            assert_eq!((kind(&t), t.size()), ((DType::F16, at), &[2, 3][..]));
        }
        assert_eq!(x.ones_like(())?.sum(())?.item::<f32>()?, 6.0);
        assert_eq!(x.full_like(2.5, ())?.sum(())?.item::<f32>()?, 15.0);
        assert_eq!(kind(&x.ones_like((DType::I64, "cpu"))?), (DType::I64, Device::Cpu));
    }
    Ok(())
}

fn arguments(world: &World) -> Result<()> {
    type Make = fn(TensorOptions) -> Result<Tensor>;
    let factories: [(&str, DType, Make); 12] = [
        ("empty", DType::F32, |o| empty([2], o)),
        ("zeros", DType::F32, |o| zeros([2], o)),
        ("ones", DType::F32, |o| ones([2], o)),
        ("full", DType::I64, |o| full([2], 1, o)),
        ("tensor", DType::F32, |o| tensor([1f32, 2.0], o)),
        ("arange", DType::I64, |o| arange(2, o)),
        ("linspace", DType::F32, |o| linspace(0, 1, 2, o)),
        ("eye", DType::F32, |o| eye(2, o)),
        ("rand", DType::F32, |o| rand([2], o)),
        ("randn", DType::F32, |o| randn([2], o)),
        ("randint", DType::I64, |o| randint(0, 5, [2], o)),
        ("randperm", DType::I64, |o| randperm(2, o)),
    ];
    for (name, default, make) in factories {
        assert_eq!(kind(&make(TensorOptions::new())?), (default, Device::Cpu), "{name}");
        for at in world.places() {
            let t = make(TensorOptions::new().device(at).dtype(DType::F64))?;
            assert_eq!(kind(&t), (DType::F64, at), "{name}");
        }
        for i in 0..world.devices {
            let _guard = warpline::cuda::device(i)?;
            assert_eq!(make("cuda".into())?.device(), Device::cuda(i), "{name}");
            let pinned = make(TensorOptions::new().pin_memory(true))?;
            assert!(pinned.is_pinned() && pinned.device().is_cpu(), "{name}");
        }
    }
    Ok(())
}

fn values(world: &World) -> Result<()> {
    for at in world.places() {
        assert_eq!(arange(5, at)?.to_vec::<i64>()?, [0, 1, 2, 3, 4]);
        assert_eq!(arange(2.5, at)?.to_vec::<f32>()?, [0.0, 1.0, 2.0]);
        assert_eq!(arange_start_step(7, 0, -3, at)?.to_vec::<i64>()?, [7, 4, 1]);
        assert_eq!(arange_start_step(1, 1, 1, at)?.numel(), 0);
        assert_eq!(linspace(0, 1, 5, at)?.to_vec::<f32>()?, [0.0, 0.25, 0.5, 0.75, 1.0]);
        assert_eq!(eye((2, 3), at)?.to_vec::<f32>()?, [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
        assert_eq!(full([2], true, at)?.to_vec::<bool>()?, [true; 2]);
        assert_eq!(zeros([], at)?.item::<f32>()?, 0.0);
        let nested = tensor(vec![vec![1i32, 2], vec![3, 4]], at)?;
        assert_eq!(nested.t()?.to_vec::<i32>()?, [1, 3, 2, 4]);
        let mut order = randperm(100, at)?.to_vec::<i64>()?;
        assert_ne!(order, (0..100).collect::<Vec<i64>>());
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<i64>>());
    }
    Ok(())
}
