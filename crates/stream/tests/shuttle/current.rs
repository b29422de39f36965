//! The current device and streams of each thread.

use crate::{check, fake_devices, task, together};

#[test]
fn each_thread_keeps_its_own_current_stream() {
    check(|| {
        let devices = fake_devices(2);
        let given = devices.get(1).unwrap().exclusive_stream(0).unwrap();
        together([0, 1].map(|device| {
            let (devices, given) = (devices.clone(), given.clone());
            task(move || {
                assert_eq!(devices.current_device(), 0, "every thread starts on device 0");
                assert!(devices.current_stream(1).unwrap().is_default());
                devices.set_device(device).unwrap();
                let own = devices.get(device).unwrap().stream_from_pool(0).unwrap();
                devices.set_current_stream(&own).unwrap();
                devices
                    .with_stream(&given, || {
                        assert_eq!(devices.current_device(), 1);
                        assert_eq!(devices.current_stream(1).unwrap(), given);
                        own.synchronize().unwrap();
                        assert_eq!(devices.current_stream(1).unwrap(), given);
                    })
                    .unwrap();
                own.synchronize().unwrap();
                assert_eq!(devices.current_device(), device);
                assert_eq!(devices.current_stream(device).unwrap(), own);
                assert!(devices.current_stream(1 - device).unwrap().is_default());
            })
        }));
        assert_eq!(devices.current_device(), 0);
    });
}
