//! S11: default, pool, exclusive and external streams; the current stream per thread and device.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use warpline_cuda_sys_safe::{StreamFlags, owned};
use warpline_stream::{Devices, ErrorKind, STREAMS_PER_POOL};

use crate::support::{RunClock, counted, on_devices, work};

on_devices! {
    s11_default_streams, gpu_s11_default_streams, default_streams;
    s11_pool_streams_alias_at_the_33rd, gpu_s11_pool_streams_alias_at_the_33rd, pool_aliases;
    s11_priorities, gpu_s11_priorities, priorities;
    s11_external_streams, gpu_s11_external_streams, external_streams;
    s11_stream_guards_restore, gpu_s11_stream_guards_restore, stream_guards;
    s11_the_current_stream_is_per_device, gpu_s11_the_current_stream_is_per_device, per_device;
    s11_streams_are_equal_by_identity, gpu_s11_streams_are_equal_by_identity, equality;
}

/// Ports PyTorch's tests `streams`, `current_stream` and `default_stream`.
fn default_streams(devices: &Devices) {
    for device in devices {
        let stream = device.default_stream();
        assert!(stream.is_default());
        assert_eq!(stream.raw().handle().raw(), 0);
        assert_eq!(stream.device_index(), device.index());
        assert_eq!(devices.current_stream(device.index()).unwrap(), *stream);
        assert!(stream.query().unwrap());
        assert_eq!(stream.to_string(), format!("the default stream of cuda:{}", device.index()));
    }
}

fn pool_aliases(devices: &Devices) {
    for device in devices {
        for priority in [0, -1] {
            let take = || device.stream_from_pool(priority).unwrap();
            let first: Vec<_> = (0..STREAMS_PER_POOL).map(|_| take()).collect();
            let again: Vec<_> = (0..STREAMS_PER_POOL).map(|_| take()).collect();
            assert_eq!(first, again);
            let ids: HashSet<_> = first.iter().map(|s| s.id()).collect();
            assert_eq!(ids.len(), STREAMS_PER_POOL);
            // An exclusive stream is in no pool.
            let mine = device.exclusive_stream(priority).unwrap();
            assert!(!first.contains(&mine));
            assert!(!mine.is_default());
        }
    }
}

/// Ports PyTorch's test `streams_priority`.
fn priorities(devices: &Devices) {
    for device in devices {
        for priority in -3..=0 {
            let pooled = device.stream_from_pool(priority).unwrap();
            let exclusive = device.exclusive_stream(priority).unwrap();
            assert_eq!(pooled.priority().unwrap(), priority);
            assert_eq!(exclusive.priority().unwrap(), priority);
        }
        assert_eq!(device.stream_from_pool(7).unwrap().priority().unwrap(), 0);
        assert_eq!(device.stream_from_pool(i32::MIN).unwrap().priority().unwrap(), -3);
    }
}

/// Ports PyTorch's test `external_streams`.
fn external_streams(devices: &Devices) {
    let clock = RunClock::default();
    for device in devices {
        let flags = StreamFlags { non_blocking: true, priority: 0 };
        let raw = owned::Stream::new(device.driver(), device.index(), flags).unwrap();
        let stream = device.external_stream(raw.clone()).unwrap();
        assert_eq!(stream.raw().handle(), raw.handle());
        let inside = devices.with_stream(&stream, || {
            devices.with_current_stream(device.index(), |s| s.raw().handle()).unwrap()
        });
        assert_eq!(inside.unwrap(), raw.handle());
        let (probe, _) = clock.probe(&stream);
        stream.synchronize().unwrap();
        assert!(probe.ran());

        let default = owned::Stream::default_of(device.driver(), device.index());
        assert_eq!(device.external_stream(default).unwrap(), *device.default_stream());
        let other = (device.index() + 1) % devices.count();
        if other != device.index() {
            let error = devices.get(other).unwrap().external_stream(raw).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::WrongDevice { .. }), "{error}");
        }
    }
}

