//! The threads that run replicas.
//!
//! Each device but the first has a thread. The thread is woken when the forward pass begins, polls for its job for
//! about 50 µs, and then sleeps. The first replica runs on the caller's thread. Each replica runs with the caller's
//! runtime and the caller's current stream of the replica's device. The current device and the current streams that a
//! module sets on such a thread are reset after the job (`stream::apart`). The caller waits for all replicas. If
//! several replicas fail, the failure of the lowest-numbered replica is returned, or its panic is resumed.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel, sync_channel};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};
use std::{hint, io};

use warpline::autograd::Modes;
use warpline::{Result, Runtime, cuda, with_runtime};
use warpline_nn::Forward;
use warpline_stream::{CheckOwner, Stream, apart};
use warpline_sync::CaughtPanic;

use super::DataParallelError;

/// Time for which a thread polls for a message before it sleeps. Waking a thread takes longer than enqueuing a small
/// network.
const SPIN_TIME: Duration = Duration::from_micros(50);

enum WorkerMessage {
    /// A job will follow soon.
    Ready,
    Job(Box<dyn FnOnce() + Send>),
}

/// A thread that lives as long as the `Worker`.
#[derive(Debug)]
pub(super) struct Worker {
    device: usize,
    process: u32,
    thread: ThreadId,
    messages: Sender<WorkerMessage>,
}

impl Worker {
    #[track_caller]
    pub(super) fn spawn(device: usize) -> Result<Self> {
        let (messages, received) = channel();
        let name = format!("DataParallel cuda:{device}");
        let work = move || {
            while let Some(message) = next_message(&received) {
                if let WorkerMessage::Job(job) = message {
                    // `apart` resets the state that the job leaves on the thread, also after a panic.
                    let _ = CaughtPanic::catch(|| apart(job));
                }
            }
        };
        let spawned = thread::Builder::new().name(name).spawn(work);
        let failed = |e: io::Error| DataParallelError::Thread { device, reason: e.to_string() };
        let thread = spawned.map_err(failed)?.thread().id();
        Ok(Self { device, process: std::process::id(), thread, messages })
    }

    /// Wakes the thread ahead of a job.
    pub(super) fn wake(&self) {
        // If the thread has ended, `parallel_apply` returns the error.
        let _ = self.messages.send(WorkerMessage::Ready);
    }

    /// Returns an error if the caller cannot use the thread. A forked child does not have the threads of its parent. A
    /// caller that runs on the thread itself would wait for its own job.
    #[track_caller]
    pub(super) fn check(&self) -> Result<()> {
        let reason = if self.process != std::process::id() {
            "this is a forked child; create a new DataParallel in it"
        } else if self.thread == thread::current().id() {
            "a replica of this DataParallel calls it again on this thread; call another DataParallel"
        } else {
            return Ok(());
        };
        Err(DataParallelError::Thread { device: self.device, reason: reason.into() }.into())
    }
}

/// Returns the next message, or `None` after all senders have been dropped.
fn next_message<T>(received: &Receiver<T>) -> Option<T> {
    let start = Instant::now();
    while start.elapsed() < SPIN_TIME {
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

/// The forward pass of a replica.
pub(super) struct ReplicaCall<'a, M, I> {
    pub(super) device: usize,
    /// The caller's current stream of the device.
    pub(super) stream: &'a Stream,
    pub(super) replica: M,
    pub(super) input: I,
}

/// Runs all calls at the same time (`torch.nn.parallel.parallel_apply`): the first call on this thread, the other calls
/// on the threads of their devices. Returns the outputs in order, after all calls have ended and all replicas have been
/// dropped.
///
/// # Errors
/// [`DataParallelError::Replica`] for the first failed call, or [`DataParallelError::Thread`] if the thread of that
/// call has ended. If the first failed call panicked, the panic is resumed.
#[track_caller]
pub(super) fn parallel_apply<M, I>(
    workers: &[Worker],
    runtime: &Runtime,
    calls: Vec<ReplicaCall<'_, M, I>>,
) -> Result<Vec<M::Output>>
where
    M: Forward<I> + Send + 'static,
    M::Output: Send + 'static,
    I: Send + 'static,
{
    let devices: Vec<usize> = calls.iter().map(|call| call.device).collect();
    let mut results: Vec<Option<ReplicaResult<M::Output>>> = devices.iter().map(|_| None).collect();
    let (sender, received) = sync_channel(devices.len());
    let mut calls = calls.into_iter();
    let own = calls.next();
    let (modes, owner) = (Modes::current(), CheckOwner::current());
    for (i, (call, worker)) in calls.zip(workers).enumerate() {
        let (sender, runtime, stream) = (sender.clone(), runtime.clone(), call.stream.clone());
        let owner = owner.clone();
        let job = move || {
            let run = || run_replica(&runtime, &stream, call.replica, call.input);
            let result = owner.within(|| modes.within(run));
            let _ = sender.send((i + 1, result));
        };
        // If the thread has ended, the job is dropped together with the sender of its result.
        let _ = worker.messages.send(WorkerMessage::Job(Box::new(job)));
    }
    drop(sender);
    if let Some(call) = own {
        results[0] = Some(run_replica(runtime, call.stream, call.replica, call.input));
    }
    while let Some((i, result)) = next_message(&received) {
        results[i] = Some(result);
    }
    let mut outputs = Vec::with_capacity(results.len());
    for (replica, (result, device)) in results.into_iter().zip(devices).enumerate() {
        match result {
            Some(Ok(Ok(output))) => outputs.push(output),
            Some(Ok(Err(source))) => {
                return Err(DataParallelError::Replica { replica, device, source }.into());
            }
            Some(Err(panic)) => panic.resume(),
            None => {
                let reason = "it has ended".into();
                return Err(DataParallelError::Thread { device, reason }.into());
            }
        }
    }
    Ok(outputs)
}

type ReplicaResult<T> = Result<warpline::Result<T>, CaughtPanic>;

fn run_replica<M, I>(
    runtime: &Runtime,
    stream: &Stream,
    replica: M,
    input: I,
) -> ReplicaResult<M::Output>
where
    M: Forward<I>,
{
    // A panic can leave only the replica in an inconsistent state, and the replica is dropped.
    CaughtPanic::catch(|| {
        with_runtime(runtime, || cuda::with_stream(stream, move || replica.forward(input)))
    })
}
