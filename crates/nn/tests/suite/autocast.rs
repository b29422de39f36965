//! Tests of modules within `autocast`.

use std::sync::{Arc, Mutex};

use warpline::amp::{AutocastOptions, autocast};
use warpline::{DType, Device, Result, Tensor, ones, simulated, with_runtime};
use warpline_cuda_sys_safe::sim::CallKind;
use warpline_nn::{GRU, GRUCell, Hooked, LSTM, LSTMCell, Linear, Module, RNNCell};

use crate::boxes::SimBox;

const GPU: Device = Device::Cuda(Some(0));

fn moved<M: Module>(module: Result<M>) -> Result<M> {
    let mut module = module?;
    module.to(GPU)?;
    Ok(module)
}

/// The returned states have the dtype of the matrix products, whether or not initial states are given.
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

/// A capture cannot use the cache of converted weights, because its replays must read the weights that are
/// current at the replay.
#[test]
fn a_recurrent_layer_without_the_cache_converts_its_weights_once() {
    let sim = SimBox::lazy(1);
    sim.enter(|| {
        let net = moved(GRU::new(4, 3, ()))?;
        let region = |cache: bool| AutocastOptions::new().dtype(DType::BF16).cache_enabled(cache);
        let run = |times: usize, cache: bool| -> Result<(u64, Vec<f32>)> {
            let x = ones([times, 2, 4], GPU)?;
            let before = sim.count(CallKind::Launch);
            let output = autocast("cuda", region(cache), || net.forward(&x, None))?.0;
            let launches = sim.count(CallKind::Launch) - before;
            Ok((launches, output.to(DType::F32)?.to_vec::<f32>()?))
        };
        let of_a_step = |cache: bool| -> Result<u64> {
            // Fills the cache, or frees the copies in it.
            drop(run(5, cache)?);
            Ok(run(6, cache)?.0 - run(5, cache)?.0)
        };
        let (uncached, cached) = (of_a_step(false)?, of_a_step(true)?);
        assert_eq!(uncached, cached, "launches for each time step");
        let x = ones([5, 2, 4], GPU)?;
        let captured = || autocast("cuda", region(true), || net.forward(&x, None));
        let (graph, (output, _)) = warpline::cuda::graph(captured)?;
        graph.replay()?;
        assert_eq!(output.to(DType::F32)?.to_vec::<f32>()?, run(5, true)?.1);
        Ok(())
    });
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
