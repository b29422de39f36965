//! Tests of gradient scaling: runs with overflows compared with PyTorch's runs, states of optimizers, and waits.

use serde_json::Value;
use warpline::amp::autocast;
use warpline::autograd::no_grad;
use warpline::functional::{linear, mse_loss};
use warpline::{DType, Device, Result, SyncPolicy, Tensor, full, ones, tensor};
use warpline_nn::amp::{GradScaler, GradScalerOptions};
use warpline_nn::optim::{
    Adadelta, AdadeltaOptions, Adam, AdamOptions, AdamW, AdamWOptions, Optimizer, RMSprop,
    RMSpropOptions, SGD, SGDOptions, clip_grad_norm_,
};

use super::grad_scaler_errors::refused;
use crate::boxes::SimBox;
use crate::common::{World, cpu, golden_json, schedules, schedules64};

fn numbers(json: &Value) -> Vec<f64> {
    json.as_array().expect("numbers").iter().map(|x| x.as_f64().expect("a number")).collect()
}

/// Makes a tensor of `[sizes, values]`.
fn made(json: &Value, device: Device) -> Result<Tensor> {
    let sizes: Vec<isize> = numbers(&json[0]).into_iter().map(|size| size as isize).collect();
    tensor(numbers(&json[1]), device)?.to(DType::F32)?.reshape(&sizes[..])
}

fn optimizer(kind: &str, options: &Value, params: Vec<Tensor>) -> Result<Box<dyn Optimizer>> {
    let number = |name: &str| options[name].as_f64().unwrap_or(0.0);
    let flag = |name: &str| options[name].as_bool().unwrap_or(false);
    let lr = number("lr");
    Ok(match kind {
        "Adam" => Box::new(Adam::new(params, AdamOptions::new().lr(lr).amsgrad(flag("amsgrad")))?),
        "AdamW" => {
            let options = AdamWOptions::new().lr(lr).weight_decay(number("weight_decay"));
            Box::new(AdamW::new(params, options)?)
        }
        "SGD" => {
            let options = SGDOptions::new().lr(lr).momentum(number("momentum"));
            let options = options.dampening(number("dampening")).nesterov(flag("nesterov"));
            Box::new(SGD::new(params, options)?)
        }
        "RMSprop" => {
            let options = RMSpropOptions::new().lr(lr).momentum(number("momentum"));
            Box::new(RMSprop::new(params, options)?)
        }
        "Adadelta" => Box::new(Adadelta::new(params, AdadeltaOptions::new().lr(lr))?),
        other => panic!("{other}"),
    })
}

/// Repeats a run of `grad_scaler.py`.
fn repeats(golden: &Value, name: &str, device: Device) -> Result<()> {
    let (tensors, run) = (&golden["tensors"], &golden["runs"][name]);
    let has = |flag: &str| run["flags"].as_array().expect("flags").iter().any(|f| f == flag);
    let overflows = numbers(&run["overflows"]);
    let params = [made(&tensors["w1"], device)?, made(&tensors["w2"], device)?]
        .map(|p| p.requires_grad_(true));
    let params = params.into_iter().collect::<Result<Vec<Tensor>>>()?;
    let (x, y) = (made(&tensors["x"], device)?, made(&tensors["y"], device)?);
    let kind = run["optimizer"].as_str().expect("a name");
    let make = |params: &[Tensor]| optimizer(kind, &run["options"], params.to_vec());
    let mut optimizers: Vec<Box<dyn Optimizer>> = if has("two") {
        params.chunks(1).map(make).collect::<Result<_>>()?
    } else {
        vec![make(&params)?]
    };
    let options = GradScalerOptions::new().init_scale(1024.0).growth_interval(5);
    let mut scaler = GradScaler::new(options)?;
    for step in 0..50 {
        optimizers.iter().try_for_each(|optimizer| optimizer.zero_grad())?;
        for part in 0..if has("accumulated") { 2 } else { 1 } {
            let mut x = x.mul(1.0 + 0.01 * f64::from(step) + 0.5 * f64::from(part))?;
            if overflows.contains(&f64::from(step)) {
                x = x.mul(1e7)?;
            }
            let place = if device.is_cuda() { "cuda" } else { "cpu" };
            let out = autocast(place, DType::F16, || {
                let hidden = linear(&x, &params[0], None)?.tanh()?;
                linear(&hidden, &params[1], None)
            })?;
            scaler.scale(&mse_loss(&out.to(DType::F32)?, &y, ())?)?.backward()?;
        }
        for optimizer in &mut optimizers {
            if has("unscaled") {
                scaler.unscale_(&**optimizer)?;
                clip_grad_norm_(&params, 0.5, ())?;
            }
            scaler.step(&mut **optimizer)?;
        }
        scaler.update()?;
        assert_eq!(scaler.get_scale()?, run["scales"][step as usize], "{name}, step {step}");
        let tracker = scaler.state_dict()?.get("_growth_tracker").expect("saved").item::<i64>()?;
        assert_eq!(tracker, run["growth_trackers"][step as usize], "{name}, step {step}");
    }
    let state = optimizers[0].state_dict()?;
    let step = state.state.get(&0).and_then(|state| state.get("step"));
    if let (Some(steps), Some(step)) = (run["steps"].as_f64(), step) {
        assert_eq!(step.to_scalar()?.to_f64(), steps, "{name}: skipped steps do not count");
    }
    for (param, expected) in params.iter().zip(run["parameters"].as_array().expect("parameters")) {
        let values = param.detach().to_vec::<f32>()?;
        for (value, expected) in values.into_iter().zip(numbers(expected)) {
            let near = (f64::from(value) - expected).abs() <= 4e-3 * expected.abs().max(1.0);
            assert!(near, "{name}: {value} instead of {expected}");
        }
    }
    Ok(())
}

