//! Tests of scaled steps whose launches fail.

use warpline::{DType, Device, ErrorKind, Result, ones};
use warpline_cuda_sys_safe::CudaCode;
use warpline_cuda_sys_safe::sim::{CallKind, Fault};
use warpline_nn::amp::{GradScaler, GradScalerOptions};
use warpline_nn::optim::{Adadelta, SGD, SGDOptions};

use super::grad_scaler::refused;
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
