//! Guards against a plain model: a stack of saved states.

use proptest::prelude::*;
use warpline_stream::{DeviceGuard, Devices, Stream, StreamGuard};

use crate::support::counted;

#[derive(Clone, Debug)]
enum Step {
    SetDevice(usize),
    SetStream(usize),
    DeviceGuard(usize),
    StreamGuard(usize),
    Pop,
}

/// Dropping one restores what it saved.
#[allow(dead_code)]
enum Guard {
    Device(DeviceGuard),
    Stream(StreamGuard),
}

/// The current device, and per device the current stream, as an index into the streams.
#[derive(Clone, Debug, PartialEq)]
struct Model {
    device: usize,
    current: Vec<usize>,
}

enum Saved {
    Device(usize),
    Stream { device: usize, on: usize, stream: usize },
}

impl Model {
    fn restore(&mut self, saved: Saved) {
        match saved {
            Saved::Device(device) => self.device = device,
            Saved::Stream { device, on, stream } => {
                self.device = device;
                self.current[on] = stream;
            }
        }
    }
}

const DEVICES: usize = 3;
const STREAMS: usize = 9;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..DEVICES).prop_map(Step::SetDevice),
        (0..STREAMS).prop_map(Step::SetStream),
        (0..DEVICES).prop_map(Step::DeviceGuard),
        (0..STREAMS).prop_map(Step::StreamGuard),
        Just(Step::Pop),
    ]
}

fn observed(devices: &Devices, streams: &[Stream]) -> Model {
    let index = |d| {
        let current = devices.current_stream(d).unwrap();
        streams.iter().position(|s| *s == current).unwrap()
    };
    Model { device: devices.current_device(), current: (0..DEVICES).map(index).collect() }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn guards_restore_like_a_stack(steps in prop::collection::vec(step(), 0..60)) {
        let (_, devices) = counted(DEVICES, 0);
        // Streams 0, 3 and 6 are the default ones.
        let streams: Vec<Stream> = devices
            .iter()
            .flat_map(|d| {
                let pool = || d.stream_from_pool(0).unwrap();
                [d.default_stream().clone(), pool(), pool()]
            })
            .collect();
        let mut model = Model { device: 0, current: vec![0, 3, 6] };
        let mut stack: Vec<(Guard, Saved)> = Vec::new();
        for step in steps {
            match step {
                Step::SetDevice(index) => {
                    prop_assert_eq!(devices.set_device(index).unwrap(), model.device);
                    model.device = index;
                }
                Step::SetStream(index) => {
                    devices.set_current_stream(&streams[index]).unwrap();
                    model.current[index / 3] = index;
                }
                Step::DeviceGuard(index) => {
                    let guard = Guard::Device(devices.device_guard(index).unwrap());
                    stack.push((guard, Saved::Device(model.device)));
                    model.device = index;
                }
                Step::StreamGuard(index) => {
                    let guard = Guard::Stream(devices.stream_guard(&streams[index]).unwrap());
                    let on = index / 3;
                    let stream = model.current[on];
                    stack.push((guard, Saved::Stream { device: model.device, on, stream }));
                    model.device = on;
                    model.current[on] = index;
                }
                Step::Pop => {
                    if let Some((guard, saved)) = stack.pop() {
                        drop(guard);
                        model.restore(saved);
                    }
                }
            }
            prop_assert_eq!(&observed(&devices, &streams), &model);
        }
        while let Some((guard, saved)) = stack.pop() {
            drop(guard);
            model.restore(saved);
            prop_assert_eq!(&observed(&devices, &streams), &model);
        }
    }
}

#[test]
fn dropped_out_of_order_each_guard_restores_the_state_that_it_saw() {
    let (_, devices) = counted(3, 0);
    let outer = devices.device_guard(1).unwrap();
    let inner = devices.device_guard(2).unwrap();
    drop(outer);
    assert_eq!(devices.current_device(), 0);
    drop(inner);
    assert_eq!(devices.current_device(), 1);
}

#[test]
fn a_guard_may_outlive_its_devices() {
    let (_, devices) = counted(2, 0);
    let guard = devices.device_guard(1).unwrap();
    drop(devices);
    let (_, others) = counted(2, 0);
    others.set_device(1).unwrap();
    drop(guard);
    assert_eq!(others.current_device(), 1);
}