fn all_runs(device: Device) -> Result<()> {
    let Some(golden) = golden_json("grad_scaler.json") else { return Ok(()) };
    let runs = golden["runs"].as_object().expect("runs");
    assert!(runs.len() >= 10);
    runs.keys().try_for_each(|name| repeats(&golden, name, device))
}

#[test]
fn runs_with_overflows_equal_pytorchs_on_the_cpu() {
    cpu(|_| all_runs(Device::Cpu));
}

#[test]
fn runs_with_overflows_equal_pytorchs_on_simulated_gpus() {
    schedules(1, SyncPolicy::Auto, |_| all_runs(Device::cuda(0)));
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_runs_with_overflows_equal_pytorchs() {
    crate::common::gpu(1, SyncPolicy::Auto, |_| all_runs(Device::cuda(0)));
}

/// A parameter. All elements of its gradient are the slope that `backward` receives.
pub(super) struct Toy {
    pub(super) weight: Tensor,
}

impl Toy {
    pub(super) fn new(device: Device) -> Result<Self> {
        Ok(Self { weight: ones([4], device)?.requires_grad_(true)? })
    }

    pub(super) fn backward(&self, scaler: &mut GradScaler, slope: f64) -> Result<()> {
        scaler.scale(&self.weight.mul(slope)?.sum(())?)?.backward()
    }

    pub(super) fn sgd(&self) -> Result<SGD> {
        SGD::new(vec![self.weight.clone()], SGDOptions::new().lr(1.0))
    }

    pub(super) fn values(&self) -> Result<Vec<f32>> {
        self.weight.detach().to_vec()
    }
}

#[test]
fn a_step_leaves_unscaled_gradients_and_an_overflow_leaves_the_weights() {
    schedules(1, SyncPolicy::Auto, |world: &World| {
        for device in world.places() {
            let toy = Toy::new(device)?;
            let (mut sgd, mut scaler) = (toy.sgd()?, GradScaler::new(())?);
            toy.backward(&mut scaler, 0.5)?;
            scaler.step(&mut sgd)?;
            scaler.update()?;
            assert_eq!(toy.values()?, [0.5; 4]);
            assert_eq!(toy.weight.grad().expect("kept").to_vec::<f32>()?, [0.5; 4]);
            sgd.zero_grad()?;
            toy.backward(&mut scaler, f64::INFINITY)?;
            scaler.step(&mut sgd)?;
            scaler.update()?;
            assert_eq!(toy.values()?, [0.5; 4]);
            assert_eq!(scaler.get_scale()?, 32768.0);
        }
        Ok(())
    });
}

/// The host never waits in an iteration with a fused optimizer, and waits once in an iteration with any other
/// optimizer.
#[test]
fn a_scaled_step_does_not_wait_for_the_device() {
    let sim = SimBox::lazy(1);
    sim.enter(|| {
        let device = Device::cuda(0);
        let weight = ones([4], device)?.requires_grad_(true)?;
        let all = || vec![weight.clone()];
        let fused: [Box<dyn Optimizer>; 5] = [
            Box::new(SGD::new(all(), SGDOptions::new().momentum(0.9))?),
            Box::new(Adam::new(all(), ())?),
            Box::new(AdamW::new(all(), ())?),
            Box::new(RMSprop::new(all(), ())?),
            Box::new(Adam::new(all(), AdamOptions::new().capturable(true))?),
        ];
        let others: [Box<dyn Optimizer>; 1] = [Box::new(Adadelta::new(all(), ())?)];
        for (optimizers, waits) in
            [(fused.into_iter().collect::<Vec<_>>(), false), (others.into(), true)]
        {
            for mut optimizer in optimizers {
                let mut scaler = GradScaler::new(())?;
                let before = sim.host_waits();
                for _ in 0..3 {
                    optimizer.zero_grad()?;
                    scaler.scale(&weight.sum(())?)?.backward()?;
                    scaler.unscale_(&*optimizer)?;
                    scaler.step(&mut *optimizer)?;
                    scaler.update()?;
                }
                assert_eq!(sim.host_waits() > before, waits);
            }
        }
        Ok(())
    });
}

/// The forward pass, the backward pass and the step may run on different streams.
#[test]
fn scaled_steps_on_several_streams_do_not_race() {
    schedules64(1, |_| {
        let device = Device::cuda(0);
        let toy = Toy::new(device)?;
        let mut adam = Adam::new(vec![toy.weight.clone()], AdamOptions::new().lr(0.25))?;
        let mut scaler = GradScaler::new(GradScalerOptions::new().growth_interval(2))?;
        let side = warpline::cuda::Stream::new(device)?;
        for step in 0..4 {
            adam.zero_grad()?;
            let slope = if step == 1 { f64::NAN } else { 1.0 };
            warpline::cuda::with_stream(&side, || toy.backward(&mut scaler, slope))?;
            scaler.unscale_(&adam)?;
            warpline::cuda::with_stream(&side, || scaler.step(&mut adam))?;
            scaler.update()?;
        }
        // Adam takes three steps with equal gradients. Each step moves the values by the learning rate.
        for value in toy.values()? {
            assert!((value - 0.25).abs() < 1e-5, "{value}");
        }
        assert_eq!(scaler.get_scale()?, 65536.0);
        Ok(())
    });
}

#[test]
fn gradients_of_several_devices_share_one_scale() {
    schedules(2, SyncPolicy::Auto, |_| {
        for bad in [None, Some(0), Some(1)] {
            let toys = [Toy::new(Device::cuda(0))?, Toy::new(Device::cuda(1))?];
            let all: Vec<Tensor> = toys.iter().map(|toy| toy.weight.clone()).collect();
            let mut adam = Adam::new(all, AdamOptions::new().lr(0.5))?;
            let mut scaler = GradScaler::new(())?;
            for (which, toy) in toys.iter().enumerate() {
                let slope = if bad == Some(which) { f64::INFINITY } else { 2.0 };
                toy.backward(&mut scaler, slope)?;
            }
            scaler.step(&mut adam)?;
            scaler.update()?;
            for toy in &toys {
                let expected = if bad.is_some() { 1.0 } else { 0.5 };
                let close = toy.values()?.iter().all(|value| (value - expected).abs() < 1e-5);
                assert!(close, "{:?} for {bad:?}", toy.values()?);
            }
            assert_eq!(scaler.get_scale()?, if bad.is_some() { 32768.0 } else { 65536.0 });
        }
        Ok(())
    });
}

/// Captures a whole step with clipping and the update of the scale. Checks that its replays equal eager steps,
/// also after overflows.
fn replays(device: Device) -> Result<()> {
    let (direct, captured) = (Toy::new(device)?, Toy::new(device)?);
    let slope = full([], 1.0, (DType::F32, device))?;
    let optimizer = |toy: &Toy| {
        Adam::new(vec![toy.weight.clone()], AdamOptions::new().lr(0.25).capturable(true))
    };
    let scaler = || GradScaler::new(GradScalerOptions::new().init_scale(8.0).growth_interval(2));
    let step = |toy: &Toy, adam: &mut Adam, scaler: &mut GradScaler| {
        adam.zero_grad()?;
        scaler.scale(&toy.weight.mul(&slope)?.sum(())?)?.backward()?;
        scaler.unscale_(adam)?;
        clip_grad_norm_(std::slice::from_ref(&toy.weight), 0.5, ())?;
        scaler.step(adam)?;
        scaler.update()
    };
    let (mut adam_a, mut adam_b) = (optimizer(&direct)?, optimizer(&captured)?);
    let (mut scaler_a, mut scaler_b) = (scaler()?, scaler()?);
    step(&direct, &mut adam_a, &mut scaler_a)?;
    step(&captured, &mut adam_b, &mut scaler_b)?;
    let (graph, ()) = warpline::cuda::graph(|| step(&captured, &mut adam_b, &mut scaler_b))?;
    for value in [1.0, f64::INFINITY, 0.5, 0.25, 0.125, f64::NAN, 1.0] {
        no_grad(|| slope.fill_(value).map(drop))?;
        step(&direct, &mut adam_a, &mut scaler_a)?;
        graph.replay()?;
        assert_eq!(direct.values()?, captured.values()?);
        assert_eq!(scaler_a.get_scale()?, scaler_b.get_scale()?);
    }
    assert_eq!(scaler_a.get_scale()?, 8.0, "two overflows, two growths");
    Ok(())
}

#[test]
fn captured_scaled_steps_are_replayed() {
    schedules(1, SyncPolicy::Auto, |_| replays(Device::cuda(0)));
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_captured_scaled_steps_are_replayed() {
    crate::common::gpu(1, SyncPolicy::Auto, |_| replays(Device::cuda(0)));
}

/// The outputs of a model that is spread over several devices have one scale.
#[test]
fn several_outputs_are_scaled_on_their_devices() {
    let sim = SimBox::lazy(2);
    sim.enter(|| {
        let outputs = [ones([2], Device::cuda(0))?, ones([1], Device::cuda(1))?];
        let mut scaler = GradScaler::new(GradScalerOptions::new().init_scale(4.0))?;
        for (scaled, output) in scaler.scale_all(&outputs)?.iter().zip(&outputs) {
            assert_eq!((scaled.device(), scaled.size()), (output.device(), output.size()));
            assert_eq!(scaled.to_vec::<f32>()?[0], 4.0);
        }
        let waits = sim.host_waits();
        scaler.update_with(&full([], 2.0, Device::cuda(1))?)?;
        assert_eq!(sim.host_waits(), waits);
        assert_eq!(scaler.get_scale()?, 2.0);
        Ok(())
    });
}

/// `unscale_` also divides a gradient that is not contiguous, which the fused kernels do not support.
#[test]
fn a_strided_gradient_is_unscaled() -> Result<()> {
    let weight = ones([2, 3], ())?.t()?.detach().requires_grad_(true)?;
    let mut sgd = SGD::new(vec![weight.clone()], SGDOptions::new().lr(1.0))?;
    let mut scaler = GradScaler::new(())?;
    for slope in [0.5, f64::INFINITY] {
        weight.set_grad(None)?;
        drop(scaler.scale(&weight.sum(())?)?);
        let grad = full([2, 3], slope * 65536.0, ())?.t()?;
        assert!(!grad.is_contiguous());
        weight.set_grad(&grad)?;
        scaler.step(&mut sgd)?;
        scaler.update()?;
        assert_eq!(weight.detach().flatten(())?.to_vec::<f32>()?, [0.5; 6]);
    }
    assert_eq!(scaler.get_scale()?, 32768.0);
    Ok(())
}

#[test]
fn a_scaler_continues_from_its_saved_state() -> Result<()> {
    let toy = Toy::new(Device::Cpu)?;
    let mut sgd = toy.sgd()?;
    let options = GradScalerOptions::new().init_scale(4.0).growth_interval(3);
    let mut scaler = GradScaler::new(options)?;
    let mut step = |scaler: &mut GradScaler| {
        sgd.zero_grad()?;
        toy.backward(scaler, 1.0)?;
        scaler.step(&mut sgd)?;
        scaler.update()
    };
    step(&mut scaler)?;
    step(&mut scaler)?;
    let state = scaler.state_dict()?;
    let names: Vec<&str> = state.keys().collect();
    let expected =
        ["_growth_tracker", "backoff_factor", "growth_factor", "growth_interval", "scale"];
    assert_eq!(
        {
            let mut names = names;
            names.sort_unstable();
            names
        },
        expected
    );
    // A scaler that has not scaled a loss has no tensors yet; its first `scale` creates them from the loaded state. The
    // other scaler loads the state into its tensors.
    let mut early = GradScaler::new(())?;
    early.load_state_dict(&state)?;
    assert_eq!((early.get_scale()?, early.get_growth_interval()), (4.0, 3));
    let mut late = GradScaler::new(())?;
    step(&mut late)?;
    late.load_state_dict(&state)?;
    for scaler in [&mut early, &mut late] {
        step(scaler)?;
        assert_eq!(scaler.get_scale()?, 8.0, "the third step of the interval");
    }
    refused(early.load_state_dict(&Default::default()), "has no `scale`");
    // Counts are read exactly.
    let mut large = state.clone();
    large.insert("growth_interval", tensor((1i64 << 53) + 1, "cpu")?);
    early.load_state_dict(&large)?;
    assert_eq!(early.get_growth_interval(), (1 << 53) + 1);
    for (name, value, reason) in [
        ("growth_interval", tensor(2.5, "cpu")?, "must be an integer"),
        ("_growth_tracker", tensor(1i64 << 31, "cpu")?, "from 0 to 2³¹ - 1"),
        ("_growth_tracker", tensor(-1i64, "cpu")?, "from 0 to 2³¹ - 1"),
        ("growth_factor", tensor(0.5, "cpu")?, "must be above 1, but is 0.5"),
        ("growth_factor", tensor(f64::NAN, "cpu")?, "must be above 1, but is NaN"),
        ("backoff_factor", tensor(1.0, "cpu")?, "must be below 1, but is 1"),
        ("scale", tensor(f64::NAN, "cpu")?, "must be finite in `float32`, but is NaN"),
        ("scale", tensor(1e39, "cpu")?, "must be finite in `float32`"),
    ] {
        let mut wrong = state.clone();
        wrong.insert(name, value);
        let factors = (early.get_growth_factor(), early.get_backoff_factor());
        let scale = early.get_scale()?;
        refused(early.load_state_dict(&wrong), reason);
        assert_eq!((early.get_growth_factor(), early.get_backoff_factor()), factors);
        assert_eq!(early.get_scale()?, scale);
    }
    Ok(())
}

#[test]
fn settings_can_be_read_and_changed() -> Result<()> {
    let toy = Toy::new(Device::Cpu)?;
    let (mut sgd, mut scaler) = (toy.sgd()?, GradScaler::new(())?);
    assert_eq!((scaler.get_growth_factor(), scaler.get_backoff_factor()), (2.0, 0.5));
    assert_eq!((scaler.get_growth_interval(), scaler.is_enabled()), (2000, true));
    scaler.set_growth_factor(4.0);
    scaler.set_backoff_factor(0.25);
    scaler.set_growth_interval(1);
    toy.backward(&mut scaler, 1.0)?;
    scaler.step(&mut sgd)?;
    scaler.update()?;
    assert_eq!(scaler.get_scale()?, 262_144.0);
    scaler.update_with(64.0)?;
    assert_eq!(scaler.get_scale()?, 64.0);
    for new in [tensor(32.0f32, ())?, tensor([32.0f32], ())?] {
        scaler.update_with(2)?;
        scaler.update_with(&new)?;
        assert_eq!(scaler.get_scale()?, 32.0);
    }
    for wrong in [ones([2], ())?, ones([], ())?.requires_grad_(true)?] {
        refused(scaler.update_with(&wrong), "must have one element and require no gradient");
    }
    assert_eq!(scaler.get_scale()?, 32.0);
    refused(GradScaler::new(GradScalerOptions::new().growth_factor(1.0)).map(drop), "above 1");
    refused(GradScaler::new(GradScalerOptions::new().backoff_factor(1.0)).map(drop), "below 1");
    let endless = GradScalerOptions::new().init_scale(f64::INFINITY);
    refused(GradScaler::new(endless).map(drop), "must be finite in `float32`, but is inf");
    Ok(())
}

#[test]
fn a_disabled_scaler_changes_nothing() -> Result<()> {
    let toy = Toy::new(Device::Cpu)?;
    let mut sgd = toy.sgd()?;
    let mut scaler = GradScaler::new(GradScalerOptions::new().enabled(false))?;
    toy.backward(&mut scaler, 0.5)?;
    scaler.unscale_(&sgd)?;
    scaler.step(&mut sgd)?;
    scaler.update()?;
    scaler.update_with(3.0)?;
    assert_eq!(toy.values()?, [0.5; 4]);
    assert_eq!((scaler.get_scale()?, scaler.state_dict()?.len()), (1.0, 0));
    scaler.load_state_dict(&Default::default())
}
