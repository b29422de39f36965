//! Gradients through replicas.

use warpline::{Result, Tensor, autograd, manual_seed, randn};
use warpline_nn::{Linear, Module, ReLU, Sequential};
use warpline_parallel::DataParallel;

use super::world::TestResult;

fn net() -> Result<Sequential> {
    manual_seed(3);
    let net = Sequential::new()
        .with(Linear::new(6, 16, "cuda:0")?)
        .with(ReLU)
        .with(Linear::new(16, 2, "cuda:0")?);
    for parameter in net.parameters() {
        parameter.requires_grad_(true)?;
    }
    Ok(net)
}

fn gradients(module: &impl Module) -> Result<Vec<Vec<f32>>> {
    let of = |p: Tensor| p.grad().expect("a gradient").to_vec::<f32>();
    module.parameters().into_iter().map(of).collect()
}

fn check() -> TestResult {
    let x = randn([10, 6], 0)?.requires_grad_(true)?;
    let (alone, own) = (net()?, x.detach().requires_grad_(true)?);
    alone.forward(&own)?.square()?.sum(())?.backward()?;
    let expected = gradients(&alone)?;
    let parallel = DataParallel::new(net()?, ())?;
    for times in 1..=2u8 {
        parallel.forward(x.clone())?.square()?.sum(())?.backward()?;
        for (found, expected) in gradients(parallel.module())?.iter().zip(&expected) {
            for (found, expected) in found.iter().zip(expected) {
                let expected = expected * f32::from(times);
                assert!((found - expected).abs() <= 1e-4 * (1.0 + expected.abs()));
            }
        }
    }
    let found = x.grad().expect("a gradient").div(2.0)?.to_vec::<f32>()?;
    let expected = own.grad().expect("a gradient").to_vec::<f32>()?;
    assert!(found.iter().zip(&expected).all(|(f, e)| (f - e).abs() <= 1e-4 * (1.0 + e.abs())));
    let plain = autograd::no_grad(|| parallel.forward(x.clone()))?;
    assert!(!plain.requires_grad(), "the threads of replicas have the caller's mode");
    Ok(())
}

crate::on_both! {
    Auto(1..=3) gradients_are_those_of_one_device gpu2_gradients_are_those_of_one_device => |_| check();
}
