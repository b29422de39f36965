//! Measures the host time of an op without the driver's share: the driver of this benchmark does nothing.
//! `docs/notes/host-overhead.md` has the goals.

use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use warpline::functional::linear;
use warpline::{Runtime, RuntimeConfig, empty, with_runtime};
use warpline_cuda_sys_safe::null::NullDriver;

fn dispatch(c: &mut Criterion) {
    let runtime =
        Runtime::new(Arc::new(NullDriver::new(1)), RuntimeConfig::default()).expect("a runtime");
    with_runtime(&runtime, || {
        let (a, b) = (empty([4], "cuda").expect("a"), empty([4], "cuda").expect("b"));
        c.bench_function("dispatch/add", |bench| bench.iter(|| (&a + &b).expect("a sum")));
        c.bench_function("dispatch/add_scalar", |bench| bench.iter(|| (&a + 1.0).expect("a sum")));
        c.bench_function("dispatch/add_", |bench| {
            bench.iter(|| a.add_(&b).map(|_| ()).expect("in place"));
        });
        let (x, w) = (empty([2, 4], "cuda").expect("x"), empty([4, 4], "cuda").expect("w"));
        c.bench_function("dispatch/linear", |bench| {
            bench.iter(|| linear(&x, &w, &a).expect("a product"));
        });
        c.bench_function("dispatch/view", |bench| {
            bench.iter(|| a.view([2, 2]).expect("a view"));
        });
        c.bench_function("dispatch/empty", |bench| {
            bench.iter(|| empty([4], "cuda").expect("a tensor"));
        });
    });
}

criterion_group!(benches, dispatch);
criterion_main!(benches);
