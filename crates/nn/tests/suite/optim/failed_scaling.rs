//! Tests of scaled steps whose launches or captures fail.

use warpline::{DType, Device, ErrorKind, Result, cuda, ones};
use warpline_cuda_sys_safe::CudaCode;
use warpline_cuda_sys_safe::sim::{CallKind, Fault};
use warpline_nn::amp::{GradScaler, GradScalerOptions};
use warpline_nn::optim::{Adadelta, Optimizer, SGD, SGDOptions};

use super::grad_scaler_errors::refused;
use crate::boxes::SimBox;

/// A call that fails at its second launch has already divided the gradients of the first launch by the scale.
#[test]
fn a_failed_call_does_not_unscale_gradients_twice() {
    let sim = SimBox::lazy(1);
    sim.enter(|| {
        let device = Device::cuda(0);
        // Gradients of two dtypes need two launches.
        let weights = [DType::F32, DType::F64].map(|dtype| ones([4], (dtype, device)));
        let weights = weights.into_iter().collect::<Result<Vec<_>>>()?;
        let backward = |scaler: &mut GradScaler| -> Result<()> {
            for weight in &weights {
                weight.requires_grad_(true)?.set_grad(None)?;
                scaler.scale(&weight.sum(())?)?.backward()?;
            }
            Ok(())
        };
        let fails_after = |launches| {
            let code = CudaCode::LAUNCH_OUT_OF_RESOURCES;
            sim.sim.inject(Fault::new(CallKind::Launch, code).after(launches));
        };
        let mut sgd = SGD::new(weights.clone(), SGDOptions::new().lr(0.5))?;
        let mut adadelta = Adadelta::new(weights.clone(), ())?;
        let mut scaler = GradScaler::new(GradScalerOptions::new().init_scale(4.0))?;
        let grads = || weights[0].grad().expect("a gradient").to_vec::<f32>();
        let failed = "some gradients of this optimizer may be unscaled";
        // The mark is zeroed before the launches. A fused step first checks both gradients.
        for (which, launches) in [("unscale_", 2), ("step", 2), ("fused step", 4)] {
            backward(&mut scaler)?;
            fails_after(launches);
            let mut call = |scaler: &mut GradScaler| match which {
                "unscale_" => scaler.unscale_(&sgd),
                "step" => scaler.step(&mut adadelta),
                _ => scaler.step(&mut sgd),
            };
            let error = call(&mut scaler).expect_err("the second launch");
            assert!(matches!(error.kind(), ErrorKind::Driver), "{which}: {error}");
            assert_eq!(grads()?, [1.0; 4], "{which}");
            refused(call(&mut scaler), failed);
            assert_eq!(grads()?, [1.0; 4], "{which}");
            scaler.update()?;
            assert_eq!(scaler.get_scale()?, 4.0);
        }
        // The next iteration is as usual.
        let before = weights[0].detach().to_vec::<f32>()?[0];
        backward(&mut scaler)?;
        scaler.step(&mut sgd)?;
        scaler.update()?;
        assert_eq!(weights[0].detach().to_vec::<f32>()?, [before - 0.5; 4]);
        Ok(())
    });
}

/// A capture that fails, and a graph that is dropped before a replay, neither divided a gradient nor took a step.
#[test]
fn a_lost_capture_leaves_the_scaler_usable() {
    let sim = SimBox::lazy(1);
    sim.enter(|| {
        let weight = ones([4], Device::cuda(0))?.requires_grad_(true)?;
        let mut sgd = SGD::new(vec![weight.clone()], SGDOptions::new().lr(0.5))?;
        let mut scaler = GradScaler::new(GradScalerOptions::new().init_scale(4.0))?;
        let backward = |scaler: &mut GradScaler| -> Result<()> {
            weight.set_grad(None)?;
            scaler.scale(&weight.sum(())?)?.backward()
        };
        backward(&mut scaler)?;
        for (round, lost) in ["unscale_", "step", "graph"].into_iter().enumerate() {
            // The second attempt is captured or eager.
            for is_captured in [true, false] {
                let captured = cuda::graph(|| {
                    match lost {
                        "unscale_" => scaler.unscale_(&sgd)?,
                        _ => scaler.step(&mut sgd)?,
                    }
                    // Reads are not allowed in a capture.
                    if lost == "graph" { Ok(0.0) } else { scaler.get_scale() }
                });
                assert_eq!(captured.is_ok(), lost == "graph", "{lost}");
                drop(captured);
                refused(scaler.update(), "no gradients were checked since the last update");
                let mut step = || {
                    backward(&mut scaler)?;
                    scaler.step(&mut sgd)?;
                    scaler.update()
                };
                if is_captured {
                    cuda::graph(step)?.0.replay()?
                } else {
                    step()?
                }
                let steps = 2 * round + usize::from(!is_captured) + 1;
                let expected = 1.0 - 0.5 * steps as f32;
                assert_eq!(weight.detach().to_vec::<f32>()?, [expected; 4], "{lost}");
            }
        }
        assert_eq!(scaler.get_scale()?, 4.0);
        Ok(())
    });
}

/// Each replay would use the check that ran before the capture. The refused calls leave the check to eager calls.
#[test]
fn gradients_that_were_unscaled_before_a_capture_are_refused_in_it() {
    let sim = SimBox::lazy(1);
    sim.enter(|| {
        let weight = ones([4], Device::cuda(0))?.requires_grad_(true)?;
        let mut sgd = SGD::new(vec![weight.clone()], SGDOptions::new().lr(0.5))?;
        let mut scaler = GradScaler::new(GradScalerOptions::new().init_scale(4.0))?;
        scaler.scale(&weight.sum(())?)?.backward()?;
        scaler.unscale_(&sgd)?;
        let text = "the gradients were unscaled before the capture";
        refused(cuda::graph(|| scaler.step(&mut sgd)).map(drop), text);
        refused(cuda::graph(|| scaler.update()).map(drop), text);
        scaler.step(&mut sgd)?;
        scaler.update()?;
        assert_eq!(weight.detach().to_vec::<f32>()?, [0.5; 4]);
        // A capture that ends before the eager update is one iteration.
        let (graph, ()) = cuda::graph(|| {
            sgd.zero_grad_in_place()?;
            scaler.scale(&weight.sum(())?)?.backward()?;
            scaler.step(&mut sgd)
        })?;
        graph.replay()?;
        scaler.update()?;
        assert_eq!(weight.detach().to_vec::<f32>()?, [0.0; 4]);
        Ok(())
    });
}
