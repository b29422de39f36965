//! Calls of `warpline-nn`.

use std::collections::BTreeMap;

use warpline::{Result, Tensor, ones};
use warpline_nn::Module;
use warpline_nn::amp::{GradScaler, GradScalerOptions};
use warpline_nn::optim::{
    Adam, ConstantLR, ConstantLROptions, CosineAnnealingLR, CosineAnnealingWarmRestarts,
    CosineAnnealingWarmRestartsOptions, GroupState, LBFGS, LBFGSOptions, LinearLR, LinearLROptions,
    MultiStepLR, OneCycleLR, Optimizer, OptimizerState, ReduceLROnPlateau,
    ReduceLROnPlateauOptions, SGD, Scheduler, SequentialLR, StepLR,
};
use warpline_nn::utils::rnn::{PadSequenceOptions, pad_sequence};
use warpline_nn::{
    BatchNorm2d, Bilinear, Conv1d, Conv2d, ConvOptions, ConvTranspose2d, ConvTransposeOptions,
    Embedding, EmbeddingFromPretrainedOptions, EmbeddingOptions, Flatten, FlattenOptions,
    GroupNorm, LSTM, LSTMCell, LayerNorm, Linear, LinearOptions, MultiheadAttention, PReLU,
    PReLUOptions, RMSNorm, RecurrentOptions, TransformerEncoder, TransformerEncoderLayer,
    TransformerEncoderLayerOptions, Unflatten,
};

use super::cases::{at2, cases, m};
use super::{Case, ResultSummary, Summarize};

