//! Compares guards with a model: a stack of saved states.

use proptest::prelude::*;
use warpline_stream::{DeviceGuard, Devices, Stream, StreamGuard};

use crate::support::counted;

#[derive(Clone, Debug)]
enum GuardStep {
    SetDevice(usize),
    SetStream(usize),
    DeviceGuard(usize),
    StreamGuard(usize),
    Pop,
}

/// A guard of either kind.
#[allow(dead_code)]
enum AnyGuard {
    Device(DeviceGuard),
    Stream(StreamGuard),
}

/// The current device, and the current stream of each device as an index into the list of streams.
#[derive(Clone, Debug, PartialEq)]
struct CurrentModel {
    device: usize,
    current: Vec<usize>,
}

enum SavedModel {
    Device(usize),
    Stream { device: usize, on: usize, stream: usize },
}

impl CurrentModel {
    fn restore(&mut self, saved: SavedModel) {
        match saved {
            SavedModel::Device(device) => self.device = device,
            SavedModel::Stream { device, on, stream } => {
                self.device = device;
                self.current[on] = stream;
            }
        }
    }
}

const DEVICES: usize = 3;
const STREAMS: usize = 9;

fn step() -> impl Strategy<Value = GuardStep> {
    prop_oneof![
        (0..DEVICES).prop_map(GuardStep::SetDevice),
        (0..STREAMS).prop_map(GuardStep::SetStream),
        (0..DEVICES).prop_map(GuardStep::DeviceGuard),
        (0..STREAMS).prop_map(GuardStep::StreamGuard),
        Just(GuardStep::Pop),
    ]
}

fn observed(devices: &Devices, streams: &[Stream]) -> CurrentModel {
    let index = |d| {
        let current = devices.current_stream(d).unwrap();
        streams.iter().position(|s| *s == current).unwrap()
    };
    CurrentModel { device: devices.current_device(), current: (0..DEVICES).map(index).collect() }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn guards_restore_like_a_stack(steps in prop::collection::vec(step(), 0..60)) {
        let (_, devices) = counted(DEVICES, 0);
        // Streams 0, 3 and 6 are the default streams.
        let streams: Vec<Stream> = devices
            .iter()
            .flat_map(|d| {
                let pool = || d.stream_from_pool(0).unwrap();
                [d.default_stream().clone(), pool(), pool()]
            })
            .collect();
        let mut model = CurrentModel { device: 0, current: vec![0, 3, 6] };
        let mut stack: Vec<(AnyGuard, SavedModel)> = Vec::new();
        for step in steps {
            match step {
                GuardStep::SetDevice(index) => {
                    prop_assert_eq!(devices.set_device(index).unwrap(), model.device);
                    model.device = index;
                }
                GuardStep::SetStream(index) => {
                    devices.set_current_stream(&streams[index]).unwrap();
                    model.current[index / 3] = index;
                }
                GuardStep::DeviceGuard(index) => {
                    let guard = AnyGuard::Device(devices.device_guard(index).unwrap());
                    stack.push((guard, SavedModel::Device(model.device)));
                    model.device = index;
                }
                GuardStep::StreamGuard(index) => {
                    let guard = AnyGuard::Stream(devices.stream_guard(&streams[index]).unwrap());
                    let on = index / 3;
                    let stream = model.current[on];
                    stack.push((guard, SavedModel::Stream { device: model.device, on, stream }));
                    model.device = on;
                    model.current[on] = index;
                }
                GuardStep::Pop => {
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
fn guards_dropped_out_of_order_restore_the_state_at_their_creation() {
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
