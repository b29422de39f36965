//! Tests of row S10, copies in flight: host memory that a device still writes or reads is neither
//! visible half written nor reused.

use warpline::{
    DType, ErrorKind, Pending, Result, SyncPolicy, Tensor, arange, cuda, full, ones, zeros,
};
use warpline_cuda_sys_safe::CudaCode;
use warpline_cuda_sys_safe::sim::{CallKind, Fault};

use crate::boxes::{SimBox, schedules};
use crate::common::World;

const N: usize = 1000;

crate::rows! {
    schedules(1) s10_pending_values_arrive gpu_s10_pending_values_arrive => arrive;
    schedules(1) s10_pending_values_may_be_dropped gpu_s10_pending_values_may_be_dropped => dropped;
    schedules(1) s10_pending_values_move_between_threads gpu_s10_pending_values_move_between_threads => moved;
    schedules(1) s10_a_dropped_pinned_source_is_kept gpu_s10_a_dropped_pinned_source_is_kept => source;
    worlds(1) s10_values_on_the_host_are_ready gpu_s10_values_on_the_host_are_ready => ready;
}

/// Queries until the value is there, like a program that does other work meanwhile.
fn poll<T>(pending: Pending<T>) -> Result<T> {
    while !pending.query()? {
        std::thread::yield_now();
    }
    pending.wait()
}

fn arrive(world: &World) -> Result<()> {
    let expected: Vec<i64> = (0..N as i64).collect();
    for device in 0..world.devices {
        let s = cuda::Stream::new(device)?;
        for by_query in [false, true] {
            let t = arange(N as i64, device)?;
            let vec = cuda::with_stream(&s, || t.to_vec_async::<i64>())?;
            let host = t.cpu_async()?;
            // The source is neither contiguous nor at the start of its memory.
            let part = t.reshape([10, 100])?.t()?.narrow(0, 3, 2)?.to_vec_async::<i64>()?;
            t.fill_(-1)?; // after all three copies
            let host = if by_query { poll(host)? } else { host.wait()? };
            assert!(host.is_pinned() && host.device().is_cpu());
            assert_eq!(host.to_vec::<i64>()?, expected);
            assert_eq!(if by_query { poll(vec)? } else { vec.wait()? }, expected);
            let part = if by_query { poll(part)? } else { part.wait()? };
            let columns = (0..20).map(|i| 3 + i / 10 + i % 10 * 100);
            assert_eq!(part, columns.collect::<Vec<i64>>());
        }
        let empty = zeros([0, 3], device)?.to_vec_async::<f32>()?;
        assert!(empty.wait()?.is_empty());
        let wrong = ones([2], device)?.to_vec_async::<f64>().expect_err("f32");
        assert!(
            matches!((wrong.op(), wrong.kind()), ("to_vec_async", ErrorKind::DTypeMismatch { .. })),
            "{wrong}"
        );
    }
    Ok(())
}

/// Tests that the next owner of the memory reads its own values, even if the copy was not complete
/// at the drop.
fn dropped(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let t = full([N], 7.0, (DType::F32, device))?;
        let other = cuda::Stream::new(device)?;
        for on_other in [false, true] {
            let stream = if on_other { other.clone() } else { cuda::default_stream(device)? };
            for _ in 0..3 {
                drop(cuda::with_stream(&stream, || t.to_vec_async::<f32>())?);
                let next = zeros([N], ())?.pin_memory()?;
                next.fill_(1.0)?;
                cuda::synchronize(device)?;
                assert_eq!(next.to_vec::<f32>()?, [1.0; N]);
            }
        }
    }
    Ok(())
}

fn moved(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let t = arange(N as i64, device)?;
        let pending = t.to_vec_async::<i64>()?;
        drop(t);
        let thread = std::thread::spawn(move || pending.wait());
        let got = thread.join().expect("no panic")?;
        assert_eq!(got, (0..N as i64).collect::<Vec<_>>());
    }
    Ok(())
}

/// Tests that the source of a copy stays allocated until the device has read it.
fn source(world: &World) -> Result<()> {
    let s = cuda::Stream::new(0)?;
    for device in 0..world.devices {
        let mut copies: Vec<(f32, Tensor)> = Vec::new();
        for step in 0..4 {
            let value = step as f32;
            let pinned = full([N], f64::from(value), ())?.pin_memory()?;
            copies.push((value, pinned.to_non_blocking(device)?));
            // A second copy reads the source on another stream or device.
            copies.push((value, cuda::with_stream(&s, || pinned.to_non_blocking(0))?));
            drop(pinned);
            let next = zeros([N], ())?.pin_memory()?;
            next.fill_(-1.0)?;
        }
        for (value, copy) in copies {
            assert_eq!(copy.to_vec::<f32>()?, [value; N]);
        }
    }
    Ok(())
}

