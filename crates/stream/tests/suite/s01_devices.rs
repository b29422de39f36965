//! S1: devices, the current device, and its guards.

use std::panic::{AssertUnwindSafe, catch_unwind};

use warpline_stream::{Devices, Error, ErrorKind};

use crate::support::{counted, on_devices};

on_devices! {
    s01_set_device, gpu_s01_set_device, set_device;
    s01_nested_device_guards_restore, gpu_s01_nested_device_guards_restore, nested_guards;
    s01_bad_ordinals_are_errors, gpu_s01_bad_ordinals_are_errors, bad_ordinals;
}

fn set_device(devices: &Devices) {
    assert_eq!(devices.current_device(), 0);
    let last = devices.count() - 1;
    assert_eq!(devices.set_device(last).unwrap(), 0);
    assert_eq!(devices.current_device(), last);
    assert_eq!(devices.set_device(0).unwrap(), last);
    assert_eq!(devices.current_device(), 0);
    for (index, device) in devices.iter().enumerate() {
        assert_eq!(device.index(), index);
        assert_eq!(devices.get(index).unwrap(), device);
    }
}

fn nested_guards(devices: &Devices) {
    let last = devices.count() - 1;
    {
        let outer = devices.device_guard(last).unwrap();
        assert_eq!(outer.previous_device(), 0);
        let seen = devices.with_device(0, || devices.current_device()).unwrap();
        assert_eq!(seen, 0);
        assert_eq!(devices.current_device(), last);
        // A guard that changes nothing still restores the device when dropped.
        {
            let _same = devices.device_guard(last).unwrap();
            devices.set_device(0).unwrap();
        }
        assert_eq!(devices.current_device(), last);
    }
    assert_eq!(devices.current_device(), 0);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        devices.with_device(last, || panic!("on purpose")).unwrap();
    }));
    assert!(panicked.is_err());
    assert_eq!(devices.current_device(), 0);
}

fn bad_ordinals(devices: &Devices) {
    let count = devices.count();
    let is_refused = |error: Error| {
        assert_eq!(
            error.kind().to_string(),
            format!(
                "invalid device ordinal: cuda:{count} was requested, but {count} device(s) are visible"
            )
        );
        matches!(error.kind(), ErrorKind::NoSuchDevice { .. })
    };
    assert!(is_refused(devices.get(count).unwrap_err()));
    assert!(is_refused(devices.set_device(count).unwrap_err()));
    assert!(is_refused(devices.device_guard(count).unwrap_err()));
    assert!(is_refused(devices.current_stream(count).unwrap_err()));
    let mut ran = false;
    assert!(is_refused(devices.with_device(count, || ran = true).unwrap_err()));
    assert!(!ran);
    assert_eq!(devices.current_device(), 0);
}

/// Ports PyTorch's tests `cuda_set_device` and `lazy_init`.
#[test]
fn s01_the_current_device_creates_no_context() {
    let (driver, devices) = counted(3, 0);
    for device in &devices {
        devices.set_device(device.index()).unwrap();
        devices.with_stream(device.default_stream(), || ()).unwrap();
        devices.with_current_stream(device.index(), |s| assert!(s.is_default())).unwrap();
        let event = warpline_stream::Event::default();
        assert!(event.query().unwrap());
        event.synchronize().unwrap();
        event.wait(device.default_stream()).unwrap();
        use warpline_cuda_sys_safe::Driver;
        assert!(!driver.primary_context_active(device.index()).unwrap());
    }
    assert_eq!(driver.calls("stream_create") + driver.calls("event_create"), 0);
}

#[test]
fn s01_each_thread_has_its_own_current_device() {
    let (_, devices) = counted(3, 0);
    devices.set_device(2).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(devices.current_device(), 0);
            devices.set_device(1).unwrap();
            assert_eq!(devices.current_device(), 1);
        });
    });
    assert_eq!(devices.current_device(), 2);
}

#[test]
fn devices_do_not_share_a_current_device_or_streams() {
    let (_, one) = counted(2, 0);
    let (_, two) = counted(2, 0);
    assert_ne!(one.id(), two.id());
    assert_eq!(one.id(), one.clone().id());
    one.set_device(1).unwrap();
    assert_eq!((one.current_device(), two.current_device()), (1, 0));

    let foreign = two.get(0).unwrap().stream_from_pool(0).unwrap();
    let stream = one.get(0).unwrap().stream_from_pool(0).unwrap();
    let event = foreign.record_event(None).unwrap();
    for error in [
        one.set_current_stream(&foreign).unwrap_err(),
        one.stream_guard(&foreign).unwrap_err(),
        stream.wait_stream(&foreign).unwrap_err(),
        stream.wait_for(&foreign, 1).unwrap_err(),
        stream.wait_event(&event).unwrap_err(),
        event.record(&stream).unwrap_err(),
    ] {
        assert!(matches!(error.kind(), ErrorKind::RuntimeMismatch), "{error}");
    }
}
