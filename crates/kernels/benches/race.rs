//! Benchmarks of launches with and without the race detector, on a driver that does nothing. The
//! goal is that the detector adds at most 2 µs per launch.

use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use warpline_cuda_sys_safe::null::NullDriver;
use warpline_kernels::elementwise::{ADD, apply};
use warpline_runtime::{
    DType, Layout, RaceReport, Runtime, RuntimeConfig, Storage, SyncPolicy, Target, View,
};

fn launches(c: &mut Criterion) {
    for (name, sync_policy, race_report) in [
        ("auto", SyncPolicy::Auto, RaceReport::Collect),
        ("off", SyncPolicy::Manual, RaceReport::Off),
        ("on", SyncPolicy::Manual, RaceReport::Collect),
    ] {
        let config = RuntimeConfig { sync_policy, race_report, ..RuntimeConfig::default() };
        let runtime = Runtime::new(Arc::new(NullDriver::new(1)), config).expect("a runtime");
        let device = runtime.device(0).expect("a device");
        let [s, t] = [(); 2].map(|()| device.device().exclusive_stream(0).expect("a stream"));
        let target = Target::Cuda(&runtime, device, &s);
        let layout = Layout::contiguous(&[64, 64]).expect("a layout");
        let storages =
            [(); 3].map(|()| Storage::device(&runtime, 16384, &s).expect("device memory"));
        let [a, b, out] =
            storages.each_ref().map(|storage| View { storage, layout: &layout, dtype: DType::F32 });
        let add =
            |target| apply(target, &ADD, DType::F32, &[a.into(), b.into()], out).expect("a sum");
        c.bench_function(&format!("race/{name}/one_stream"), |bench| bench.iter(|| add(target)));

        // Sixteen views of four columns each, whose elements interleave in memory.
        let views: Vec<Layout> =
            (0..16).map(|i| layout.narrow(1, 4 * i, 4).expect("a view")).collect();
        let mut next = views.iter().cycle();
        c.bench_function(&format!("race/{name}/interleaved_views"), |bench| {
            bench.iter(|| {
                let layout = next.next().expect("a view");
                let of = |view| View { layout, ..view };
                let operands = [of(a).into(), of(b).into()];
                apply(target, &ADD, DType::F32, &operands, of(out)).expect("a sum")
            });
        });

        // Two streams that launch in turn, each after a wait for the other.
        let other = Target::Cuda(&runtime, device, &t);
        c.bench_function(&format!("race/{name}/two_streams_and_two_waits"), |bench| {
            bench.iter(|| {
                add(target);
                t.wait_stream(&s).expect("a wait");
                add(other);
                s.wait_stream(&t).expect("a wait");
            });
        });
        assert!(runtime.take_races().is_empty());
    }
}

criterion_group!(benches, launches);
criterion_main!(benches);