fn ready(_: &World) -> Result<()> {
    let t = arange(4, ())?;
    let (vec, host) = (t.to_vec_async::<i64>()?, t.cpu_async()?);
    assert!(vec.query()? && host.query()?);
    t.fill_(9)?;
    assert_eq!(vec.wait()?, [0, 1, 2, 3], "the elements of when it was asked for");
    assert_eq!(host.wait()?.data_ptr(), t.data_ptr(), "no copy where there need not be one");
    Ok(())
}

/// The page-locked block is not in the cache while the device uses it, and returns to the cache
/// afterwards.
#[test]
fn s10_the_block_is_out_of_the_cache_until_done() {
    let lazy = SimBox::lazy(1);
    lazy.enter(|| {
        let pin = || zeros([N], ())?.pin_memory();
        let device = zeros([N], 0)?;
        let pinned = pin()?;
        let address = pinned.data_ptr();
        device.copy_(&pinned, true)?;
        drop(pinned);
        let other = pin()?;
        assert_ne!(other.data_ptr(), address, "the device has not read it yet");
        cuda::synchronize(0)?;
        assert_eq!(pin()?.data_ptr(), address, "nobody uses it any more");
        drop(other);
        // The same holds for the host memory that a copy from the device writes.
        let pending = device.cpu_async()?;
        let before = lazy.sim.usage().host_allocations;
        drop(pending);
        let (a, b) = (pin()?, pin()?);
        a.fill_(3.0)?;
        b.fill_(4.0)?;
        device.fill_(5.0)?;
        cuda::synchronize(0)?;
        assert_eq!((a.to_vec::<f32>()?, b.to_vec::<f32>()?), (vec![3.0; N], vec![4.0; N]));
        assert!(lazy.sim.usage().host_allocations >= before);
        Ok(())
    });
}

/// Neither the creation nor a query of a pending value makes the host wait. `wait` waits once. After a
/// query that returned `true`, it waits at most for a complete event.
#[test]
fn s10_a_pending_value_waits_only_when_asked() {
    for schedule in schedules() {
        let world = SimBox::with(1, schedule, SyncPolicy::Auto);
        world.enter(|| {
            let t = ones([N], 0)?;
            cuda::synchronize(0)?;
            let waits = world.host_waits();
            let asked = t.to_vec_async::<f32>()?;
            let unasked = t.to_vec_async::<f32>()?;
            drop(unasked);
            while !asked.query()? {}
            assert_eq!(asked.wait()?, [1.0; N]);
            let syncs = world.count(CallKind::StreamSynchronize);
            assert_eq!(world.count(CallKind::Synchronize), 1);
            let waited = t.to_vec_async::<f32>()?;
            let before = world.host_waits();
            assert!(before <= waits + 1, "at most the finished event is looked at again");
            assert_eq!(waited.wait()?, [1.0; N]);
            assert_eq!(world.host_waits(), before + 1);
            assert_eq!(world.count(CallKind::StreamSynchronize), syncs);
            Ok(())
        });
    }
}

/// A wait covers the copy, but no later work of its stream.
#[test]
fn s10_later_work_is_not_waited_for() {
    let lazy = SimBox::lazy(1);
    lazy.enter(|| {
        let t = ones([N], 0)?;
        let pending = t.to_vec_async::<f32>()?;
        let later = zeros([N], 0)?;
        for _ in 0..10 {
            later.add_(1.0)?;
        }
        assert_eq!(pending.wait()?, [1.0; N]);
        assert!(lazy.sim.pending() >= 10, "only {} are pending", lazy.sim.pending());
        assert_eq!(later.to_vec::<f32>()?, [10.0; N]);
        Ok(())
    });
}

/// If the copy fails, the value reports the error, and its memory can be dropped safely.
#[test]
fn s10_a_failed_copy_gives_no_value() {
    for schedule in schedules() {
        let world = SimBox::with(1, schedule, SyncPolicy::Auto);
        world.enter(|| {
            let t = ones([N], 0)?;
            cuda::synchronize(0)?;
            let illegal = Fault::new(CallKind::MemcpyAsync, CudaCode::ILLEGAL_ADDRESS);
            world.sim.inject(illegal.at_run());
            // The schedule may run the copy as soon as it is enqueued.
            let (Ok(waited), Ok(dropped)) = (t.to_vec_async::<f32>(), t.cpu_async()) else {
                return Ok(());
            };
            let error = waited.wait().expect_err("the copy failed");
            assert!(error.to_string().contains("ILLEGAL_ADDRESS"), "{error}");
            assert!(dropped.query().is_err());
            drop(dropped);
            assert_eq!(ones([2], ())?.to_vec::<f32>()?, [1.0; 2], "the host goes on");
            Ok(())
        });
    }
}
