//! S38: the examples of PyTorch's note on CUDA graphs. Captured steps equal eager steps bit for bit, over 3 or 100
//! steps.

use warpline::amp::{AutocastOptions, autocast};
use warpline::cuda::{self, Callable, CudaGraph};
use warpline::functional::mse_loss;
use warpline::{DType, Result, Tensor, arange, manual_seed, zeros};
use warpline_nn::amp::{GradScaler, GradScalerOptions};
use warpline_nn::optim::{
    Adam, AdamOptions, AdamW, AdamWOptions, Optimizer, RMSprop, SGD, SGDOptions,
};
use warpline_nn::{Dropout, Linear, LinearOptions, Module, Sequential};

use crate::common::World;

rows! {
    worlds(1) s38_whole_networks_are_captured gpu_s38_whole_networks_are_captured => whole_network;
    worlds(1) s38_whole_networks_are_captured_with_each_optimizer
        gpu_s38_whole_networks_are_captured_with_each_optimizer => each_optimizer;
    schedules64(1) s38_a_captured_network_is_ordered_with_its_inputs
        gpu_s38_a_captured_network_is_ordered_with_its_inputs => whole_network_in_order;
    worlds(1) s38_whole_networks_are_captured_with_mixed_precision
        gpu_s38_whole_networks_are_captured_with_mixed_precision => whole_network_mixed;
    worlds(1) s38_parts_of_networks_are_captured gpu_s38_parts_of_networks_are_captured => partial_network;
    worlds(1) s38_graphs_work_with_mixed_precision gpu_s38_graphs_work_with_mixed_precision => mixed_precision;
}

const N: usize = 16;
const INPUTS: usize = 12;
const HIDDEN: usize = 24;
const OUTPUTS: usize = 6;

/// Values between -0.5 and 0.5, which differ from step to step.
fn values(columns: usize, step: usize) -> Result<Tensor> {
    let x = arange((N * columns) as i64, (DType::F32, "cuda"))?.mul(0.618_034)?;
    let x = x.add(0.377 * step as f64)?;
    x.sub(&x.floor()?)?.sub(0.5)?.reshape([N, columns])
}

/// Returns the bits of all parameters.
fn bits(parameters: &[Tensor]) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    for parameter in parameters {
        all.extend(parameter.to_vec::<f32>()?.into_iter().map(f32::to_bits));
    }
    Ok(all)
}

fn model() -> Result<Sequential> {
    manual_seed(1);
    let model = Sequential::new()
        .with(Linear::new(INPUTS, HIDDEN, "cuda")?)
        .with(Dropout::new(0.2)?)
        .with(Linear::new(HIDDEN, OUTPUTS, "cuda")?)
        .with(Dropout::new(0.1)?);
    Ok(model)
}

fn sgd(parameters: Vec<Tensor>) -> Result<SGD> {
    SGD::new(parameters, SGDOptions::new().lr(0.1))
}

fn whole_network(_: &World) -> Result<()> {
    compare_whole_network(100, false, sgd)
}

fn each_optimizer(_: &World) -> Result<()> {
    let (adam, adamw) = (AdamOptions::new().capturable(true), AdamWOptions::new().capturable(true));
    compare_whole_network(100, false, |parameters| Adam::new(parameters, adam))?;
    compare_whole_network(100, false, |parameters| AdamW::new(parameters, adamw))?;
    compare_whole_network(100, false, |parameters| RMSprop::new(parameters, ()))
}

/// The whole step, with the regions of autocast and the updates of the scale, is one graph.
fn whole_network_mixed(_: &World) -> Result<()> {
    compare_whole_network(100, true, sgd)
}

fn whole_network_in_order(_: &World) -> Result<()> {
    compare_whole_network(3, false, sgd)
}

/// The note's `whole-network-capture`: forward pass, loss, backward pass and step are one graph.
fn compare_whole_network<O: Optimizer>(
    steps: usize,
    is_mixed: bool,
    optimizer: impl Fn(Vec<Tensor>) -> Result<O>,
) -> Result<()> {
    let train = |is_captured: bool| -> Result<Vec<Vec<u32>>> {
        let model = model()?;
        let parameters = model.parameters();
        let mut optimizer = optimizer(parameters.clone())?;
        let (input, target) = (values(INPUTS, 0)?, values(OUTPUTS, 1)?);
        manual_seed(2);
        // The scale grows every 20 steps.
        let options = GradScalerOptions::new().growth_interval(20).enabled(is_mixed);
        let mut scaler = GradScaler::new(options)?;
        let mut step = |optimizer: &mut O| {
            optimizer.zero_grad()?;
            let options = AutocastOptions::new().dtype(DType::F16).enabled(is_mixed);
            let loss = autocast("cuda", options, || {
                let mut output = model.forward(&input)?;
                if is_mixed {
                    // Both uses of a parameter share a conversion, so their gradients are added in `f16`.
                    output = output.add(&model.forward(&input)?)?;
                }
                mse_loss(&output, &target, ())
            })?;
            scaler.scale(&loss)?.backward()?;
            scaler.step(optimizer)?;
            scaler.update()?;
            Ok(loss)
        };
        let side = cuda::Stream::new(())?;
        side.wait_stream(&cuda::current_stream(())?)?;
        cuda::with_stream(&side, || (0..3).try_for_each(|_| step(&mut optimizer).map(drop)))?;
        cuda::current_stream(())?.wait_stream(&side)?;
        // Gradients that are made in the capture lie in the graph's pool.
        optimizer.zero_grad()?;
        let mut graph = CudaGraph::new();
        let captured = is_captured.then(|| graph.capture(|| step(&mut optimizer))).transpose()?;
        let mut after = Vec::new();
        for i in 0..steps {
            input.copy_(&values(INPUTS, 2 * i)?, ())?;
            target.copy_(&values(OUTPUTS, 2 * i + 1)?, ())?;
            let loss = match &captured {
                Some(loss) => graph.replay().map(|()| loss.clone())?,
                None => step(&mut optimizer)?,
            };
            let mut all = bits(&parameters)?;
            all.push(loss.item::<f32>()?.to_bits());
            after.push(all);
        }
        Ok(after)
    };
    let eager = train(false)?;
    assert!(eager == train(true)?);
    assert!(eager[0] != eager[steps - 1]);
    Ok(())
}

