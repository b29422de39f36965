//! Programs for injected failures. Each is deterministic, makes all of its objects anew, and returns values.

use std::sync::Arc;
use std::time::Duration;

use warpline::amp::autocast;
use warpline::autograd::checkpoint;
use warpline::cuda::{self, Callable, CudaGraph, Event, EventFlags, MemPool, PoolOptions, Stream};
use warpline::data::{DataLoader, TensorDataset};
use warpline::functional::{
    AttentionOptions, ConvOptions, KvCache, conv2d, cross_entropy, dropout, embedding, layer_norm,
    scaled_dot_product_attention,
};
use warpline::multiprocessing::Channel;
use warpline::{
    DType, Device, Result, Tensor, arange, cat, full, manual_seed, ones, simulated, tensor,
    with_runtime, zeros,
};
use warpline_nn::amp::GradScaler;
use warpline_nn::optim::{AdamW, Optimizer, SGD, SGDOptions};
use warpline_nn::{Linear, Module, ReLU, Sequential, load_file, save_file};
use warpline_parallel::DataParallel;
use warpline_parallel::distributed::{HashStore, InitOptions, ReduceOptions, init_process_group};

/// A program.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) run: fn() -> Result<Vec<f32>>,
}

const GPU: Device = Device::cuda(0);

macro_rules! programs {
    ($($name:ident)+) => {
        &[$(Program { name: stringify!($name), run: $name }),+]
    };
}

pub(super) const PROGRAMS: &[Program] = programs! {
    sgd adamw_with_scaler capture graphed_callable conditional one_rank loader pinned streams
    pools peers data_parallel dropout_and_generators attention convolution host_waits wrong_index
    saved checkpointed cache sender receiver
};

fn values(t: &Tensor) -> Result<Vec<f32>> {
    t.detach().to((DType::F32, "cpu"))?.contiguous()?.view(-1)?.to_vec()
}

fn net() -> Result<Sequential> {
    manual_seed(3);
    let mut net =
        Sequential::new().with(Linear::new(4, 8, ())?).with(ReLU).with(Linear::new(8, 2, ())?);
    net.to(GPU)?;
    Ok(net)
}

fn batch() -> Result<(Tensor, Tensor)> {
    let x = arange(24, (DType::F32, GPU))?.view((6, 4))?.mul(0.1)?;
    Ok((x, arange(6, (DType::I64, GPU))?.remainder(2)?))
}

fn sgd() -> Result<Vec<f32>> {
    let (net, (x, y)) = (net()?, batch()?);
    let mut optimizer = SGD::new(net.parameters(), SGDOptions::new().lr(0.1).momentum(0.9))?;
    for _ in 0..2 {
        optimizer.zero_grad()?;
        cross_entropy(&net.forward(&x)?, &y, ())?.backward()?;
        optimizer.step()?;
    }
    values(&net.parameters()[0])
}

fn adamw_with_scaler() -> Result<Vec<f32>> {
    let (net, (x, y)) = (net()?, batch()?);
    let mut optimizer = AdamW::new(net.parameters(), ())?;
    let mut scaler = GradScaler::new(())?;
    for _ in 0..2 {
        optimizer.zero_grad()?;
        let loss = autocast("cuda", DType::F16, || cross_entropy(&net.forward(&x)?, &y, ()))?;
        scaler.scale(&loss)?.backward()?;
        scaler.step(&mut optimizer)?;
        scaler.update()?;
    }
    values(&net.parameters()[0])
}

fn capture() -> Result<Vec<f32>> {
    let (x, y) = (ones([4], GPU)?, zeros([4], GPU)?);
    let mut graph = CudaGraph::new();
    graph.capture(|| y.add_(&x.mul(2)?).map(drop))?;
    for _ in 0..3 {
        graph.replay()?;
    }
    values(&y)
}

