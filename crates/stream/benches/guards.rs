//! Time to create and drop a guard, on a driver that does nothing. Goals: at most 10 ns if the
//! guard changes nothing, at most 40 ns if it does.
//!
//! Guards make no driver calls, because every driver call names its device.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use warpline_cuda_sys_safe::null::NullDriver;
use warpline_stream::{Devices, Stream};

fn guards(c: &mut Criterion) {
    let devices = Devices::new(Arc::new(NullDriver::new(2))).expect("devices");
    let stream =
        |device: usize| devices.get(device).and_then(|d| d.stream_from_pool(0)).expect("a stream");
    let (here, other, there) = (stream(0), stream(0), stream(1));
    let default = devices.get(0).expect("a device").default_stream();

    let device = |index: usize| drop(devices.device_guard(black_box(index)).expect("a guard"));
    let on = |stream: &Stream| drop(devices.stream_guard(black_box(stream)).expect("a guard"));

    let mut group = c.benchmark_group("guards, nothing set before");
    group.bench_function("same device", |b| b.iter(|| device(0)));
    group.bench_function("same stream", |b| b.iter(|| on(default)));
    group.finish();

    // The thread has set devices and streams, so guards look up its table.
    devices.set_device(1).and_then(|_| devices.set_device(0)).expect("a device");
    devices.set_current_stream(&there).expect("a stream");
    devices.set_current_stream(&here).expect("a stream");
    let mut group = c.benchmark_group("guards");
    group.bench_function("same device", |b| b.iter(|| device(0)));
    group.bench_function("same stream", |b| b.iter(|| on(&here)));
    group.bench_function("other device", |b| b.iter(|| device(1)));
    group.bench_function("other stream", |b| b.iter(|| on(&other)));
    group.bench_function("default stream", |b| b.iter(|| on(default)));
    group.bench_function("current stream of another device", |b| {
        b.iter(|| on(&there));
    });
    group.finish();
}

criterion_group!(benches, guards);
criterion_main!(benches);
