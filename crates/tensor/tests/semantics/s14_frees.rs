//! Tests of row S14: frees never synchronize the device, and `record_stream` defers the reuse of
//! memory that another stream uses.

use warpline::{DType, Result, SyncPolicy, Tensor, cuda, empty, full, ones};
use warpline_cuda_sys_safe::sim::{CallKind, Schedule};

use crate::boxes::SimBox;
use crate::common::World;

crate::rows! {
    manual(1) s14_recorded_streams_finish_with_the_memory gpu_s14_recorded_streams_finish_with_the_memory
        => recorded;
    schedules(1) s14_by_default_nothing_need_be_recorded gpu_s14_by_default_nothing_need_be_recorded
        => automatic;
}

/// Number of `float32` elements in 4 MiB. A segment holds several blocks of this size.
const COUNT: usize = 1 << 20;

#[test]
fn s14_frees_do_not_wait() {
    for devices in 1..=3 {
        let world = SimBox::lazy(devices);
        world.enter(|| {
            let s = cuda::Stream::new(0)?;
            let tensors = (0..20)
                .map(|i| ones([1 + i * 100_000], i % devices))
                .collect::<Result<Vec<_>>>()?;
            let sums = cuda::with_stream(&s, || {
                tensors.iter().map(|t| t.sum(())).collect::<Result<Vec<_>>>()
            })?;
            let (waits, pending) = (world.host_waits(), world.sim.pending());
            assert!(pending > 0);
            let calls = || {
                [
                    CallKind::MemFree,
                    CallKind::Synchronize,
                    CallKind::StreamSynchronize,
                    CallKind::EventSynchronize,
                ]
                .map(|call| world.count(call))
            };
            let before = calls();
            drop((tensors, sums));
            assert_eq!(calls(), before);
            assert_eq!(world.host_waits(), waits, "a free made the host wait");
            assert!(world.sim.pending() >= pending, "a free ran work");
            Ok(())
        });
    }
}

/// Keeps the current stream busy, then sums the elements of `a`.
fn slow_sum(world_is_real: bool, a: &Tensor) -> Result<(Tensor, Tensor)> {
    let size = if world_is_real { 2048 } else { 4 };
    let m = full([size, size], 0.5 / size as f64, (DType::F32, a.device()))?;
    let mut product = m.copy()?;
    for _ in 0..20 {
        product = m.matmul(&product)?;
    }
    Ok((a.sum(())?, product))
}

/// Tests that the memory of a tensor that another stream reads is not reused before the read.
fn freed_early(world: &World, record: bool) -> Result<()> {
    for device in 0..world.devices {
        let s = cuda::Stream::new(device)?;
        let a = ones([COUNT], device)?;
        s.wait_stream(&cuda::current_stream(device)?)?;
        let (sum, product) = cuda::with_stream(&s, || slow_sum(world.real, &a))?;
        if record {
            a.record_stream(&s)?;
        }
        drop(a);
        // If the memory were reused at once, this fill would overwrite it before the read.
        let b = full([COUNT], 7.0, device)?;
        assert_eq!(b.sum(())?.item::<f32>()?, 7.0 * COUNT as f32);
        assert_eq!(cuda::with_stream(&s, || sum.item::<f32>())?, COUNT as f32);
        assert!(world.runtime.take_races().is_empty());
        cuda::synchronize(device)?;
        drop(product);
    }
    Ok(())
}

fn recorded(world: &World) -> Result<()> {
    freed_early(world, true)
}

fn automatic(world: &World) -> Result<()> {
    freed_early(world, false)
}

/// PyTorch's test `record_stream`. Returns whether the next tensor of the same size has the freed
/// address, first while the other stream is busy, then afterwards.
fn addresses(policy: SyncPolicy, record: bool) -> (bool, bool) {
    let world = SimBox::with(1, Schedule::Lazy, policy);
    let mut same = (false, false);
    world.enter(|| {
        let s = cuda::Stream::new(0)?;
        let a = ones([COUNT], 0)?;
        let address = a.data_ptr();
        s.wait_stream(&cuda::current_stream(0)?)?;
        let (sum, product) = cuda::with_stream(&s, || slow_sum(false, &a))?;
        if record {
            a.record_stream(&s)?;
        }
        drop(a);
        let early = empty([COUNT], 0)?;
        same.0 = early.data_ptr() == address;
        s.synchronize()?;
        let late = empty([COUNT], 0)?;
        same.1 = late.data_ptr() == address;
        drop((sum, product));
        Ok(())
    });
    same
}

#[test]
fn s14_record_stream_defers_reuse() {
    assert_eq!(addresses(SyncPolicy::Manual, true), (false, true));
    assert_eq!(addresses(SyncPolicy::Auto, false), (false, true));
    // PyTorch's rule: memory without a record is reused at once.
    assert_eq!(addresses(SyncPolicy::Manual, false), (true, false));
}

/// PyTorch's test `record_stream_on_shifted_view`.
#[test]
fn s14_a_view_records_for_its_memory() {
    let world = SimBox::with(1, Schedule::Lazy, SyncPolicy::Manual);
    world.enter(|| {
        let s = cuda::Stream::new(0)?;
        let a = ones([COUNT], 0)?;
        let address = a.data_ptr();
        let view = a.narrow(0, 1000, 10)?;
        drop(a);
        s.wait_stream(&cuda::current_stream(0)?)?;
        let (sum, product) = cuda::with_stream(&s, || slow_sum(false, &view))?;
        view.record_stream(&s)?;
        drop(view);
        assert_ne!(empty([COUNT], 0)?.data_ptr(), address);
        s.synchronize()?;
        drop((sum, product));
        Ok(())
    });
}

/// Freed memory is reused at once on its own stream, without a wait.
#[test]
fn s14_memory_is_reused_at_once_on_its_own_stream() {
    let world = SimBox::lazy(1);
    world.enter(|| {
        let a = ones([COUNT], 0)?;
        let (address, sum) = (a.data_ptr(), a.sum(())?);
        drop(a);
        let b = full([COUNT], 2.0, 0)?;
        assert_eq!(b.data_ptr(), address);
        assert_eq!(sum.item::<f32>()?, COUNT as f32);
        assert_eq!(b.sum(())?.item::<f32>()?, 2.0 * COUNT as f32);
        Ok(())
    });
}