pub(crate) const MODULES: &[Case] = cases! {
    "Linear::new" |at, n| Parameters(Linear::new(n.u, 2, at)?);
    "Linear::new" |at, n| Parameters(Linear::new(2, n.u, at)?);
    "Linear::new" |at, n| Parameters(Linear::new(2, n.u, LinearOptions::from(at).bias(false))?);
    "Bilinear::new" |at, n| Parameters(Bilinear::new(n.u, 2, 2, at)?);
    "Bilinear::new" |at, n| Parameters(Bilinear::new(2, n.u, n.u, LinearOptions::from(at).bias(false))?);
    "PReLU::new" |at, n| Parameters(PReLU::new(PReLUOptions::from(at).num_parameters(n.u))?);
    "Embedding::new" |at, n| Parameters(Embedding::new(n.u, 2, at)?);
    "Embedding::new" |at, n| Parameters(Embedding::new(2, 2, EmbeddingOptions::from(at).padding_idx(n.i))?);
    "Embedding::new" |at, n| Parameters(Embedding::new(2, n.u, EmbeddingOptions::from(at).padding_idx(0))?);
    "Embedding::from_pretrained" |at, n| Parameters(Embedding::from_pretrained(&m(at), EmbeddingFromPretrainedOptions::new().padding_idx(n.i))?);
    "pad_sequence" |at, n| pad_sequence(&[at2(at), at2(at).narrow(0, 0, 1)?], PadSequenceOptions::new().padding_value(n.l))?;
    "MultiheadAttention::new" |at, n| Parameters(MultiheadAttention::new(n.u, 1, at)?);
    "MultiheadAttention::new" |at, n| Parameters(MultiheadAttention::new(4, n.u, at)?);
    "MultiheadAttention::new" |at, n| Parameters(MultiheadAttention::new(n.u, n.u, at)?);
    "LayerNorm::new" |at, n| Parameters(LayerNorm::new([n.u], at)?);
    "RMSNorm::new" |at, n| Parameters(RMSNorm::new([n.u], at)?);
    "GroupNorm::new" |at, n| Parameters(GroupNorm::new(n.u, 4, at)?);
    "GroupNorm::new" |at, n| Parameters(GroupNorm::new(1, n.u, at)?);
    "BatchNorm2d::new" |at, n| Parameters(BatchNorm2d::new(n.u, at)?);
    "LSTMCell::new" |at, n| Parameters(LSTMCell::new(n.u, 2, at)?);
    "LSTMCell::new" |at, n| Parameters(LSTMCell::new(2, n.u, at)?);
    "TransformerEncoderLayer::new" |at, n| Parameters(TransformerEncoderLayer::new(n.u, 1, at)?);
    "TransformerEncoderLayer::new" |at, n| Parameters(TransformerEncoderLayer::new(4, n.u, at)?);
    "TransformerEncoderLayer::new" |at, n| Parameters(TransformerEncoderLayer::new(4, 1, TransformerEncoderLayerOptions::from(at).dim_feedforward(n.u))?);
    "TransformerEncoder::new" |at, n| Parameters(TransformerEncoder::new(&layer(at)?, n.u, ())?);
    "LSTM::new" |at, n| Parameters(LSTM::new(n.u, 2, at)?);
    "LSTM::new" |at, n| Parameters(LSTM::new(2, n.u, at)?);
    "LSTM::new" |at, n| Parameters(LSTM::new(2, 2, RecurrentOptions::from(at).num_layers(n.u))?);
    "Conv1d::new" |at, n| Parameters(Conv1d::new(n.u, 2, 1, at)?);
    "Conv1d::new" |at, n| Parameters(Conv1d::new(2, 2, n.u, at)?);
    "Conv2d::new" |at, n| Parameters(Conv2d::new(2, n.u, 1, ConvOptions::from(at).groups(n.u))?);
    "Conv2d::new" |at, n| circular(at, n.u)?;
    "ConvTranspose2d::new" |at, n| Parameters(ConvTranspose2d::new(n.u, n.u, 2, ConvTransposeOptions::from(at).groups(n.u))?);
    "save_sharded" |at, n| saved(at, n.u)?;
    "flatten" |at, n| Flatten::new(FlattenOptions::new().start_dim(n.i)).forward(&m(at))?;
    "flatten" |at, n| Flatten::new(FlattenOptions::new().end_dim(n.i)).forward(&m(at))?;
    "unflatten" |at, n| Unflatten::new(n.i, [1, -1]).forward(&m(at))?;
    "unflatten" |at, n| Unflatten::new(0, [n.i, -1]).forward(&m(at))?;
    "LBFGS::new" |at, n| minimized(at, LBFGSOptions::new().max_iter(n.u))?;
    "LBFGS::new" |at, n| minimized(at, LBFGSOptions::new().max_eval(n.u))?;
    "LBFGS::new" |at, n| minimized(at, LBFGSOptions::new().history_size(n.u))?;
    "GradScaler::new" |at, n| scaled(at, GradScalerOptions::new().growth_interval(n.l), |_| {})?;
    "set_growth_interval" |at, n| scaled(at, GradScalerOptions::new(), |s| s.set_growth_interval(n.l))?;
    "load_state_dict" |at, n| restored(at, |_| OptimizerState { state: [(n.u, BTreeMap::new())].into(), ..Default::default() })?;
    "load_state_dict" |at, n| restored(at, |state| {
        let group = GroupState { params: vec![n.u], ..state.param_groups[0].clone() };
        OptimizerState { param_groups: vec![group], ..state }
    })?;
    "load_state_dict" |at, n| restored(at, |mut state| {
        let steps = warpline::tensor(n.l, "cpu").expect("a number");
        state.state.get_mut(&0).expect("a state").insert("step".into(), steps);
        state
    })?;
    "load_state_dict" |at, n| stepped(at, |o| resumed(StepLR::new(o, 2, 0.5)?, n.l))?;
    "load_state_dict" |at, n| stepped(at, |o| resumed(MultiStepLR::new(o, &[2], 0.5)?, n.l))?;
    "load_state_dict" |at, n| stepped(at, |o| resumed(LinearLR::new(o, ())?, n.l))?;
    "load_state_dict" |at, n| stepped(at, |o| resumed(CosineAnnealingLR::new(o, 5, ())?, n.l))?;
    "load_state_dict" |at, n| stepped(at, |o| resumed(CosineAnnealingWarmRestarts::new(o, 2, ())?, n.l))?;
    "CosineAnnealingWarmRestarts::step_to" |at, n| stepped(at, |o| {
        let mut scheduler = CosineAnnealingWarmRestarts::new(o, 2, restarts(2))?;
        scheduler.step_to(o, n.l as f64)?;
        Ok(scheduler)
    })?;
    "load_state_dict" |at, n| stepped(at, |o| resumed(OneCycleLR::new(o, 1.0, 5, ())?, n.l))?;
    "ReduceLROnPlateau::new" |at, n| plateau(at, ReduceLROnPlateauOptions::new().patience(n.n))?;
    "ReduceLROnPlateau::new" |at, n| plateau(at, ReduceLROnPlateauOptions::new().patience(0).cooldown(n.n))?;
    "StepLR::new" |at, n| stepped(at, |o| StepLR::new(o, n.n, 0.5))?;
    "MultiStepLR::new" |at, n| stepped(at, |o| MultiStepLR::new(o, &[n.l], 0.5))?;
    "ConstantLR::new" |at, n| stepped(at, |o| ConstantLR::new(o, ConstantLROptions::new().total_iters(n.n)))?;
    "LinearLR::new" |at, n| stepped(at, |o| LinearLR::new(o, LinearLROptions::new().total_iters(n.n)))?;
    "CosineAnnealingLR::new" |at, n| stepped(at, |o| CosineAnnealingLR::new(o, n.n, ()))?;
    "OneCycleLR::new" |at, n| stepped(at, |o| OneCycleLR::new(o, 1.0, n.n, ()))?;
    "CosineAnnealingWarmRestarts::new" |at, n| stepped(at, |o| CosineAnnealingWarmRestarts::new(o, n.n, restarts(2)))?;
    "CosineAnnealingWarmRestarts::new" |at, n| stepped(at, |o| CosineAnnealingWarmRestarts::new(o, 1, restarts(n.n)))?;
    "SequentialLR::new" |at, n| stepped(at, |o| {
        let both: Vec<Box<dyn Scheduler>> =
            vec![Box::new(StepLR::new(o, 1, 0.5)?), Box::new(StepLR::new(o, 1, 0.5)?)];
        SequentialLR::new(o, both, &[n.l])
    })?;
};

