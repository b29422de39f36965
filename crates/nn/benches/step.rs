//! Measures the host's cost of a training step without the driver's share: the driver of this benchmark does nothing.
//! The networks are those of `model_speed`.

use std::sync::Arc;

#[path = "../examples/model_speed/models.rs"]
mod models;

use criterion::{Criterion, criterion_group, criterion_main};
use warpline::autograd::no_grad;
use warpline::functional::cross_entropy;
use warpline::{DType, Result, Runtime, RuntimeConfig, empty, with_runtime};
use warpline_cuda_sys_safe::null::NullDriver;
use warpline_nn::Module;
use warpline_nn::optim::{AdamW, Optimizer, SGD, SGDOptions};

use models::{Gpt, GptSizes, mlp};

fn step(c: &mut Criterion) {
    let runtime =
        Runtime::new(Arc::new(NullDriver::new(1)), RuntimeConfig::default()).expect("a runtime");
    with_runtime(&runtime, || -> Result<()> {
        let mut net = mlp()?;
        net.to("cuda")?;
        let x = empty([64, 256], "cuda")?;
        let y = empty([64], (DType::I64, "cuda"))?;
        let forward = || cross_entropy(&net.forward(&x)?, &y, ());
        c.bench_function("step/forward without gradients", |bench| {
            bench.iter(|| no_grad(forward).expect("a loss"));
        });
        c.bench_function("step/forward", |bench| bench.iter(|| forward().expect("a loss")));
        let mut sgd = SGD::new(net.parameters(), SGDOptions::new().lr(0.01))?;
        let mut adam = AdamW::new(net.parameters(), ())?;
        let all: [(&str, &mut dyn Optimizer); 2] = [("SGD", &mut sgd), ("AdamW", &mut adam)];
        for (name, optimizer) in all {
            let mut step = || -> Result<()> {
                optimizer.zero_grad()?;
                forward()?.backward()?;
                optimizer.step()
            };
            c.bench_function(&format!("step/{name}"), |bench| {
                bench.iter(|| step().expect("a step"));
            });
        }
        let sizes = GptSizes { width: 256, heads: 4, layers: 4, vocabulary: 1024, length: 128 };
        let mut gpt = Gpt::new(sizes)?;
        gpt.to((DType::BF16, "cuda"))?;
        let tokens = empty([8, 128], (DType::I64, "cuda"))?;
        let mut adam = AdamW::new(gpt.parameters(), ())?;
        let mut step = || -> Result<()> {
            adam.zero_grad()?;
            gpt.loss(&tokens, &tokens)?.backward()?;
            adam.step()
        };
        c.bench_function("step/a GPT of 4 layers", |bench| bench.iter(|| step().expect("a step")));
        Ok(())
    })
    .expect("a network");
}

criterion_group!(benches, step);
criterion_main!(benches);
