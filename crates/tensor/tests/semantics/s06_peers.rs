//! Tests of row S6: ops that read the memory of a peer device, with peer access enabled.

use warpline::cuda::AllocatorConfig;
use warpline::{
    DType, Device, Error, ErrorKind, Result, ResultExt, RuntimeConfig, SyncPolicy, Tensor, arange,
    cat, cuda, full, zeros,
};
use warpline_cuda_sys_safe::sim::{Schedule, SimConfig};

use crate::boxes::{SimBox, schedules};
use crate::common;

/// Allocator policies: mapped pages, segments, expandable segments, and the driver's stream-ordered pool.
const POLICIES: [&str; 4] = [
    "policy:default",
    "policy:torch",
    "policy:torch,expandable_segments:True",
    "backend:cudaMallocAsync",
];

macro_rules! rows {
    ($($sim:ident $gpu:ident => $body:expr;)*) => {$(
        #[test]
        fn $sim() {
            everywhere(SyncPolicy::Auto, $body);
        }

        #[test]
        #[ignore = "needs two GPUs"]
        fn $gpu() {
            common::gpu(2, SyncPolicy::Auto, |world| $body(world.devices));
        }
    )*};
}

rows! {
    s06_ops_read_a_peer gpu2_s06_ops_read_a_peer => every_op;
    s06_peer_reads_are_in_order gpu2_s06_peer_reads_are_in_order => in_order;
    s06_freed_peers_are_not_reused_early gpu2_s06_freed_peers_are_not_reused_early => freed;
    s06_random_programs_agree_with_one_by_one gpu2_s06_random_programs_agree_with_one_by_one => random_programs;
}

fn everywhere(sync_policy: SyncPolicy, body: impl Fn(usize) -> Result<()>) {
    for policy in POLICIES {
        let allocator = AllocatorConfig::parse(policy).expect("options");
        let config = RuntimeConfig { sync_policy, allocator, ..RuntimeConfig::default() };
        for devices in [2, 3] {
            for schedule in schedules() {
                let sim = SimConfig { schedule, check_footprints: true, ..SimConfig::new(devices) };
                let world = SimBox::new(sim, &config);
                world.enter(|| body(devices));
                assert_eq!(world.sim.violations(), [], "{policy}, {schedule:?}");
            }
        }
    }
}

