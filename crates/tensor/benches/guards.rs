//! Measures the host time of `cuda::device` and `cuda::stream` guards, from creation to drop. Unlike the guards
//! of `warpline-stream`, these guards look up the runtime in use. The measured runtime is entered by
//! `with_runtime`, and its driver does nothing. With `WARPLINE_DRIVER=sim:2`, the default runtime is measured
//! as well.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use warpline::{Runtime, RuntimeConfig, cuda, with_runtime};
use warpline_cuda_sys_safe::null::NullDriver;

fn guards(c: &mut Criterion) {
    let runtime =
        Runtime::new(Arc::new(NullDriver::new(2)), RuntimeConfig::default()).expect("a runtime");
    with_runtime(&runtime, || of_runtime_in_use(c, "cuda guards"));
    if std::env::var_os("WARPLINE_DRIVER").is_some() {
        of_runtime_in_use(c, "cuda guards, the process's runtime");
    }
}

fn of_runtime_in_use(c: &mut Criterion, name: &str) {
    let stream = || cuda::Stream::new(0).expect("a stream");
    let (here, other) = (stream(), stream());
    cuda::set_stream(&here).expect("a stream");
    let mut group = c.benchmark_group(name);
    group.bench_function("same device", |b| {
        b.iter(|| drop(cuda::device(black_box(0)).expect("a guard")));
    });
    group.bench_function("same stream", |b| {
        b.iter(|| drop(cuda::stream(black_box(&here)).expect("a guard")));
    });
    group.bench_function("other device", |b| {
        b.iter(|| drop(cuda::device(black_box(1)).expect("a guard")));
    });
    group.bench_function("other stream", |b| {
        b.iter(|| drop(cuda::stream(black_box(&other)).expect("a guard")));
    });
    group.finish();
}

criterion_group!(benches, guards);
criterion_main!(benches);
