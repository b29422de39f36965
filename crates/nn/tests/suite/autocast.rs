//! Modules in regions of autocast.

use std::sync::{Arc, Mutex};

use warpline::amp::autocast;
use warpline::{DType, Device, Result, Tensor, ones, simulated, with_runtime};
use warpline_nn::{GRU, GRUCell, Hooked, LSTM, LSTMCell, Linear, Module, RNNCell};

const GPU: Device = Device::Cuda(Some(0));

fn moved<M: Module>(module: Result<M>) -> Result<M> {
    let mut module = module?;
    module.to(GPU)?;
    Ok(module)
}

/// The states have the dtype of the products, whether they are given or not.
#[test]
fn recurrent_modules_compute_in_half_the_width() -> Result<()> {
    with_runtime(&simulated(1)?, || {
        let (x, h) = (ones([2, 4], GPU)?, ones([2, 3], GPU)?);
        autocast("cuda", DType::BF16, || {
            let half = |t: &Tensor| assert_eq!(t.dtype(), DType::BF16);
            half(&moved(RNNCell::new(4, 3, ()))?.forward(&x, &h)?);
            half(&moved(GRUCell::new(4, 3, ()))?.forward(&x, &h)?);
            half(&moved(GRUCell::new(4, 3, ()))?.forward(&x, None)?);
            let (hidden, cell) = moved(LSTMCell::new(4, 3, ()))?.forward(&x, (&h, &h))?;
            half(&hidden);
            half(&cell);
            let sequence = ones([5, 2, 4], GPU)?;
            half(&moved(GRU::new(4, 3, ()))?.forward(&sequence, None)?.0);
            half(&moved(LSTM::new(4, 3, ()))?.forward(&sequence, None)?.0);
            Ok(())
        })
    })
}

#[test]
fn backward_hooks_of_modules_run_outside_the_region() -> Result<()> {
    let net = Hooked::new(Linear::new(2, 2, ())?);
    let seen = Arc::new(Mutex::new(None));
    let into = seen.clone();
    let _handle = net.register_full_backward_hook(move |_, grad_output| {
        let grad = grad_output[0].as_ref().expect("a gradient").to(DType::F32)?;
        *into.lock().unwrap() = Some(grad.matmul(&grad.t()?)?.dtype());
        Ok(None)
    });
    let x = ones([1, 2], ())?.requires_grad_(true)?;
    let y = autocast("cpu", (), || net.forward(x))?;
    y.to(DType::F32)?.sum(())?.backward()?;
    assert_eq!(*seen.lock().unwrap(), Some(DType::F32));
    Ok(())
}