/// Runs a layer, in half precision if `is_mixed` is set.
fn layer(layer: &Linear, x: &Tensor, is_mixed: bool) -> Result<Tensor> {
    match is_mixed {
        true => autocast("cuda", DType::F16, || layer.forward(x))?.to(DType::F32),
        false => layer.forward(x),
    }
}

/// Trains three layers. Each step uses the first, and then the second or the third, depending on the data. Returns the
/// bits of the parameters after each step, and how often the second and the third layer were used.
fn train_parts(
    is_captured: bool,
    is_mixed: bool,
    mut update: impl FnMut(Tensor, &mut SGD) -> Result<()>,
) -> Result<(Vec<Vec<u32>>, [usize; 2])> {
    manual_seed(1);
    let layers = [
        // Without a bias, negated data give a negated sum of the results, so the steps use both other layers.
        Linear::new(INPUTS, HIDDEN, LinearOptions::from("cuda").bias(false))?,
        Linear::new(HIDDEN, OUTPUTS, "cuda")?,
        Linear::new(HIDDEN, OUTPUTS, "cuda")?,
    ];
    let parameters: Vec<Tensor> = layers.iter().flat_map(Module::parameters).collect();
    let mut optimizer = sgd(parameters.clone())?;
    let sample = values(INPUTS, 0)?;
    let hidden = zeros([N, HIDDEN], "cuda")?.requires_grad_(true)?;
    let callable = |i: usize| {
        let (one, sample) = (&layers[i], if i == 0 { &sample } else { &hidden });
        Callable::new(move |x| Ok(vec![layer(one, &x[0], is_mixed)?]), &[sample])
    };
    let callables = match is_captured {
        true => Some(cuda::make_graphed_callables([0, 1, 2].map(callable), ())?),
        false => None,
    };
    let call = |i: usize, x: &Tensor| match &callables {
        Some(callables) => Ok(callables[i].call(&[x])?.remove(0)),
        None => layer(&layers[i], x, is_mixed),
    };
    let (mut after, mut used) = (Vec::new(), [0; 2]);
    for step in 0..100 {
        let sign = if step % 3 == 0 { -1.0 } else { 1.0 };
        let (data, target) = (values(INPUTS, step)?.mul(sign)?, values(OUTPUTS, step + 1)?);
        optimizer.zero_grad()?;
        let x = call(0, &data)?;
        let chosen = usize::from(x.sum(())?.item::<f32>()? > 0.0);
        used[chosen] += 1;
        update(mse_loss(&call(1 + chosen, &x)?, &target, ())?, &mut optimizer)?;
        after.push(bits(&parameters)?);
    }
    Ok((after, used))
}

/// The note's `partial-network-capture`: the host chooses a layer by the data.
fn partial_network(_: &World) -> Result<()> {
    let train = |is_captured| {
        train_parts(is_captured, false, |loss, optimizer| {
            loss.backward()?;
            optimizer.step()
        })
    };
    let (eager, used) = train(false)?;
    assert!(used[0] > 0 && used[1] > 0, "{used:?}");
    assert!((eager, used) == train(true)?);
    Ok(())
}

/// The note's `graphs-with-amp`: the scaler's step is outside of the graphs.
fn mixed_precision(_: &World) -> Result<()> {
    let train = |is_captured| -> Result<_> {
        let mut scaler = GradScaler::new(GradScalerOptions::new().growth_interval(20))?;
        let result = train_parts(is_captured, true, |loss, optimizer| {
            scaler.scale(&loss)?.backward()?;
            scaler.step(optimizer)?;
            scaler.update()
        })?;
        Ok((result, scaler.get_scale()?))
    };
    let ((eager, used), scale) = train(false)?;
    assert!(used[0] > 0 && used[1] > 0 && eager[0] != eager[99], "{used:?}");
    assert!(((eager, used), scale) == train(true)?);
    Ok(())
}
