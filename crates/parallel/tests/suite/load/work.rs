//! The work of the threads and of the second process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Instant;

use warpline::cuda::{self, CudaGraph, Event, Stream};
use warpline::data::{DataLoader, TensorDataset};
use warpline::multiprocessing::Channel;
use warpline::{ErrorKind, Result, Tensor, full, ones, zeros};

use super::latency::Latencies;
use crate::endings::Numbers;

/// Numbers of elements of most tensors.
const SIZES: [usize; 5] = [1, 100, 1_000, 4_000, 16_000];
/// Number of elements of large tensors. One thread at a time has large tensors, so that the peak of the memory in use
/// does not depend on chance.
const LARGE: usize = 300_000;
/// Events of each thread that fill the pool of events.
const EVENTS: usize = 40;

/// The state that all threads share.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) stop: AtomicBool,
    pub(super) latencies: Latencies,
    /// Streams that all threads use.
    streams: Vec<Stream>,
    /// Streams for captures. A capture would take in other threads' work on its stream.
    captured: Vec<Mutex<Stream>>,
    large: Mutex<()>,
    /// All threads that compute.
    all: Barrier,
}

impl Load {
    pub(super) fn new(threads: usize) -> Result<Arc<Self>> {
        let streams = (0..12).map(|_| cuda::exclusive_stream(0, 0)).collect::<Result<Vec<_>>>()?;
        let captured = streams[8..].iter().cloned().map(Mutex::new).collect();
        let (stop, latencies) = (AtomicBool::new(false), Latencies::new());
        let (large, all) = (Mutex::new(()), Barrier::new(threads));
        let streams = streams[..8].to_vec();
        Ok(Arc::new(Self { stop, latencies, streams, captured, large, all }))
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Runs random work on two streams, and measures the host's time of one small op after each piece.
    pub(super) fn compute(&self, thread: usize) -> Result<()> {
        let mut numbers = Numbers(thread as u64);
        let small = ones([1_000], "cuda")?;
        self.fill_caches()?;
        while self.goes_on() {
            let large = (numbers.below(20) == 0).then(|| self.large.try_lock().ok()).flatten();
            let n = if large.is_some() { LARGE } else { SIZES[numbers.below(SIZES.len())] };
            let [stream, other] = [(); 2].map(|()| &self.streams[numbers.below(8)]);
            let captured = &self.captured[numbers.below(4)];
            let kind = numbers.below(25);
            cuda::with_stream(stream, || match kind {
                0..4 => ops(n, other),
                4..8 => graph(n, captured),
                8..12 => events(n, other),
                12..16 => pinned(n),
                16..20 => backward(n),
                20..24 => sums_to(&full([n], 1.0, ())?.add(1)?, 2 * n),
                _ => loader(),
            })?;
            let start = Instant::now();
            let sum = small.add(1)?;
            self.latencies.record(start.elapsed());
            drop(sum);
        }
        Ok(())
    }

    /// Uses as much memory of each kind and as many events as the load may use at most, so that caches do not grow
    /// later.
    fn fill_caches(&self) -> Result<()> {
        let mut tensors = Vec::new();
        let events: Vec<Event> = (0..EVENTS).map(|_| Event::new(())).collect();
        events.iter().try_for_each(|event| event.record(&self.streams[0]))?;
        for _ in 0..3 {
            tensors.push(ones([SIZES[4]], ())?);
            tensors.push(ones([SIZES[4]], ())?.pin_memory()?);
            for stream in &self.streams {
                tensors.push(cuda::with_stream(stream, || ones([SIZES[4]], "cuda"))?);
            }
        }
        let captured = capture(SIZES[4], &self.captured[0])?;
        self.all.wait();
        drop((tensors, events, captured));
        self.all.wait();
        Ok(())
    }

    /// Sends tensors to the second process and receives tensors from it.
    pub(super) fn exchange(&self, channel: &Channel) -> Result<()> {
        let mut numbers = Numbers(0);
        while self.goes_on() {
            let n = SIZES[numbers.below(SIZES.len())];
            let device = ["cuda", "cpu"][numbers.below(2)];
            let tensor = full([n], 1.0, device)?.share_memory()?;
            channel.send(&tensor)?;
            sums_to(&channel.recv()?.copy()?, 2 * n)?;
        }
        Ok(())
    }
}

/// Program of the second process.
pub(super) fn answer(channel: &Channel) -> Result<()> {
    loop {
        match channel.recv() {
            Ok(tensor) => channel.send(&tensor.copy()?.add(1)?.share_memory()?)?,
            Err(error) if matches!(error.kind(), ErrorKind::PeerGone { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

fn sums_to(tensor: &Tensor, expected: usize) -> Result<()> {
    assert_eq!(tensor.sum(())?.item::<f32>()?, expected as f32);
    Ok(())
}

fn ops(n: usize, other: &Stream) -> Result<()> {
    let x = full([n], 1.0, "cuda")?;
    let y = cuda::with_stream(other, || x.add(1)?.mul(&x))?;
    sums_to(&y.add(&x)?, 3 * n)
}

/// Returns a graph with its input and its result.
fn capture(n: usize, stream: &Mutex<Stream>) -> Result<(CudaGraph, Tensor, Tensor)> {
    let x = full([n], 1.0, "cuda")?;
    let stream = stream.lock().expect("a stream");
    let (graph, y) = cuda::with_stream(&stream, || cuda::graph(|| x.add(1)?.mul(2)))?;
    Ok((graph, x, y))
}

fn graph(n: usize, stream: &Mutex<Stream>) -> Result<()> {
    let (graph, x, y) = capture(n, stream)?;
    for value in [1, 2] {
        x.fill_(value as f64)?;
        graph.replay()?;
        sums_to(&y, 2 * (value + 1) * n)?;
    }
    graph.replay() // and drop the graph at once
}

fn events(n: usize, other: &Stream) -> Result<()> {
    let event = Event::new(());
    event.record(other)?;
    event.wait(&cuda::current_stream(0)?)?;
    let x = full([n], 1.0, "cuda")?;
    event.record(&cuda::current_stream(0)?)?;
    event.synchronize()?;
    assert!(event.query()?);
    sums_to(&x, n)
}

fn pinned(n: usize) -> Result<()> {
    let source = full([n], 3.0, ())?.pin_memory()?;
    let copy = source.to_non_blocking("cuda")?;
    let back = zeros([n], ())?.pin_memory()?;
    back.copy_(&copy, true)?;
    sums_to(&back, 3 * n)
}

fn backward(n: usize) -> Result<()> {
    let x = full([n], 1.0, "cuda")?.requires_grad_(true)?;
    x.mul(&x)?.mul(2)?.sum(())?.backward()?;
    sums_to(&x.grad().expect("a gradient"), 4 * n)
}

fn loader() -> Result<()> {
    let data = TensorDataset::new(ones([12, 50], ())?, zeros([12], ())?)?;
    let loader = DataLoader::new(data).batch_size(4)?.num_workers(2).pin_memory(true);
    for batch in loader.iter()? {
        sums_to(&batch?.0.to_non_blocking("cuda")?, 200)?;
    }
    Ok(())
}
