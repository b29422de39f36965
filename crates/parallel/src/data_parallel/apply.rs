//! The threads that run replicas.
//!
//! Each device but the first has a thread. It is woken when the forward pass begins, polls for its
//! call for some 50 µs, and then sleeps. Replicas run with the caller's runtime and the caller's
//! current stream of their device; the first runs on the caller's thread. The current device and
//! streams that a module chooses on another thread end with its call (`stream::apart`). All
//! replicas are waited for. Of several failures the first in the order of the replicas is returned,
//! and a panic is resumed.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel, sync_channel};
use std::time::{Duration, Instant};
use std::{hint, thread};

use warpline::autograd::Modes;
use warpline::{Result, Runtime, cuda, with_runtime};
use warpline_nn::Forward;
use warpline_stream::{CheckOwner, Stream, apart};

use super::DataParallelError;

/// How long a thread looks for the next message before it sleeps: to be woken takes longer than to
/// enqueue a small network.
const SPIN: Duration = Duration::from_micros(50);

enum Message {
    /// There will be a call soon.
    Ready,
    Call(Box<dyn FnOnce() + Send>),
}

/// A thread that lives as long as this.
#[derive(Debug)]
pub(super) struct Worker {
    device: usize,
    process: u32,
    messages: Sender<Message>,
}

impl Worker {
    pub(super) fn spawn(device: usize) -> Result<Self> {
        let (messages, received) = channel();
        let name = format!("DataParallel cuda:{device}");
        let work = move || {
            while let Some(message) = next(&received) {
                if let Message::Call(call) = message {
                    // Each is as in a thread of its own, whatever the one before left behind. A
                    // payload is leaked, since dropping it could panic again.
                    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| apart(call))) {
                        std::mem::forget(payload);
                    }
                }
            }
        };
        thread::Builder::new()
            .name(name)
            .spawn(work)
            .map_err(|error| DataParallelError::Thread { device, reason: error.to_string() })?;
        Ok(Self { device, process: std::process::id(), messages })
    }

    /// Wakes it ahead of a call.
    pub(super) fn wake(&self) {
        // Should it be gone, the call says so.
        let _ = self.messages.send(Message::Ready);
    }

    /// Refuses the threads of another process: a forked child has none.
    pub(super) fn check(&self) -> Result<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        let reason = "this is a forked child; make its own DataParallel".into();
        Err(DataParallelError::Thread { device: self.device, reason }.into())
    }
}

/// The next message; `None` once nobody is left to send one.
fn next<T>(received: &Receiver<T>) -> Option<T> {
    let start = Instant::now();
    while start.elapsed() < SPIN {
        for _ in 0..32 {
            match received.try_recv() {
                Ok(message) => return Some(message),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => hint::spin_loop(),
            }
        }
        thread::yield_now();
    }
    received.recv().ok()
}

/// One replica's call.
pub(super) struct Call<'a, M, I> {
    pub(super) device: usize,
    /// The caller's current stream of the device.
    pub(super) stream: &'a Stream,
    pub(super) replica: M,
    pub(super) input: I,
}

/// Runs the first call here and each other by its thread, all at once (`parallel_apply`), and returns
/// their outputs in order once all are done. By then no replica exists any more.
///
/// # Errors
/// Of the first that failed. Where that one panicked, so does this.
pub(super) fn parallel_apply<M, I>(
    workers: &[Worker],
    runtime: &Runtime,
    calls: Vec<Call<'_, M, I>>,
) -> Result<Vec<M::Output>>
where
    M: Forward<I> + Send + 'static,
    M::Output: Send + 'static,
    I: Send + 'static,
{
    let devices: Vec<usize> = calls.iter().map(|call| call.device).collect();
    let mut outcomes: Vec<Option<Outcome<M::Output>>> = devices.iter().map(|_| None).collect();
    let (sender, received) = sync_channel(devices.len());
    let mut calls = calls.into_iter();
    let own = calls.next();
    let (modes, owner) = (Modes::current(), CheckOwner::current());
    for (i, (call, worker)) in calls.zip(workers).enumerate() {
        let (sender, runtime, stream) = (sender.clone(), runtime.clone(), call.stream.clone());
        let owner = owner.clone();
        let job = move || {
            let run = || run(&runtime, &stream, call.replica, call.input);
            let outcome = owner.within(|| modes.within(run));
            let _ = sender.send((i + 1, outcome));
        };
        // A thread that is gone drops the call, and with it what would send its outcome.
        let _ = worker.messages.send(Message::Call(Box::new(job)));
    }
    drop(sender);
    if let Some(call) = own {
        outcomes[0] = Some(run(runtime, call.stream, call.replica, call.input));
    }
    while let Some((i, outcome)) = next(&received) {
        outcomes[i] = Some(outcome);
    }
    let mut outputs = Vec::with_capacity(outcomes.len());
    for (replica, (outcome, device)) in outcomes.into_iter().zip(devices).enumerate() {
        let gone = || DataParallelError::Thread { device, reason: "it has ended".into() };
        match outcome.ok_or_else(gone)? {
            Ok(Ok(output)) => outputs.push(output),
            Ok(Err(source)) => {
                return Err(DataParallelError::Replica { replica, device, cause: source }.into());
            }
            Err(panic) => resume_unwind(panic),
        }
    }
    Ok(outputs)
}

type Outcome<T> = thread::Result<warpline::Result<T>>;

fn run<M, I>(runtime: &Runtime, stream: &Stream, replica: M, input: I) -> Outcome<M::Output>
where
    M: Forward<I>,
{
    // What a panic may leave half done goes with the replica.
    catch_unwind(AssertUnwindSafe(|| {
        with_runtime(runtime, || cuda::with_stream(stream, move || replica.forward(input)))
    }))
}