fn graphed_callable() -> Result<Vec<f32>> {
    let weight = full([2, 2], 3.0, GPU)?.requires_grad_(true)?;
    let sample = ones([1, 2], GPU)?;
    let function = |x: &[Tensor]| Ok(vec![x[0].matmul(&weight)?.relu()?]);
    let [layer] = cuda::make_graphed_callables([Callable::new(function, &[&sample])], ())?;
    layer.call(&[&full([1, 2], 2.0, GPU)?])?.remove(0).sum(())?.backward()?;
    values(&weight.grad().expect("a gradient"))
}

fn conditional() -> Result<Vec<f32>> {
    let (x, positive) = (ones([2], GPU)?, tensor(true, GPU)?);
    let (graph, ()) = cuda::graph(|| {
        positive.copy_(&x.sum(())?.gt(0.0)?, ())?;
        cuda::graph_if(&positive, || x.mul_(-3.0).map(drop))
    })?;
    graph.replay()?;
    graph.replay()?;
    values(&x)
}

fn one_rank() -> Result<Vec<f32>> {
    let group = init_process_group(InitOptions::new(Arc::new(HashStore::new()), 0, 1).device(0))?;
    let x = full([3], 5.0, GPU)?;
    group.all_reduce(&x, ReduceOptions::new().async_op(true))?.wait()?;
    group.barrier()?;
    values(&x)
}

fn loader() -> Result<Vec<f32>> {
    let data = arange(12, DType::F32)?.view((6, 2))?;
    let data = TensorDataset::new(data.copy()?, data)?;
    let loader = DataLoader::new(data).batch_size(2)?.num_workers(2).pin_memory(true);
    let sum = zeros([2], GPU)?;
    for batch in loader.iter()? {
        sum.add_(&batch?.0.to_non_blocking(GPU)?.sum(0)?)?;
    }
    values(&sum)
}

fn pinned() -> Result<Vec<f32>> {
    let host = arange(4, DType::F32)?.pin_memory()?;
    let there = host.to_non_blocking(GPU)?.mul(2)?;
    let (back, list) = (there.cpu_async()?, there.to_vec_async::<f32>()?);
    Ok([values(&back.wait()?)?, list.wait()?].concat())
}

fn streams() -> Result<Vec<f32>> {
    let (first, second) = (Stream::new(0)?, Stream::new(0)?);
    let x = cuda::with_stream(&first, || full([4], 2.0, GPU)?.add(1))?;
    let event = first.record_event(None)?;
    second.wait_event(&event)?;
    let y = cuda::with_stream(&second, || x.mul(&x))?;
    let end = Event::new(EventFlags::new().enable_timing(true));
    second.record_event(Some(&end))?;
    end.synchronize()?;
    values(&y)
}

fn pools() -> Result<Vec<f32>> {
    let pool = MemPool::new(GPU, PoolOptions::default())?;
    let inside = cuda::with_mem_pool(&pool, || full([4], 3.0, GPU))?;
    drop(pool);
    cuda::empty_cache();
    values(&inside.add(1)?)
}

fn peers() -> Result<Vec<f32>> {
    let x = full([4], 3.0, GPU)?;
    let y = x.to(Device::cuda(1))?.mul(2)?;
    values(&y.to(GPU)?.add(&x)?)
}

fn data_parallel() -> Result<Vec<f32>> {
    let net = DataParallel::new(net()?, ())?;
    let out = net.forward(batch()?.0)?;
    out.sum(())?.backward()?;
    values(&net.module().parameters()[0].grad().expect("a gradient"))
}

fn dropout_and_generators() -> Result<Vec<f32>> {
    manual_seed(5);
    let x = ones([16], GPU)?;
    let state = cuda::get_rng_state(GPU)?;
    let first = dropout(&x, 0.5)?;
    cuda::set_rng_state(&state, GPU)?;
    values(&first.add(&dropout(&x, 0.5)?)?)
}

fn attention() -> Result<Vec<f32>> {
    let x = arange(32, (DType::F32, GPU))?.view((1, 2, 4, 4))?.mul(0.05)?.requires_grad_(true)?;
    let options = AttentionOptions::new().is_causal(true);
    scaled_dot_product_attention(&x, &x, &x, options)?.sum(())?.backward()?;
    values(&x.grad().expect("a gradient"))
}

