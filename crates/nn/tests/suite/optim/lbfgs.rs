//! Tests of L-BFGS: comparison with PyTorch's runs, errors, and saved states.

use std::collections::BTreeMap;

use serde_json::Value;
use warpline::autograd::no_grad;
use warpline::functional::{linear, mse_loss};
use warpline::{DType, Device, ErrorKind, Result, Tensor, tensor};
use warpline_nn::optim::{LBFGS, LBFGSOptions, LineSearch, Optimizer, OptimizerState, StepLR};

use crate::common::{World, cpu, golden_json, worlds};

fn numbers(json: &Value) -> Vec<f64> {
    json.as_array().expect("numbers").iter().map(|x| x.as_f64().expect("a number")).collect()
}

/// Makes a tensor of `[sizes, values]`.
fn made(json: &Value, device: Device) -> Result<Tensor> {
    let sizes: Vec<isize> = numbers(&json[0]).into_iter().map(|size| size as isize).collect();
    tensor(numbers(&json[1]), device)?.reshape(&sizes[..])
}

fn options(json: &Value) -> LBFGSOptions {
    let mut options = LBFGSOptions::new();
    for (name, value) in json.as_object().expect("options") {
        let float = || value.as_f64().expect("a number");
        options = match &name[..] {
            "lr" => options.lr(float()),
            "max_iter" => options.max_iter(float() as usize),
            "max_eval" => options.max_eval(float() as usize),
            "history_size" => options.history_size(float() as usize),
            "tolerance_grad" => options.tolerance_grad(float()),
            "tolerance_change" => options.tolerance_change(float()),
            "line_search_fn" => options.line_search_fn(LineSearch::StrongWolfe),
            other => panic!("{other}"),
        };
    }
    options
}

fn near(name: &str, value: f64, expected: f64) {
    let allowed = 1e-9 * expected.abs().max(1.0);
    assert!((value - expected).abs() <= allowed, "{name} is {value}, not {expected}");
}

fn rosenbrock(x: &Tensor) -> Result<Tensor> {
    let count = x.numel() - 1;
    let (x0, x1) = (x.narrow(0, 0, count)?, x.narrow(0, 1, count)?);
    let steep = x1.sub(&x0.square()?)?.square()?.mul(100)?;
    steep.add(&(1.0 - &x0)?.square()?)?.sum(())
}

fn runs(device: Device) -> Result<()> {
    let Some(golden) = golden_json("lbfgs.json") else { return Ok(()) };
    let (x, y) = (made(&golden["x"], device)?, made(&golden["y"], device)?);
    for run in golden["runs"].as_array().expect("runs") {
        let problem = run["problem"].as_str().expect("a name");
        let start = golden["start"][problem].as_object().expect("parameters").iter();
        let start =
            start.map(|(name, json)| Ok((&name[..], made(json, device)?.requires_grad_(true)?)));
        let params: BTreeMap<&str, Tensor> = start.collect::<Result<_>>()?;
        let loss_of = || match problem {
            "mlp" => {
                let hidden = linear(&x, &params["w1"], &params["b1"])?.tanh()?;
                mse_loss(&linear(&hidden, &params["w2"], &params["b2"])?, &y, ())
            }
            _ => rosenbrock(&params["x"]),
        };
        let mut optimizer =
            LBFGS::new(params.values().cloned().collect::<Vec<_>>(), options(&run["options"]))?;
        for (i, expected) in numbers(&run["losses"]).into_iter().enumerate() {
            let loss = optimizer.step(|optimizer| {
                optimizer.zero_grad()?;
                let loss = loss_of()?;
                loss.backward()?;
                Ok(loss)
            })?;
            near(&format!("{}: loss {i}", run["options"]), loss.item()?, expected);
        }
        for (name, param) in &params {
            let values = param.detach().to_vec::<f64>()?.into_iter();
            for (value, expected) in values.zip(numbers(&run["final"][*name])) {
                near(name, value, expected);
            }
        }
        let state = optimizer.state_dict()?;
        for name in ["n_iter", "func_evals"] {
            let expected = run[name].as_f64().expect("a count");
            assert_eq!(state.state[&0][name].item::<f64>()?, expected, "{name}");
        }
    }
    Ok(())
}

#[test]
fn lbfgs_runs_twenty_steps_as_in_pytorch() {
    cpu(|_| runs(Device::Cpu));
    worlds(1, |_| runs(Device::cuda(0)));
}

/// Takes a step on Rosenbrock's function. Returns the loss before the step.
fn step(optimizer: &mut LBFGS, x: &Tensor) -> Result<f64> {
    let loss = optimizer.step(|optimizer| {
        optimizer.zero_grad()?;
        let loss = rosenbrock(x)?;
        loss.backward()?;
        Ok(loss)
    })?;
    loss.item()
}

fn start(device: Device) -> Result<Tensor> {
    tensor([-1.2, 1.0, 0.5, -0.7], device)?.requires_grad_(true)
}