fn every_op(devices: usize) -> Result<()> {
    // `x` and `y` were allocated before peer access was enabled, the other operands after.
    let x = arange(6, (DType::F32, Device::cuda(0)))?.reshape([2, 3])?;
    let y = full([2, 3], 10.0, 1)?;
    let refused = (&x + &y).err();
    assert_eq!(refused.as_ref().map(Error::op), Some("add"));
    let named = matches!(
        refused.as_ref().map(Error::kind),
        Some(ErrorKind::DeviceMismatch {
            first: Device::Cuda(Some(0)),
            second: Device::Cuda(Some(1)),
            ..
        })
    );
    assert!(named, "{refused:?}");
    cuda::enable_peer_access(0, 1)?;
    cuda::enable_peer_access("cuda:0", "cuda:1")?;
    let z = arange(3, 1)?;
    for current in 0..devices {
        let _current = cuda::device(current)?;
        let cases = [
            ((&x + &y)?, vec![10.0, 11.0, 12.0, 13.0, 14.0, 15.0]),
            // A broadcast operand with a different dtype.
            ((&x * &z)?, vec![0.0, 1.0, 4.0, 0.0, 4.0, 10.0]),
            (x.matmul(&y.t()?)?, vec![30.0, 30.0, 120.0, 120.0]),
            (
                x.expand([2, 2, 3])?.matmul(&y.t()?.expand([2, 3, 2])?)?.i_first()?,
                vec![30.0, 30.0, 120.0, 120.0],
            ),
            (
                cat(&[&x, &y], 1)?,
                vec![0.0, 1.0, 2.0, 10.0, 10.0, 10.0, 3.0, 4.0, 5.0, 10.0, 10.0, 10.0],
            ),
            (x.ge(&y)?.to(DType::F32)?, vec![0.0; 6]),
        ];
        for (result, expected) in cases {
            assert_eq!(result.device(), Device::cuda(0), "the first operand's device");
            assert_eq!(result.to_vec::<f32>()?, expected);
        }
        let into = zeros([2, 3], 0)?;
        into.add_(&y)?;
        into.sub_(&z)?;
        assert_eq!(into.to_vec::<f32>()?, [10.0, 9.0, 8.0, 10.0, 9.0, 8.0]);
        into.t()?.copy_(&arange(6, 1)?.reshape([3, 2])?, ())?;
        assert_eq!(into.to_vec::<f32>()?, [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
    }
    // Access was enabled in one direction, for one pair of devices.
    assert!(matches!((&y + &x).kind(), Some(ErrorKind::DeviceMismatch { .. })));
    if devices > 2 {
        assert!(matches!((&x + &ones_on(2)?).kind(), Some(ErrorKind::DeviceMismatch { .. })));
    }
    cuda::enable_peer_access(1, 0)?;
    assert_eq!((&y - &x)?.device(), Device::cuda(1));
    cuda::enable_peer_access(1, 1)?;
    assert!(
        cuda::enable_peer_access(0, devices).is_err()
            && cuda::enable_peer_access(0, "cpu").is_err()
    );
    Ok(())
}

fn ones_on(device: usize) -> Result<Tensor> {
    full([2, 3], 1.0, device)
}

trait First {
    fn i_first(&self) -> Result<Tensor>;
}

impl First for Tensor {
    /// Returns the first element along dimension 0.
    fn i_first(&self) -> Result<Tensor> {
        self.narrow(0, 0, 1)
    }
}

/// Tests that an op is ordered after earlier work of both devices, and that later work of the peer is
/// ordered after the op, whichever streams are current.
fn in_order(_devices: usize) -> Result<()> {
    cuda::enable_peer_access(0, 1)?;
    let (here, there) = (cuda::exclusive_stream(0, 0)?, cuda::exclusive_stream(1, 0)?);
    let x = full([1000], 1.0, 0)?;
    let y = full([1000], 0.0, 1)?;
    for step in 1..5 {
        let step = f64::from(step);
        cuda::with_stream(&there, || y.fill_(step).map(drop))?;
        let sum = cuda::with_stream(&here, || &x + &y)?;
        assert_eq!(sum.device(), Device::cuda(0));
        y.fill_(-1.0)?; // on the default stream of cuda:1, after the read
        cuda::with_stream(&there, || y.add_(-1.0).map(drop))?;
        assert_eq!(sum.to_vec::<f32>()?, vec![step as f32 + 1.0; 1000]);
        assert_eq!(y.to_vec::<f32>()?, vec![-2.0; 1000]);
    }
    Ok(())
}

/// Tests that memory that a stream of a peer reads is not reused before the read.
fn freed(_devices: usize) -> Result<()> {
    cuda::enable_peer_access(0, 1)?;
    let here = cuda::exclusive_stream(0, 0)?;
    let x = full([5000], 1.0, 0)?;
    let mut sums = Vec::new();
    for step in 0..8 {
        let y = full([5000], f64::from(step), 1)?;
        sums.push(cuda::with_stream(&here, || &x + &y)?);
        drop(y);
        let other = full([5000], -7.0, 1)?; // may receive the same block
        other.add_(1.0)?;
    }
    for (step, sum) in sums.iter().enumerate() {
        assert_eq!(sum.to_vec::<f32>()?, vec![step as f32 + 1.0; 5000], "step {step}");
    }
    Ok(())
}

/// Tests that random programs on several devices and streams give the same values as their ops one
/// after another.
fn random_programs(devices: usize) -> Result<()> {
    for a in 0..devices {
        for b in 0..devices {
            cuda::enable_peer_access(a, b)?;
        }
    }
    let streams =
        (0..2 * devices).map(|i| cuda::exclusive_stream(i / 2, 0)).collect::<Result<Vec<_>>>()?;
    for seed in 1..4u64 {
        let mut state = seed;
        let mut below = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % n
        };
        let mut model: Vec<i64> = (0..6).collect();
        let mut tensors = (0..6)
            .map(|i| full([300], i as i64, (DType::I64, Device::cuda(i % devices))))
            .collect::<Result<Vec<_>>>()?;
        for _ in 0..40 {
            let (i, j, what) = (below(6), below(6), below(4));
            let device = tensors[i].device().index().unwrap_or(0);
            let stream = &streams[2 * device + below(2)];
            cuda::with_stream(stream, || -> Result<()> {
                match what {
                    0 => {
                        tensors[i].add_(&tensors[j])?;
                        model[i] = model[i].wrapping_add(model[j]);
                    }
                    1 => {
                        // The assignment drops the old tensor.
                        tensors[i] = (&tensors[i] - &tensors[j])?;
                        model[i] = model[i].wrapping_sub(model[j]);
                    }
                    2 => {
                        tensors[i].copy_(&tensors[j], ())?;
                        model[i] = model[j];
                    }
                    _ => {
                        tensors[i].fill_(3)?;
                        model[i] = 3;
                    }
                }
                Ok(())
            })?;
        }
        for (tensor, expected) in tensors.iter().zip(model) {
            assert_eq!(tensor.to_vec::<i64>()?, vec![expected; 300], "program {seed}");
        }
    }
    Ok(())
}

/// A read of a peer's memory does not make the host wait.
#[test]
fn s06_a_peer_read_does_not_wait_on_the_host() {
    let world = SimBox::lazy(2);
    world.enter(|| {
        cuda::enable_peer_access(0, 1)?;
        let (x, y) = (full([100], 1.0, 0)?, full([100], 2.0, 1)?);
        let before = world.host_waits();
        let sum = (&x + &y)?;
        y.fill_(0.0)?;
        assert_eq!(world.host_waits(), before);
        assert_eq!(sum.to_vec::<f32>()?, [3.0; 100]);
        Ok(())
    });
}

/// The race detector also checks the order of a program across devices.
#[test]
fn s06_manual_order_is_the_programs() {
    let world = SimBox::with(2, Schedule::Lazy, SyncPolicy::Manual);
    world.enter(|| {
        cuda::enable_peer_access(0, 1)?;
        let (x, y) = (full([100], 1.0, 0)?, full([100], 2.0, 1)?);
        let _unordered = (&x + &y)?;
        assert_eq!(cuda::take_races().len(), 1);
        cuda::current_stream(0)?.wait_stream(&cuda::current_stream(1)?)?;
        let ordered = (&x + &y)?;
        assert!(cuda::take_races().is_empty());
        assert_eq!(ordered.to_vec::<f32>()?, [3.0; 100]);
        Ok(())
    });
}

#[test]
fn s06_without_a_link_it_is_refused() {
    let sim = SimConfig { unlinked_peers: vec![(0, 1)], ..SimConfig::new(3) };
    let world = SimBox::new(sim, &RuntimeConfig::default());
    world.enter(|| {
        assert!(!cuda::can_device_access_peer(0, 1)?);
        let error = cuda::enable_peer_access(0, 1).expect_err("no link").to_string();
        assert!(error.contains("CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"), "{error}");
        let (x, y) = (ones_on(0)?, ones_on(1)?);
        assert!(matches!((&x + &y).kind(), Some(ErrorKind::DeviceMismatch { .. })));
        cuda::enable_peer_access(0, 2)?;
        assert_eq!((&x + &ones_on(2)?)?.to_vec::<f32>()?, [2.0; 6]);
        Ok(())
    });
}
