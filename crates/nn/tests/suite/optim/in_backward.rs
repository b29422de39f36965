//! Tests of the recipe in `docs/from-pytorch.md` for optimizer steps within the backward pass.

use std::sync::Arc;

use warpline::{Device, Result, Tensor, cuda, manual_seed, randn};
use warpline_nn::optim::{AdamW, AdamWOptions, Optimizer};
use warpline_nn::{Linear, Module, ReLU, Sequential};

#[allow(dead_code)] // its `main` prints
#[path = "../../../examples/step_in_backward.rs"]
mod recipe;

fn net(device: Device) -> Result<Sequential> {
    manual_seed(3);
    let mut net =
        Sequential::new().with(Linear::new(8, 16, ())?).with(ReLU).with(Linear::new(16, 1, ())?);
    net.to(device)?;
    Ok(net)
}

fn loss(net: &Sequential, x: &Tensor) -> Result<Tensor> {
    net.forward(x)?.square()?.mean(())
}

fn steps_like_a_loop(device: Device) -> Result<()> {
    let x = randn([32, 8], device)?;
    let (plain, hooked) = (net(device)?, net(device)?);
    let options = AdamWOptions::new().lr(0.01);
    let mut optimizer = AdamW::new(plain.parameters(), options)?;
    let optimizers = recipe::step_in_backward(&hooked)?;
    for _ in 0..5 {
        loss(&plain, &x)?.backward()?;
        optimizer.step()?;
        optimizer.zero_grad()?;
        loss(&hooked, &x)?.backward()?;
        assert!(hooked.parameters().iter().all(|parameter| parameter.grad().is_none()));
    }
    for (plain, hooked) in plain.parameters().iter().zip(hooked.parameters()) {
        assert_eq!(plain.to_vec::<f32>()?, hooked.to_vec::<f32>()?);
    }
    drop(optimizers);
    loss(&hooked, &x)?.backward()?;
    assert!(hooked.parameters().iter().all(|parameter| parameter.grad().is_some()));
    Ok(())
}

#[test]
fn steps_in_the_backward_pass_are_those_of_a_loop() {
    crate::common::worlds(1, |world| world.places().into_iter().try_for_each(steps_like_a_loop));
}

#[test]
fn a_model_that_steps_in_its_backward_pass_is_freed_with_its_optimizers() {
    crate::common::worlds(1, |_| {
        let device = Device::cuda(0);
        let before = cuda::memory_allocated(0)?;
        for model_first in [true, false] {
            let net = net(device)?;
            let alive = Arc::new(());
            let owned = alive.clone();
            net.parameters()[0].register_hook(move |_| {
                let _ = &owned;
                Ok(None)
            })?;
            let optimizers = recipe::step_in_backward(&net)?;
            loss(&net, &randn([32, 8], device)?)?.backward()?;
            if model_first {
                drop(net);
                drop(optimizers);
            } else {
                drop(optimizers);
                drop(net);
            }
            assert_eq!(Arc::strong_count(&alive), 1);
            assert_eq!(cuda::memory_allocated(0)?, before);
        }
        Ok(())
    });
}

#[test]
fn the_page_shows_the_recipe() {
    // Cargo runs tests in the package's folder.
    let page = std::fs::read_to_string("../../docs/from-pytorch.md").unwrap();
    let program = include_str!("../../../examples/step_in_backward.rs");
    let begin = program.find("/// Updates each parameter").unwrap();
    let recipe = &program[begin..program.find("fn main").unwrap()];
    assert!(page.contains(recipe.trim_end()), "docs/from-pytorch.md has another recipe");
}
