//! Benchmarks of transcendental ops on 2²⁰ `f32` elements on the CPU, compared with a plain loop on
//! one core that calls the standard library's functions, or for erf the crate `libm`.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use warpline_cuda_sys_safe::DriverError;
use warpline_kernels::elementwise::{self, apply};
use warpline_kernels::fill::linspace;
use warpline_kernels::softmax::softmax;
use warpline_runtime::{DType, Layout, Runtime, RuntimeConfig, Storage, Target, View};

const SIZES: [usize; 2] = [1024, 1024];
const NUMEL: usize = SIZES[0] * SIZES[1];

/// An op, its name, and the function that the plain loop calls.
type Op = (&'static elementwise::Op, &'static str, fn(f32) -> f32);

const OPS: [Op; 6] = [
    (&elementwise::EXP, "exp", f32::exp),
    (&elementwise::LOG, "log", f32::ln),
    (&elementwise::TANH, "tanh", f32::tanh),
    (&elementwise::SIGMOID, "sigmoid", |x| 1.0 / (1.0 + (-x).exp())),
    (&elementwise::GELU, "gelu", |x| {
        x * 0.5 * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2))
    }),
    (&elementwise::GELU_TANH, "gelu_tanh", |x| {
        0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044715 * x * x * x)).tanh())
    }),
];

fn softmax_loop(a: &[f32], out: &mut [f32]) {
    for (a, out) in a.chunks(SIZES[1]).zip(out.chunks_mut(SIZES[1])) {
        let largest = a.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for (out, x) in out.iter_mut().zip(a) {
            *out = (x - largest).exp();
            sum += *out;
        }
        for out in out {
            *out /= sum;
        }
    }
}

fn cpu_math(c: &mut Criterion) {
    let reason = DriverError::NoDevice { reason: "this runs on the CPU".into() };
    let runtime = Runtime::without_cuda(reason, &RuntimeConfig::default());
    let target = Target::Cpu(&runtime);
    let layout = Layout::contiguous(&SIZES).expect("a layout");
    let storage = || Storage::pageable(&runtime, NUMEL * size_of::<f32>()).expect("memory");
    let (input, output) = (storage(), storage());
    let flat = Layout::contiguous(&[NUMEL]).expect("a layout");
    let view = |storage| View { storage, layout: &layout, dtype: DType::F32 };

    // The domain of the logarithm is positive numbers. For negative numbers, it would return early.
    let range = |op: &elementwise::Op| {
        if op.name() == elementwise::LOG.name() { [1e-3, 1e3] } else { [-8.0, 8.0] }
    };
    let values = |[from, to]: [f64; 2]| -> Vec<f32> {
        (0..NUMEL).map(|i| (from + (to - from) * i as f64 / NUMEL as f64) as f32).collect()
    };
    let mut out = vec![0.0; NUMEL];
    for (op, name, library) in OPS {
        let [from, to] = range(op);
        linspace(target, View { layout: &flat, ..view(&input) }, from, to).expect("values");
        c.bench_function(&format!("cpu_math/{name}"), |bench| {
            let input = [view(&input).into()];
            bench.iter(|| apply(target, op, DType::F32, &input, view(&output)).expect("a result"));
        });
        let a = values([from, to]);
        c.bench_function(&format!("cpu_math/{name}/libm"), |bench| {
            bench.iter(|| {
                for (out, &x) in out.iter_mut().zip(black_box(&a)) {
                    *out = library(x);
                }
                black_box(&mut out);
            });
        });
    }
    linspace(target, View { layout: &flat, ..view(&input) }, -8.0, 8.0).expect("values");
    c.bench_function("cpu_math/softmax", |bench| {
        bench.iter(|| softmax(target, view(&input), 1, view(&output), false).expect("a result"));
    });
    let a = values([-8.0, 8.0]);
    c.bench_function("cpu_math/softmax/libm", |bench| {
        bench.iter(|| {
            softmax_loop(black_box(&a), &mut out);
            black_box(&mut out);
        });
    });
}

criterion_group!(benches, cpu_math);
criterion_main!(benches);
