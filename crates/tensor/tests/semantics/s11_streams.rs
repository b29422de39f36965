//! Tests of row S11: default, pool, exclusive and external streams, and stream guards. Each thread
//! has a current stream per device.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use warpline::{ErrorKind, Result, ResultExt as _, cuda, ones, with_runtime};
use warpline_cuda_sys_safe::{StreamFlags, owned};

use crate::common::World;

crate::rows! {
    schedules(1) s11_the_default_stream_is_current gpu_s11_the_default_stream_is_current => default;
    schedules(1) s11_pool_streams_alias_at_the_33rd gpu_s11_pool_streams_alias_at_the_33rd => pool;
    schedules(1) s11_exclusive_streams_are_not_shared gpu_s11_exclusive_streams_are_not_shared => exclusive;
    schedules(1) s11_external_streams gpu_s11_external_streams => external;
    schedules(1) s11_each_thread_has_its_own_current_streams gpu_s11_each_thread_has_its_own_current_streams => per_thread;
    schedules(2) s11_each_device_has_its_own_current_stream gpu2_s11_each_device_has_its_own_current_stream => per_device;
    schedules(1) s11_guards_restore gpu_s11_guards_restore => guards;
}

fn default(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let stream = cuda::default_stream(device)?;
        assert!(stream.is_default());
        assert_eq!(stream.raw().handle().raw(), 0);
        assert_eq!(cuda::current_stream(device)?, stream);
        assert_eq!(ones([3], device)?.to_vec::<f32>()?, [1.0; 3]);
    }
    Ok(())
}

fn pool(world: &World) -> Result<()> {
    for device in 0..world.devices {
        for priority in [0, -1] {
            let take =
                || cuda::Stream::new(cuda::StreamOptions::new().device(device).priority(priority));
            let first = (0..32).map(|_| take()).collect::<Result<Vec<_>>>()?;
            assert_eq!(first.iter().map(|s| s.id()).collect::<HashSet<_>>().len(), 32);
            assert_eq!(take()?, first[0], "the 33rd");
            assert_eq!(first[7].priority()?, priority);
        }
    }
    Ok(())
}

fn exclusive(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let pooled = (0..32).map(|_| cuda::Stream::new(device)).collect::<Result<Vec<_>>>()?;
        let mine = cuda::exclusive_stream(device, -1)?;
        assert!(!pooled.contains(&mine));
        assert_eq!(mine.priority()?, -1);
        let sum = cuda::with_stream(&mine, || ones([5], device)?.sum(()))?;
        assert!(mine.last_op() > 0, "nothing was enqueued there");
        assert_eq!(sum.item::<f32>()?, 5.0);
    }
    Ok(())
}

/// PyTorch's test `external_streams`.
fn external(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let flags = StreamFlags { non_blocking: true, priority: 0 };
        let driver = world.runtime.driver()?;
        let raw = owned::Stream::new(driver, device, flags).expect("a stream");
        let stream = cuda::external_stream(raw.clone())?;
        assert_eq!(stream.raw().handle(), raw.handle());
        let a = cuda::with_stream(&stream, || {
            assert_eq!(cuda::current_stream(device)?.raw().handle(), raw.handle());
            ones([4], device)?.add(2.0)
        })?;
        assert!(stream.last_op() > 0, "nothing was enqueued there");
        assert_eq!(a.to_vec::<f32>()?, [3.0; 4]);
    }
    Ok(())
}

fn per_thread(world: &World) -> Result<()> {
    let mine = cuda::Stream::new(0)?;
    let _guard = cuda::stream(&mine)?;
    let runtime = &world.runtime;
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            with_runtime(runtime, || {
                assert!(cuda::current_stream(0)?.is_default());
                let theirs = cuda::Stream::new(0)?;
                cuda::set_stream(&theirs)?;
                assert_eq!(cuda::current_stream(0)?, theirs);
                Ok::<_, warpline::Error>(theirs)
            })
        });
        let theirs = other.join().expect("no panic")?;
        assert_ne!(theirs, mine);
        assert_eq!(cuda::current_stream(0)?, mine);
        Ok(())
    })
}

fn per_device(_: &World) -> Result<()> {
    let s0 = cuda::Stream::new(0)?;
    let s1 = cuda::Stream::new(1)?;
    cuda::set_stream(&s1)?;
    assert_eq!(cuda::current_device()?, 1, "set_stream changes the device too");
    assert!(cuda::current_stream(0)?.is_default());
    cuda::set_stream(&s0)?;
    assert_eq!(cuda::current_device()?, 0);
    assert_eq!((cuda::current_stream(0)?, cuda::current_stream(1)?), (s0.clone(), s1.clone()));
    // An op runs on its device's current stream, even if another device is current.
    let before = (s0.last_op(), s1.last_op());
    let t = ones([2], 1)?;
    assert!(s1.last_op() > before.1);
    assert_eq!(s0.last_op(), before.0);
    assert_eq!(t.to_vec::<f32>()?, [1.0; 2]);
    for device in 0..2 {
        cuda::set_stream(&cuda::default_stream(device)?)?;
    }
    cuda::set_device(0)
}

fn guards(world: &World) -> Result<()> {
    let last = world.devices - 1;
    let (outer, inner) = (cuda::Stream::new(0)?, cuda::Stream::new(last)?);
    let state = || -> Result<_> {
        let streams = (0..world.devices).map(cuda::current_stream).collect::<Result<Vec<_>>>()?;
        Ok((cuda::current_device()?, streams))
    };
    let before = state()?;
    {
        let _outer = cuda::stream(&outer)?;
        let outside = state()?;
        assert_eq!(cuda::current_stream(())?, outer);
        cuda::with_stream(&inner, || {
            assert_eq!(cuda::current_device()?, last);
            assert_eq!(cuda::current_stream(())?, inner);
            Ok(())
        })?;
        assert_eq!(state()?, outside);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _ = cuda::with_stream(&inner, || -> warpline::Result<()> { panic!("on purpose") });
        }));
        assert!(panicked.is_err());
        assert_eq!(state()?, outside);
    }
    assert_eq!(state()?, before);
    Ok(())
}

#[test]
fn s11_a_stream_of_another_runtime_is_refused() {
    let other = warpline::simulated(1).expect("a runtime");
    let foreign = with_runtime(&other, || cuda::Stream::new(0)).expect("a stream");
    crate::common::worlds(1, |_| {
        assert!(matches!(cuda::stream(&foreign).kind(), Some(ErrorKind::RuntimeMismatch)));
        assert!(matches!(cuda::set_stream(&foreign).kind(), Some(ErrorKind::RuntimeMismatch)));
        assert!(
            cuda::with_stream(&foreign, || -> warpline::Result<()> { panic!("must not run") })
                .is_err()
        );
        assert!(cuda::current_stream(0)?.is_default());
        Ok(())
    });
}
