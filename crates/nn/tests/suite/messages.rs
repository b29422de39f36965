//! Tests that errors of modules, losses and schedules name the called item and the line of the call.

use warpline::{DType, Result, Tensor, ones, tensor};
use warpline_cuda_sys_safe::CudaCode;
use warpline_cuda_sys_safe::sim::{CallKind, Fault};
use warpline_nn::optim::{
    ExponentialLR, OneCycleLR, OneCycleLROptions, Optimizer, ReduceLROnPlateau,
    ReduceLROnPlateauOptions, SGD, Scheduler, SchedulerState, SequentialLR, StepLR,
};
use warpline_nn::{
    BatchNorm2d, Bilinear, Conv2d, ConvTranspose2d, CrossEntropyLoss, Embedding, GRU, GRUCell,
    GroupNorm, InstanceNorm2d, LSTM, LSTMCell, Layer, LayerNorm, Linear, MSELoss,
    MultiheadAttention, PReLU, PReLUOptions, RNN, RNNCell, ReLU, Sequential, TransformerEncoder,
    TransformerEncoderLayer, TransformerEncoderLayerOptions,
};

use crate::boxes::SimBox;
use crate::common::bad_calls::{everywhere, on_gpu, refused};

const OWN_LINE: u32 = line!() + 2;
fn own_activation(x: &Tensor) -> Result<Tensor> {
    x.matmul(&ones([3, 3], x.device())?)
}

#[test]
fn modules_fail_under_their_own_names() -> Result<()> {
    everywhere(|at| {
        let (x, wide) = (ones([2, 3], at)?, ones([2, 2, 4], at)?);
        refused("PReLU", PReLU::new(PReLUOptions::from(at).num_parameters(2))?.forward(&x));
        let text = refused("MultiheadAttention", MultiheadAttention::new(0, 1, at));
        assert!(text.contains("width must be at least 1"), "{text}");
        let attention = MultiheadAttention::new(4, 2, at)?;
        let narrow = ones([2, 2, 3], at)?;
        refused("MultiheadAttention", attention.forward(&narrow, &narrow, &narrow, ()));
        refused("MultiheadAttention", attention.forward(&wide, &narrow, &narrow, ()));
        refused("MultiheadAttention", attention.forward(&wide, &x, &x, ()));
        refused("linear", Linear::new(4, 2, at)?.forward(&x));
        refused("layer_norm", LayerNorm::new([4], at)?.forward(&x));
        refused("conv2d", Conv2d::new(2, 2, 3, at)?.forward(&wide));
        refused("batch_norm", BatchNorm2d::new(3, at)?.forward(&ones([2, 4, 2, 2], at)?));
        let index = tensor([9i64], at)?;
        let read = |t: Result<Tensor>| t?.to_vec::<f32>();
        refused("embedding", read(Embedding::new(3, 2, at)?.forward(&index)));
        let (rnn, cell) = (RNNCell::new(3, 4, at)?, LSTMCell::new(3, 4, at)?);
        refused("RNNCell", rnn.forward(&ones([2, 5], at)?, &ones([2, 4], at)?));
        refused("RNNCell", rnn.forward(&x, &ones([2, 5], at)?));
        let hidden = ones([2, 4], at)?;
        refused("LSTMCell", cell.forward(&ones([2, 5], at)?, (&hidden, &hidden)));
        refused("LSTMCell", cell.forward(&x, (&hidden, &x)));
        let lstm = LSTM::new(3, 4, at)?;
        let (steps, state, other) =
            (ones([5, 2, 3], at)?, ones([1, 2, 4], at)?, ones([1, 2, 5], at)?);
        refused("LSTM", lstm.forward(&steps, (&state, &other)));
        refused("LSTM", lstm.forward(&steps, (&other, &state)));
        for text in [
            refused("LSTM", lstm.forward(&ones([5, 2, 7], at)?, None)),
            refused("GRU", GRU::new(3, 4, at)?.forward(&ones([5, 2, 7], at)?, None)),
        ] {
            assert!(text.contains("[time, batch, 3] or [time, 3], not [5, 2, 7]"), "{text}");
        }
        let text = refused("RNNCell", rnn.forward(&ones([2, 5], at)?, None));
        assert!(text.contains("[batch, 3] or [3], not [2, 5]"), "{text}");
        let boxed: Box<dyn Layer> = Box::new(Linear::new(4, 2, at)?);
        refused("linear", boxed.forward(&x));
        refused("linear", warpline_nn::Forward::forward(&boxed, x.clone()));
        let nested = Sequential::new().with(ReLU).with(Sequential::new().with(boxed));
        refused("linear", nested.forward(&x));
        refused("linear", nested.clone().with(ReLU).forward(&x));
        let table = Sequential::new().with(Embedding::new(3, 2, at)?);
        refused("embedding", read(table.forward(&index)));
        let options = TransformerEncoderLayerOptions::from(at).activation(own_activation);
        let layer = TransformerEncoderLayer::new(4, 2, options)?;
        let error = layer.forward(&wide, ()).unwrap_err();
        let location = error.location().expect("a line");
        assert_eq!((error.op(), location.line()), ("matmul", OWN_LINE), "{error}");
        let double = ones([2, 4], (DType::F64, at))?;
        let text = refused("linear", Linear::new(4, 2, at)?.forward(&double));
        let operands = "input and weight must have the same dtype, but they have torch.float64 and torch.float32";
        assert!(text.contains(operands), "{text}");
        Ok(())
    })
}