/// A module with random parameters. Only the sizes of the parameters are compared.
struct Parameters<M>(M);

impl<M: Module> Summarize for Parameters<M> {
    fn summarize(&self) -> Result<ResultSummary> {
        let sizes: Vec<String> =
            self.0.parameters().iter().map(|p| format!("{:?}", p.size())).collect();
        Ok(ResultSummary(sizes.join(" ")))
    }
}

impl Summarize for f64 {
    fn summarize(&self) -> Result<ResultSummary> {
        Ok(ResultSummary(self.to_string()))
    }
}

/// Runs a convolution with circular padding.
fn circular(at: &str, n: usize) -> Result<Tensor> {
    use warpline::functional::PadMode;
    let options = ConvOptions::from(at).padding([n, 0]).padding_mode(PadMode::Circular);
    let conv = Conv2d::new(1, 1, 1, options)?;
    conv.forward(&m(at).reshape([1, 1, 2, 3])?)?.zeros_like(())
}

fn restarts(t_mult: u32) -> CosineAnnealingWarmRestartsOptions {
    CosineAnnealingWarmRestartsOptions::new().t_mult(t_mult)
}

fn stepped<S: Scheduler>(at: &str, make: impl FnOnce(&mut SGD) -> Result<S>) -> Result<f64> {
    let weight = ones([1], at)?.requires_grad_(true)?.clone();
    let run = || -> Result<f64> {
        let mut sgd = SGD::new(vec![weight], ())?;
        let mut scheduler = make(&mut sgd)?;
        for _ in 0..3 {
            scheduler.step(&mut sgd)?;
        }
        Ok(sgd.lr(0))
    };
    run()
}

fn layer(at: &str) -> Result<TransformerEncoderLayer> {
    TransformerEncoderLayer::new(4, 1, TransformerEncoderLayerOptions::from(at).dim_feedforward(2))
}

/// Returns the parameter after a step of L-BFGS.
fn minimized(at: &str, options: LBFGSOptions) -> Result<Tensor> {
    let weight = ones([1], at)?.requires_grad_(true)?.clone();
    let mut optimizer = LBFGS::new(vec![weight.clone()], options)?;
    optimizer.step(|optimizer| {
        optimizer.zero_grad()?;
        let loss = weight.square()?.sum(())?;
        loss.backward()?;
        Ok(loss)
    })?;
    Ok(weight.detach())
}

/// Returns the scale after a step.
fn scaled(at: &str, options: GradScalerOptions, set: impl FnOnce(&mut GradScaler)) -> Result<f64> {
    let weight = ones([1], at)?.requires_grad_(true)?.clone();
    let mut sgd = SGD::new(vec![weight.clone()], ())?;
    let mut scaler = GradScaler::new(options)?;
    set(&mut scaler);
    scaler.scale(&weight.sum(())?)?.backward()?;
    scaler.step(&mut sgd)?;
    scaler.update()?;
    scaler.get_scale()
}

/// Takes a step of Adam, loads an edited state, takes another step, and returns the parameter.
fn restored(at: &str, edit: impl FnOnce(OptimizerState) -> OptimizerState) -> Result<Tensor> {
    let weight = ones([1], at)?.requires_grad_(true)?.clone();
    let mut adam = Adam::new(vec![weight.clone()], ())?;
    weight.sum(())?.backward()?;
    adam.step()?;
    let state = edit(adam.state_dict()?);
    adam.load_state_dict(&state)?;
    adam.step()?;
    Ok(weight.detach())
}

/// Makes a scheduler continue at an epoch.
fn resumed<S: Scheduler>(mut scheduler: S, epoch: i64) -> Result<S> {
    let mut state = scheduler.state_dict();
    state.0.insert("last_epoch".into(), epoch as f64);
    scheduler.load_state_dict(&state)?;
    Ok(scheduler)
}

/// Returns the learning rate after three epochs without improvement.
fn plateau(at: &str, options: ReduceLROnPlateauOptions) -> Result<f64> {
    let weight = ones([1], at)?.requires_grad_(true)?.clone();
    let mut sgd = SGD::new(vec![weight], ())?;
    let mut scheduler = ReduceLROnPlateau::new(&sgd, options)?;
    (0..4).try_for_each(|_| scheduler.step(&mut sgd, 1.0))?;
    Ok(sgd.lr(0))
}

/// Saves two tensors in files of at most `max_bytes` bytes.
fn saved(at: &str, max_bytes: usize) -> Result<()> {
    let name = format!("warpline-extremes-{}-{at}-{max_bytes}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    let state = Linear::new(2, 2, at)?.state_dict();
    let done = warpline_nn::save_sharded(&state, &folder, max_bytes);
    let _ = std::fs::remove_dir_all(&folder);
    done.map_err(|e| {
        warpline::Error::invalid("save_sharded", e.to_string()).at(std::panic::Location::caller())
    })
}