fn convolution() -> Result<Vec<f32>> {
    let x = arange(64, (DType::F32, GPU))?.view((1, 2, 4, 8))?.mul(0.05)?.requires_grad_(true)?;
    let kernel = ones([2, 2, 3, 3], GPU)?.requires_grad_(true)?;
    let y = conv2d(&x, &kernel, None, ConvOptions::new().padding(1))?;
    layer_norm(&y, 8, ())?.mul(&y)?.mean(())?.backward()?;
    values(&kernel.grad().expect("a gradient"))
}

fn host_waits() -> Result<Vec<f32>> {
    let x = tensor([3f32, 0.0, 1.0, 3.0], GPU)?;
    let places = x.nonzero()?.to(DType::F32)?;
    let (sorted, _) = x.sort(())?;
    let masked = x.masked_select(&x.gt(0.5)?)?;
    values(&cat(&[&places.view(-1)?, &sorted, &masked], 0)?)
}

fn wrong_index() -> Result<Vec<f32>> {
    let table = arange(6, (DType::F32, GPU))?.view((3, 2))?;
    let wrong = embedding(&tensor([9i64], GPU)?, &table, ())?;
    let failed = wrong.to_vec::<f32>().is_err();
    drop(wrong);
    let _ = cuda::synchronize(0); // takes the report
    assert!(failed);
    values(&embedding(&tensor([2i64], GPU)?, &table, ())?)
}

fn saved() -> Result<Vec<f32>> {
    let mut net = net()?;
    let thread = std::thread::current().id();
    let name = format!("warpline-faults-{}-{thread:?}.safetensors", std::process::id());
    let path = std::env::temp_dir().join(name);
    save_file(&net.state_dict(), &path, ())?;
    let loaded = load_file(&path, GPU);
    let _ = std::fs::remove_file(&path);
    net.load_state_dict(&loaded?, true)?;
    values(&net.parameters()[2])
}

fn checkpointed() -> Result<Vec<f32>> {
    let x = ones([4], GPU)?.requires_grad_(true)?;
    let scale = full([4], 2.0, GPU)?;
    let y = checkpoint(move |t| Ok(vec![t[0].mul(&scale)?.exp()?]), &[&x])?.remove(0);
    y.register_hook(|grad| Ok(Some(grad.mul(0.5)?)))?;
    y.sum(())?.backward()?;
    values(&x.grad().expect("a gradient"))
}

fn cache() -> Result<Vec<f32>> {
    let cache = KvCache::new([1, 2, 8, 4], GPU)?;
    let k = arange(8, (DType::F32, GPU))?.view((1, 2, 1, 4))?;
    for _ in 0..2 {
        cache.append(&k, &k)?;
    }
    let options = AttentionOptions::new().key_lengths(cache.len());
    values(&scaled_dot_product_attention(&k, cache.keys(), cache.values(), options)?)
}

/// Sends a tensor to another runtime, which has no failures.
fn sender() -> Result<Vec<f32>> {
    let (here, there) = ends()?;
    let other = simulated(1)?;
    std::thread::scope(|scope| {
        let receive = move || with_runtime(&other, || values(&there.recv()?));
        let receiver = scope.spawn(receive);
        let shared = full([4], 3.0, GPU).and_then(|x| x.share_memory());
        let sent = shared.and_then(|x| here.send(&x).map(|()| x));
        // The receiver of a failed message waits until the channel closes.
        let here = sent.is_ok().then_some(here);
        let received = receiver.join().expect("the receiver does not panic");
        drop(here);
        sent.and(received)
    })
}

/// Receives a tensor from another runtime, which has no failures.
fn receiver() -> Result<Vec<f32>> {
    let (here, there) = ends()?;
    let other = simulated(1)?;
    let x = with_runtime(&other, || full([4], 3.0, GPU)?.share_memory())?;
    with_runtime(&other, || there.send(&x))?;
    values(&here.recv()?)
}

fn ends() -> Result<(Channel, Channel)> {
    let (here, there) = Channel::pair()?;
    for end in [&here, &there] {
        end.set_timeout(Some(Duration::from_secs(1)))?;
    }
    Ok((here, there))
}