fn new_raw(devices: &Devices) -> owned::Stream {
    owned::Stream::new(devices.driver(), 0, StreamFlags { non_blocking: true, priority: 0 })
        .unwrap()
}

#[test]
fn s11_a_raw_stream_wrapped_twice_is_one_stream() {
    let (_, devices) = counted(1, 0);
    let (device, raw) = (devices.get(0).unwrap(), new_raw(&devices));
    let one = device.external_stream(raw.clone()).unwrap();
    assert_eq!(work(&one, || ()), 1);
    one.synchronize().unwrap();
    let two = device.external_stream(raw.clone()).unwrap();
    assert_eq!((two.last_op(), two.is_known_done(1), two.is_known_done(2)), (1, true, false));
    assert_eq!(work(&two, || ()), 2);
    assert_eq!(one.last_op(), 2);
    assert!(!one.is_known_done(2), "the first wait must not cover the second wrapper's work");

    // A new wrapper of the handle, and a stream of the devices' own pool, keep their numbers too.
    // SAFETY: `raw` keeps the driver's stream alive.
    let again = unsafe { owned::Stream::from_external(devices.driver(), raw.handle()) };
    assert_eq!(device.external_stream(again).unwrap().last_op(), 2);
    let pooled = device.stream_from_pool(0).unwrap();
    work(&pooled, || ());
    assert_eq!(device.external_stream(pooled.raw().clone()).unwrap().last_op(), 1);
}

#[test]
fn s11_numbers_continue_when_a_raw_stream_is_wrapped_again() {
    let (_, devices) = counted(1, 0);
    let (device, raw) = (devices.get(0).unwrap(), new_raw(&devices));
    let one = device.external_stream(raw.clone()).unwrap();
    (0..3).for_each(|_| _ = work(&one, || ()));
    let other = device.exclusive_stream(0).unwrap();
    other.wait_for(&one, 3).unwrap();
    drop(one);
    let two = device.external_stream(raw).unwrap();
    assert_eq!(two.last_op(), 3);
    let op = work(&two, || ());
    assert!(!other.is_ordered_after(&two, op).unwrap(), "the wait covers only earlier work");
}

#[test]
fn s11_a_raw_stream_belongs_to_one_devices_at_a_time() {
    let (driver, devices) = counted(1, 0);
    let others = Devices::new(driver).unwrap();
    let raw = new_raw(&devices);
    let one = devices.get(0).unwrap().external_stream(raw.clone()).unwrap();
    assert_eq!(work(&one, || ()), 1);
    let refused = others.get(0).unwrap().external_stream(raw.clone()).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::RuntimeMismatch), "{refused}");
    one.synchronize().unwrap();
    drop(one);
    assert_eq!(others.get(0).unwrap().external_stream(raw).unwrap().last_op(), 1);
}

#[test]
fn s11_an_external_stream_of_another_driver_is_refused() {
    let (_, one) = counted(1, 0);
    let (other, _) = counted(1, 0);
    let raw = owned::Stream::default_of(&(other as _), 0);
    let error = one.get(0).unwrap().external_stream(raw).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::RuntimeMismatch), "{error}");
}

/// Ports PyTorch's tests of nested and multi-device stream guards.
fn stream_guards(devices: &Devices) {
    let last = devices.count() - 1;
    let first = devices.get(0).unwrap().stream_from_pool(0).unwrap();
    let second = devices.get(last).unwrap().stream_from_pool(0).unwrap();
    let state = || {
        let streams: Vec<_> =
            (0..devices.count()).map(|d| devices.current_stream(d).unwrap()).collect();
        (devices.current_device(), streams)
    };
    let before = state();
    {
        let outer = devices.stream_guard(&first).unwrap();
        assert_eq!(outer.previous_device(), 0);
        let outside = state();
        assert_eq!(devices.current_stream(0).unwrap(), first);
        {
            let _inner = devices.stream_guard(&second).unwrap();
            assert_eq!(devices.current_device(), last);
            assert_eq!(devices.current_stream(last).unwrap(), second);
            // Nest a guard of the default stream.
            let default = devices.get(last).unwrap().default_stream();
            devices
                .with_stream(default, || {
                    assert_eq!(devices.current_stream(last).unwrap(), *default);
                })
                .unwrap();
            assert_eq!(devices.current_stream(last).unwrap(), second);
        }
        assert_eq!(state(), outside);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            devices.with_stream(&second, || panic!("on purpose")).unwrap();
        }));
        assert!(panicked.is_err());
        assert_eq!(state(), outside);
    }
    assert_eq!(state(), before);
}

