//! Runs optimizer steps within the backward pass, so that each gradient is used and freed before the next gradient is
//! computed.

use std::sync::{Arc, Mutex, PoisonError};

use warpline::{Result, randn};
use warpline_nn::optim::{AdamW, AdamWOptions, Optimizer};
use warpline_nn::{Linear, Module, ReLU, Sequential};

/// Updates each parameter as soon as its gradient is complete, until the returned optimizers are dropped.
pub(crate) fn step_in_backward(net: &impl Module) -> Result<Vec<Arc<Mutex<AdamW>>>> {
    let mut optimizers = Vec::new();
    for parameter in net.parameters() {
        let options = AdamWOptions::new().lr(0.01);
        let optimizer = Arc::new(Mutex::new(AdamW::new(vec![parameter.clone()], options)?));
        // The parameter owns its hook, and the optimizer owns the parameter. A hook that owned the optimizer would form
        // a cycle, and nothing would be freed.
        let weak = Arc::downgrade(&optimizer);
        parameter.register_post_accumulate_grad_hook(move |parameter| {
            let Some(optimizer) = weak.upgrade() else { return Ok(()) };
            optimizer.lock().unwrap_or_else(PoisonError::into_inner).step()?;
            parameter.set_grad(None)
        })?;
        optimizers.push(optimizer);
    }
    Ok(optimizers)
}

fn main() -> Result<()> {
    let net =
        Sequential::new().with(Linear::new(8, 16, ())?).with(ReLU).with(Linear::new(16, 1, ())?);
    let _optimizers = step_in_backward(&net)?;
    let x = randn([32, 8], ())?;
    for _ in 0..5 {
        let loss = net.forward(&x)?.square()?.mean(())?;
        loss.backward()?;
        println!("{}", loss.item::<f32>()?);
    }
    Ok(())
}
