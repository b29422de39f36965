//! Tests of saved states of optimizers.

use warpline::{DType, Device, Result, SyncPolicy, Tensor, cuda, full};
use warpline_nn::StateDict;
use warpline_nn::optim::{
    AdadeltaOptions, Adam, AdamOptions, AdamWOptions, Optim, Optimizer, OptimizerState,
    RMSpropOptions, Rule, SGD, SGDOptions,
};

use super::{params, set_grads, values};
use crate::common::{World, schedules, worlds};

/// A run that is saved as tensors and resumed is bit-identical to an uninterrupted run.
fn resumes<R: Rule>(options: R, other: R, device: Device) -> Result<()> {
    let (one, two) = (params(device, DType::F32)?, params(device, DType::F32)?);
    let mut whole = Optim::<R>::new(one.clone(), options.clone())?;
    for i in 0..3 {
        set_grads(&one, i)?;
        whole.step()?;
    }
    let saved: StateDict = whole.state_dict()?.to_tensors()?;
    for (one, two) in one.iter().zip(&two) {
        two.detach().copy_(one, ())?;
    }
    let mut again = Optim::<R>::new(two.clone(), other)?;
    again.load_state_dict(&OptimizerState::from_tensors(&saved)?)?;
    assert_eq!(again.param_groups()[0].options.settings(), options.settings());
    for i in 3..6 {
        set_grads(&one, i)?;
        whole.step()?;
        set_grads(&two, i)?;
        again.step()?;
    }
    assert_eq!(values(&one)?, values(&two)?);
    // The states are equal too, because the resumed optimizer has its own copy of the saved state.
    let (one, two) = (whole.state_dict()?.to_tensors()?, again.state_dict()?.to_tensors()?);
    assert!(one.keys().eq(two.keys()), "{one:?} {two:?}");
    for ((name, one), (_, two)) in one.iter().zip(two.iter()) {
        let of = |t: &Tensor| t.to(DType::F64)?.to_vec::<f64>();
        assert_eq!(of(one)?, of(two)?, "{name}");
    }
    Ok(())
}

#[test]
fn runs_resume_to_the_bit() {
    worlds(1, |world: &World| {
        for place in world.places() {
            let momentum = SGDOptions::new().momentum(0.9).nesterov(true);
            resumes(momentum, SGDOptions::new(), place)?;
            let amsgrad = AdamOptions::new().amsgrad(true).lr(0.3);
            resumes(amsgrad, AdamOptions::new(), place)?;
            let on_device = AdamWOptions::new().capturable(true);
            resumes(on_device, AdamWOptions::new(), place)?;
            let rms = RMSpropOptions::new().momentum(0.1).centered(true);
            resumes(rms, RMSpropOptions::new(), place)?;
            resumes(AdadeltaOptions::new().rho(0.5), AdadeltaOptions::new(), place)?;
        }
        Ok(())
    });
}

/// A captured step keeps the memory of a tensor that the optimizer dropped.
#[test]
fn a_captured_step_keeps_a_tensor_that_a_loaded_state_lacks() {
    schedules(1, SyncPolicy::Auto, |_| {
        let weight = full([64], 0.0, "cuda")?.requires_grad_(true)?;
        weight.set_grad(&full([64], 1.0, "cuda")?)?;
        let options = SGDOptions::new().lr(1.0).momentum(0.5);
        let mut sgd = SGD::new(vec![weight.clone()], options)?;
        sgd.step()?;
        let (graph, ()) = cuda::graph(|| sgd.step())?;
        let mut state = sgd.state_dict()?;
        state.state.clear();
        sgd.load_state_dict(&state)?;
        drop(state);
        assert!(sgd.state_dict()?.state.is_empty());
        let others = (0..8).map(|_| full([64], 7.0, "cuda")).collect::<Result<Vec<_>>>()?;
        graph.replay()?; // by 1.5, from the former momentum
        sgd.step()?; // by 1, from a new momentum
        graph.replay()?; // by 1.75
        assert_eq!(weight.detach().to_vec::<f32>()?, [-1.0 - 1.5 - 1.0 - 1.75; 64]);
        for other in others {
            assert_eq!(other.to_vec::<f32>()?, [7.0; 64]);
        }
        Ok(())
    });
}

#[test]
fn states_have_pytorchs_names_and_invalid_states_change_nothing() {
    worlds(1, |_| {
        let params = params(Device::Cpu, DType::F32)?;
        let mut adam = Adam::new(params.clone(), ())?;
        set_grads(&params, 1)?;
        adam.step()?;
        let state = adam.state_dict()?;
        assert_eq!(state.state.keys().collect::<Vec<_>>(), [&0, &2], "the second had no gradient");
        let names: Vec<&str> = state.state[&0].keys().map(String::as_str).collect();
        assert_eq!(names, ["exp_avg", "exp_avg_sq", "step"]);
        let tensors = state.to_tensors()?;
        assert!(
            tensors.get("state.2.exp_avg").is_some() && tensors.get("param_groups.0.lr").is_some()
        );
        let mut wrong = state.clone();
        wrong.param_groups[0].settings.insert("lr".into(), 5.0);
        wrong.state.get_mut(&2).unwrap().insert("exp_avg".into(), full([4], 1.0, ())?);
        let error = adam.load_state_dict(&wrong).expect_err("a shape is wrong").to_string();
        assert!(error.contains("exp_avg of parameter 2") && error.contains("[4]"), "{error}");
        assert_eq!(adam.lr(0), 1e-3);
        let mut sgd = SGD::new(params, ())?;
        let error = sgd.load_state_dict(&state).expect_err("another optimizer's").to_string();
        assert!(error.contains("SGD has no setting amsgrad"), "{error}");
        Ok(())
    });
}