fn per_device(devices: &Devices) {
    let streams: Vec<_> = devices.iter().map(|d| d.stream_from_pool(0).unwrap()).collect();
    for stream in &streams {
        devices.set_current_stream(stream).unwrap();
        assert_eq!(devices.current_device(), 0, "setting a stream does not change the device");
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for device in devices {
                let index = device.index();
                assert_eq!(devices.current_stream(index).unwrap(), *device.default_stream());
            }
        });
    });
    for (index, stream) in streams.iter().enumerate() {
        assert_eq!(devices.current_stream(index).unwrap(), *stream);
    }
    for device in devices {
        devices.set_current_stream(device.default_stream()).unwrap();
        assert!(devices.current_stream(device.index()).unwrap().is_default());
    }
}

/// Ports PyTorch's test `streams_multi_gpu_eq`.
fn equality(devices: &Devices) {
    let defaults: HashSet<_> = devices.iter().map(|d| d.default_stream().id()).collect();
    assert_eq!(defaults.len(), devices.count());
    for device in devices {
        let stream = device.stream_from_pool(0).unwrap();
        assert_eq!(stream, stream.clone());
        assert_ne!(stream, *device.default_stream());
        assert_ne!(stream, device.stream_from_pool(0).unwrap());
    }
}

#[test]
fn s11_a_stream_set_inside_with_current_stream_stays() {
    let (_, devices) = counted(1, 0);
    let device = devices.get(0).unwrap();
    let (one, two) = (device.stream_from_pool(0).unwrap(), device.stream_from_pool(0).unwrap());
    devices.set_current_stream(&one).unwrap();
    devices
        .with_current_stream(0, |stream| {
            devices.set_current_stream(&two).unwrap();
            assert_eq!(*stream, one);
        })
        .unwrap();
    assert_eq!(devices.current_stream(0).unwrap(), two);
}

#[test]
fn s11_pool_streams_are_created_on_request() {
    let (driver, devices) = counted(1, 0);
    let device = devices.get(0).unwrap();
    assert_eq!(driver.calls("stream_create"), 0);
    device.stream_from_pool(0).unwrap();
    assert_eq!(driver.calls("stream_create"), 1);
    driver.fail(Some("stream_create"));
    let error = device.stream_from_pool(0).unwrap_err();
    assert!(error.to_string().contains("s11_streams.rs"), "the error has its caller: {error}");
    driver.fail(None);
    // A failed creation does not advance the pool.
    for _ in 1..STREAMS_PER_POOL {
        device.stream_from_pool(0).unwrap();
    }
    assert_eq!(driver.calls("stream_create"), STREAMS_PER_POOL + 1);
    device.stream_from_pool(0).unwrap();
    assert_eq!(driver.calls("stream_create"), STREAMS_PER_POOL + 1);
}

#[test]
fn s11_an_ended_thread_releases_its_streams() {
    let (driver, devices) = counted(1, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mine = devices.get(0).unwrap().exclusive_stream(0).unwrap();
            devices.set_current_stream(&mine).unwrap();
            drop(mine);
            assert_eq!(driver.calls("stream_destroy"), 0);
        });
    });
    // A scope waits for its closures, but not for the destructors of their thread-locals.
    for _ in 0..1000 {
        if driver.calls("stream_destroy") == 1 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("the stream was not destroyed");
}
