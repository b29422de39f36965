//! Streams, events and devices that several threads use at the same time.

use std::sync::{Arc, Mutex};

use warpline_stream::{Devices, Event, OpNumber, Stream};

use crate::support::{RunClock, on_devices, work};

const THREADS: usize = 8;

on_devices! {
    numbers_are_the_order_in_the_stream, gpu_numbers_are_the_order_in_the_stream, numbering;
    threads_wait_for_each_other, gpu_threads_wait_for_each_other, mutual_waits;
    an_event_may_be_recorded_and_waited_for_at_once, gpu_an_event_may_be_recorded_and_waited_for_at_once, shared_event;
    devices_may_be_first_used_at_once, gpu_devices_may_be_first_used_at_once, init_race;
}

fn numbering(devices: &Devices) {
    let stream = devices.get(0).unwrap().stream_from_pool(0).unwrap();
    // `ran` has the operations in the order of their execution. `numbered` has the same operations with
    // their numbers.
    let ran = Arc::new(Mutex::new(Vec::new()));
    let numbered = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (stream, ran, numbered) = (&stream, &ran, &numbered);
            scope.spawn(move || {
                for i in 0..20 {
                    let ran = ran.clone();
                    let op = work(stream, move || ran.lock().unwrap().push((thread, i)));
                    numbered.lock().unwrap().push((op, (thread, i)));
                }
            });
        }
    });
    stream.synchronize().unwrap();
    let mut numbered = numbered.into_inner().unwrap();
    numbered.sort_unstable();
    let numbers: Vec<OpNumber> = numbered.iter().map(|(op, _)| *op).collect();
    let last = (THREADS * 20) as OpNumber;
    assert_eq!(numbers, (stream.last_op() + 1 - last..=stream.last_op()).collect::<Vec<_>>());
    let by_number: Vec<_> = numbered.into_iter().map(|(_, operation)| operation).collect();
    assert_eq!(*ran.lock().unwrap(), by_number);
}

fn mutual_waits(devices: &Devices) {
    let clock = RunClock::default();
    let streams: Vec<Stream> = (0..3)
        .map(|i| devices.get(i % devices.count()).unwrap().stream_from_pool(0).unwrap())
        .collect();
    let pairs = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (streams, clock, pairs) = (&streams, &clock, &pairs);
            scope.spawn(move || {
                for i in 0..12 {
                    let (from, to) = (&streams[(thread + i) % 3], &streams[(thread + i + 1) % 3]);
                    let (before, op) = clock.probe(from);
                    to.wait_for(from, op).unwrap();
                    let (after, last) = clock.probe(to);
                    pairs.lock().unwrap().push((before.clone(), after.clone()));
                    match i % 4 {
                        0 => {
                            to.host_wait(last).unwrap();
                            assert!(before.ran_before(&after));
                        }
                        1 => drop(to.is_done(last).unwrap()),
                        2 => from.wait_stream(to).unwrap(),
                        _ => to.synchronize().unwrap(),
                    }
                }
            });
        }
    });
    devices.iter().for_each(|d| d.synchronize().unwrap());
    for (before, after) in pairs.into_inner().unwrap() {
        assert!(before.ran_before(&after));
    }
}

fn shared_event(devices: &Devices) {
    let device = devices.get(0).unwrap();
    let event = Event::default();
    let clock = RunClock::default();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (event, clock) = (event.clone(), clock.clone());
            let stream = device.exclusive_stream(0).unwrap();
            scope.spawn(move || {
                for i in 0..10 {
                    if (thread + i) % 2 == 0 {
                        clock.probe(&stream);
                        event.record(&stream).unwrap();
                    } else {
                        event.wait(&stream).unwrap();
                        clock.probe(&stream);
                    }
                    if i % 5 == 4 {
                        event.synchronize().unwrap();
                    }
                    let _ = event.query().unwrap();
                }
                stream.synchronize().unwrap();
            });
        }
    });
}

/// Ports PyTorch's test `cuda_init_race`.
fn init_race(devices: &Devices) {
    std::thread::scope(|scope| {
        for device in devices {
            for _ in 0..2 {
                scope.spawn(move || {
                    devices.set_device(device.index()).unwrap();
                    let stream = device.stream_from_pool(0).unwrap();
                    let (probe, op) = RunClock::default().probe(&stream);
                    stream.host_wait(op).unwrap();
                    assert!(probe.ran());
                    assert_eq!(devices.current_device(), device.index());
                });
            }
        }
    });
}