#[test]
fn a_resumed_lbfgs_is_bit_identical() {
    worlds(1, |world: &World| {
        for place in world.places() {
            for options in [
                LBFGSOptions::new().max_iter(2).lr(0.1),
                LBFGSOptions::new()
                    .max_iter(2)
                    .history_size(3)
                    .line_search_fn(LineSearch::StrongWolfe),
            ] {
                for steps in [0, 3] {
                    let (x, y) = (start(place)?, start(place)?);
                    let mut whole = LBFGS::new(vec![x.clone()], options)?;
                    for _ in 0..steps {
                        step(&mut whole, &x)?;
                    }
                    let saved = whole.state_dict()?.to_tensors()?;
                    y.detach().copy_(&x, ())?;
                    let mut again = LBFGS::new(vec![y.clone()], ())?;
                    again.load_state_dict(&OptimizerState::from_tensors(&saved)?)?;
                    assert_eq!(again.lr(0), options.lr);
                    for _ in 0..3 {
                        assert_eq!(
                            step(&mut whole, &x)?.to_bits(),
                            step(&mut again, &y)?.to_bits()
                        );
                    }
                    assert_eq!(x.to_vec::<f64>()?, y.to_vec::<f64>()?);
                    let (one, two) = (whole.state_dict()?, again.state_dict()?);
                    assert!(one.to_tensors()?.keys().eq(two.to_tensors()?.keys()));
                }
            }
        }
        Ok(())
    });
}

#[test]
fn states_of_lbfgs_have_pytorchs_names_and_invalid_states_change_nothing() -> Result<()> {
    let x = start(Device::Cpu)?;
    let options = LBFGSOptions::new()
        .max_iter(3)
        .max_eval(20)
        .line_search_fn(LineSearch::StrongWolfe)
        .lr(0.1);
    let mut optimizer = LBFGS::new(vec![x.clone()], options)?;
    step(&mut optimizer, &x)?;
    let state = optimizer.state_dict()?;
    let names: Vec<&str> = state.state[&0].keys().map(String::as_str).collect();
    let lists = ["old_dirs.0", "old_dirs.1", "old_stps.0", "old_stps.1", "prev_flat_grad"];
    let expected = [&["H_diag", "d", "func_evals", "n_iter"][..], &lists].concat();
    assert_eq!(names, [&expected[..], &["prev_loss", "ro.0", "ro.1", "t"]].concat());
    assert_eq!(state.param_groups[0].settings["max_eval"], 20.0);

    let broken = |change: &dyn Fn(&mut OptimizerState)| {
        let mut broken = state.clone();
        broken.param_groups[0].settings.insert("lr".into(), 5.0);
        change(&mut broken);
        broken
    };
    let short = warpline::zeros([3], DType::F64)?;
    for (state, said) in [
        (broken(&|s| drop(s.state.get_mut(&0).unwrap().remove("d"))), "no d"),
        (broken(&|s| drop(s.state.get_mut(&0).unwrap().insert("d".into(), short.clone()))), "[3]"),
        (broken(&|s| drop(s.state.get_mut(&0).unwrap().remove("old_stps.1"))), "1 old_stps"),
        (
            broken(&|s| drop(s.state.get_mut(&0).unwrap().insert("exp_avg".into(), short.clone()))),
            "exp_avg",
        ),
        (broken(&|s| s.param_groups.clear()), "0 groups"),
    ] {
        let error = optimizer.load_state_dict(&state).expect_err(said).to_string();
        assert!(error.contains(said), "{error}");
        assert_eq!(optimizer.lr(0), 0.1);
    }
    Ok(())
}

#[test]
fn errors_of_lbfgs_name_the_cause_and_keep_the_state() -> Result<()> {
    let x = start(Device::Cpu)?;
    let mut optimizer =
        LBFGS::new(vec![x.clone()], LBFGSOptions::new().line_search_fn(LineSearch::StrongWolfe))?;
    let error = Optimizer::step(&mut optimizer).expect_err("a closure is needed");
    assert!(error.to_string().contains("closure"), "{error}");

    // The second evaluation fails, within a line search, which restores the parameters.
    let before = x.to_vec::<f64>()?;
    let mut calls = 0;
    let error = optimizer.step(|optimizer| {
        calls += 1;
        if calls == 2 {
            return Err(warpline::Error::invalid("loss", "no second time"));
        }
        optimizer.zero_grad()?;
        let loss = rosenbrock(&x)?;
        loss.backward()?;
        Ok(loss)
    });
    let error = error.expect_err("the closure failed");
    assert!(error.op() == "loss" && error.to_string().contains("no second time"), "{error}");
    assert_eq!((x.to_vec::<f64>()?, optimizer.state_dict()?.state.len()), (before, 0));

    let (error, line) = (optimizer.step(|_| Ok(x.clone())), line!());
    let error = error.expect_err("four elements are no loss");
    assert_eq!((error.op(), error.location().map(|at| at.line())), ("step", Some(line)));
    for (options, option) in [
        (LBFGSOptions::new().lr(-1.0), "lr"),
        (LBFGSOptions::new().history_size(0), "history_size"),
        (LBFGSOptions::new().tolerance_grad(f64::NAN), "tolerance_grad"),
    ] {
        let error = LBFGS::new(vec![x.clone()], options).expect_err(option);
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
        assert!(error.to_string().contains(option), "{error}");
    }
    Ok(())
}

/// The closure records gradients even if `step` is called within `no_grad`. A scheduler can be created
/// for the optimizer.
#[test]
fn lbfgs_records_in_no_grad_and_takes_schedules() -> Result<()> {
    let x = start(Device::Cpu)?;
    let mut optimizer = LBFGS::new(vec![x.clone()], LBFGSOptions::new().lr(0.1).max_iter(1))?;
    let first = no_grad(|| step(&mut optimizer, &x))?;
    assert!(step(&mut optimizer, &x)? < first);
    StepLR::new(&mut optimizer, 1, 0.5)?;
    optimizer.set_lr(0, 0.05)?;
    assert_eq!((optimizer.lr(0), optimizer.setting(0, "max_eval")), (0.05, Some(1.0)));
    assert!(optimizer.set_setting(0, "momentum", 1.0).is_err());
    assert!(optimizer.set_setting(1, "lr", 1.0).is_err());
    Ok(())
}