/// The name that errors of a call must have, and the call.
type NamedCall = (&'static str, Box<dyn Fn(&Tensor) -> Result<Tensor>>);

/// Returns calls of modules that consist of several ops. The argument `x`, of shape [6, 4, 4], requires a
/// gradient.
fn calls(x: &Tensor) -> Result<Vec<NamedCall>> {
    let at = x.device();
    macro_rules! calls {
        ($($name:literal $module:expr, |$x:ident, $m:ident| $call:expr;)*) => {
            vec![$({
                let $m = $module?;
                let call: NamedCall = ($name, Box::new(move |$x| $call));
                call
            }),*]
        };
    }
    let layer = || TransformerEncoderLayer::new(4, 2, at);
    let labels = tensor([0i64, 1, 2, 3, 0, 1], at)?;
    Ok(calls! {
        "linear" Linear::new(4, 3, at), |x, m| m.forward(x);
        "Bilinear" Bilinear::new(4, 4, 3, at), |x, m| m.forward(x, x);
        "conv2d" Conv2d::new(6, 2, 3, at), |x, m| m.forward(x);
        "conv_transpose2d" ConvTranspose2d::new(6, 2, 3, at), |x, m| m.forward(x);
        "PReLU" PReLU::new(PReLUOptions::from(at)), |x, m| m.forward(x);
        "layer_norm" LayerNorm::new([4], at), |x, m| m.forward(x);
        "group_norm" GroupNorm::new(2, 4, at), |x, m| m.forward(x);
        "batch_norm" BatchNorm2d::new(4, at), |x, m| m.forward(&x.unsqueeze(-1)?);
        "instance_norm" InstanceNorm2d::new(6, at), |x, m| m.forward(x);
        "MultiheadAttention" MultiheadAttention::new(4, 2, at), |x, m| m.forward(x, x, x, ());
        "RNN" RNN::new(4, 3, at), |x, m| Ok(m.forward(x, None)?.0);
        "GRU" GRU::new(4, 3, at), |x, m| Ok(m.forward(x, None)?.0);
        "LSTM" LSTM::new(4, 3, at), |x, m| Ok(m.forward(x, None)?.0);
        "RNNCell" RNNCell::new(4, 3, at), |x, m| m.forward(&x.select(0, 0)?, None);
        "GRUCell" GRUCell::new(4, 3, at), |x, m| m.forward(&x.select(0, 0)?, None);
        "LSTMCell" LSTMCell::new(4, 3, at), |x, m| Ok(m.forward(&x.select(0, 0)?, None)?.0);
        "TransformerEncoderLayer" layer(), |x, m| m.forward(x, ());
        "TransformerEncoder" TransformerEncoder::new(&layer()?, 2, ()), |x, m| m.forward(x, ());
        "mse_loss" Ok::<_, warpline::Error>(MSELoss::new(())), |x, m| m.forward(x, &x.detach());
        "cross_entropy" Ok::<_, warpline::Error>(CrossEntropyLoss::new(())),
            |x, m| m.forward(&x.select(1, 0)?, &labels);
    })
}

/// Makes each launch of a module's forward and backward pass fail in turn. Each error names the line of the
/// call, and the module, its function, or an op that the call runs on the arguments.
#[test]
fn modules_and_their_gradients_fail_under_their_own_names() {
    let world = SimBox::lazy(1);
    world.enter(|| {
        let x = ones([6, 4, 4], "cuda")?.requires_grad_(true)?.clone();
        for (name, call) in calls(&x)? {
            let pass = || call(&x).and_then(|y| y.backward_with(&ones(y.size(), "cuda")?));
            // The first pass loads kernels.
            pass().unwrap_or_else(|e| panic!("{name}: {e}"));
            let before = world.count(CallKind::Launch);
            pass()?;
            let launches = (world.count(CallKind::Launch) - before) as usize;
            let mut lines = Vec::new();
            for n in 0..launches {
                let fault = Fault::new(CallKind::Launch, CudaCode::LAUNCH_OUT_OF_RESOURCES);
                world.sim.inject(fault.after(n));
                let outcome = pass();
                world.sim.clear_faults();
                let error = outcome.expect_err("a launch failed");
                let at = error.location().expect("a line");
                assert_eq!(at.file(), file!(), "{name}, launch {n} of {launches}: {error}");
                if ["ones", "select", "unsqueeze", "backward"].contains(&error.op()) {
                    continue;
                }
                assert_eq!(error.op(), name, "launch {n} of {launches}: {error}");
                lines.push(at.line());
            }
            assert!(lines.len() > 1, "{name}: {lines:?} of {launches} launches");
            assert!(lines.iter().all(|line| *line == lines[0]), "{name}: {lines:?}");
        }
        Ok(())
    });
}

#[test]
fn a_bilinear_map_refuses_batches_that_differ() -> Result<()> {
    everywhere(|at| {
        let map = Bilinear::new(3, 4, 6, at)?;
        let of = |a: &[usize], b: &[usize]| map.forward(&ones(a, at)?, &ones(b, at)?);
        // The same shapes are accepted and refused as in PyTorch 2.11.
        assert_eq!(of(&[3], &[4])?.size(), [6]);
        assert_eq!(of(&[2, 3], &[2, 4])?.size(), [2, 6]);
        assert_eq!(of(&[5, 2, 3], &[5, 2, 4])?.size(), [5, 2, 6]);
        let (one, two, many) = (ones([1, 3], at)?, ones([2, 4], at)?, ones([5, 2, 3], at)?);
        refused("Bilinear", map.forward(&one, &two));
        refused("Bilinear", map.forward(&many, &two));
        refused("Bilinear", map.forward(&ones([2, 1, 3], at)?, &ones([2, 5, 4], at)?));
        refused("Bilinear", map.forward(&ones([5, 3], at)?, &ones([4], at)?));
        refused("Bilinear", map.forward(&ones([2, 4], at)?, &ones([2, 3], at)?));
        refused("Bilinear", map.forward(&ones([], at)?, &ones([], at)?));
        Ok(())
    })
}

#[test]
fn schedules_fail_under_their_own_names() -> Result<()> {
    everywhere(|at| {
        let weight = || ones([1], at)?.requires_grad_(true);
        let mut sgd = SGD::new(vec![weight()?], ())?;
        refused("StepLR", StepLR::new(&mut sgd, 0, 0.5));
        let mut step = StepLR::new(&mut sgd, 1, 0.5)?;
        let mut power = ExponentialLR::new(&mut sgd, 0.5)?;
        refused("load_state_dict", step.load_state_dict(&SchedulerState::default()));
        refused("load_state_dict", power.load_state_dict(&SchedulerState::default()));
        refused("SequentialLR", SequentialLR::new(&mut sgd, Vec::new(), &[]));
        let plain = OneCycleLROptions::new().cycle_momentum(false);
        refused("OneCycleLR", OneCycleLR::new(&mut sgd, 1.0, 0, plain));
        let plateau = ReduceLROnPlateauOptions::new().factor(2.0);
        refused("ReduceLROnPlateau", ReduceLROnPlateau::new(&sgd, plateau));
        let mut sequence = SequentialLR::new(&mut sgd, vec![Box::new(step)], &[])?;
        let mut others = SGD::new(vec![weight()?], ())?;
        others.add_param_group(warpline_nn::optim::ParamGroup::new(vec![weight()?]))?;
        refused("StepLR", sequence.step(&mut others));
        refused("StepLR", sequence.restart(&mut others));
        refused("ExponentialLR", power.step(&mut others));
        refused("SGD", sgd.set_lr(7, 0.1));
        refused("SGD", sgd.set_setting(0, "no such setting", 0.1));
        Ok(())
    })
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_modules_fail_under_their_own_names() {
    on_gpu(&[
        modules_fail_under_their_own_names,
        a_bilinear_map_refuses_batches_that_differ,
        schedules_fail_under_their_own_names,
    ]);
}
