//! Uses by another stream that end where a trace says so.
//!
//! At each free whose completion comes later in the trace, a side stream gets a host function that
//! returns only at that completion, and the block is recorded as used there. So the allocator
//! sees an event that really is pending. The side stream is in order: completions must be in the
//! order of the frees.
//!
//! A thread waits for the side stream. On a simulated device it is the one that runs the host
//! function (there, work runs only inside calls), and no other work runs meanwhile; on a real
//! device the driver runs it.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use warpline_alloc::{CudaAllocator, CudaBackend, CudaBlock};
use warpline_cuda_sys_safe::owned::{Event, Stream};
use warpline_cuda_sys_safe::{Driver, DriverError, EventFlags, StreamFlags};

use crate::run::{Watch, failure};
use crate::trace::{Late, Trace};

/// How long a use lasts at most, where nothing says otherwise. Only a call that waits for it makes
/// it last.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Holds back completions during one replay.
#[derive(Debug)]
pub struct Completions<'a> {
    driver: Arc<dyn Driver>,
    trace: &'a Trace,
    patience: Duration,
    side: Stream,
    /// Frees still to come.
    late: &'a [Late],
    /// Uses that have not ended, oldest first.
    pending: VecDeque<Pending>,
    /// A use began at the event that is happening.
    begun: bool,
    /// A use ended because something waited for it.
    waited: Arc<AtomicBool>,
    waiter: Option<Waiter>,
}

#[derive(Debug)]
struct Pending {
    until: usize,
    /// Ends the use when dropped.
    open: Sender<()>,
    /// Told when it began.
    began: Receiver<()>,
}

/// A thread that waits for events, and tells of each.
#[derive(Debug)]
struct Waiter {
    events: Sender<Event>,
    reached: Receiver<Result<(), DriverError>>,
    thread: JoinHandle<()>,
}

impl<'a> Completions<'a> {
    /// For one replay, in which uses last `patience` at most.
    ///
    /// # Errors
    /// The trace has no completions, or not in an order that one stream can have; the driver's.
    pub fn new(
        driver: &Arc<dyn Driver>,
        trace: &'a Trace,
        patience: Duration,
    ) -> Result<Self, String> {
        if !trace.completions {
            return Err(format!("{}: has no `c` lines that could be honoured", trace.name));
        }
        if let Some([first, second]) = trace.late.windows(2).find(|w| w[0].until > w[1].until) {
            let [first, second] = [first, second].map(|late| trace.origins[late.free]);
            return Err(format!(
                "{}: id {} of line {} completes after id {} of line {}: completions cannot be \
                 honoured unless they are in the order of the frees",
                trace.name, first.id, first.line, second.id, second.line
            ));
        }
        let flags = StreamFlags { non_blocking: true, priority: 0 };
        let side = Stream::new(driver, 0, flags).map_err(|error| error.to_string())?;
        let (events, to_wait_for) = channel::<Event>();
        let (reach, reached) = channel();
        let thread = std::thread::spawn(move || {
            for event in to_wait_for {
                if reach.send(event.synchronize()).is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            driver: Arc::clone(driver),
            trace,
            patience,
            side,
            late: &trace.late,
            pending: VecDeque::new(),
            begun: false,
            waited: Arc::default(),
            waiter: Some(Waiter { events, reached, thread }),
        })
    }

    /// Gives the side stream work that ends when its use does, and has the thread wait for it.
    fn begin(&mut self, until: usize) -> Result<(), DriverError> {
        let (open, ended) = channel();
        let (begin, began) = channel();
        let (waited, patience) = (Arc::clone(&self.waited), self.patience);
        let gate = Box::new(move || {
            let _ = begin.send(());
            if ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                waited.store(true, Ordering::Relaxed);
            }
        });
        // SAFETY: the stream is alive and of this driver.
        unsafe { self.driver.launch_host_func(self.side.handle(), gate) }?;
        self.mark()?;
        self.pending.push_back(Pending { until, open, began });
        if let [only] = self.pending.make_contiguous() {
            // Nothing else may run it: the next call that would, must find it running.
            let _ = only.began.recv_timeout(self.patience);
        }
        Ok(())
    }

    /// Has the thread wait for what the side stream was given so far.
    fn mark(&mut self) -> Result<(), DriverError> {
        let event = Event::new(&self.driver, 0, EventFlags::default())?;
        event.record(&self.side)?;
        if let Some(waiter) = &self.waiter {
            let _ = waiter.events.send(event);
        }
        Ok(())
    }

    /// Ends the oldest use, and waits until its events are done and the next one runs.
    fn end(&mut self) -> Result<(), DriverError> {
        let Some(Pending { open, .. }) = self.pending.pop_front() else { return Ok(()) };
        drop(open);
        if let Some(waiter) = &self.waiter {
            // After the host function, and after what the allocator recorded at the free.
            for _ in 0..2 {
                waiter.reached.recv().unwrap_or(Ok(()))?;
            }
        }
        if let Some(next) = self.pending.front() {
            let _ = next.began.recv_timeout(self.patience);
        }
        Ok(())
    }
}

impl Watch<CudaBackend> for Completions<'_> {
    fn before(&mut self, at: usize) -> Result<(), String> {
        while self.pending.front().is_some_and(|pending| pending.until <= at) {
            self.end().map_err(|error| failure(self.trace, at, error))?;
        }
        Ok(())
    }

    fn freeing(&mut self, at: usize, _: u32, block: &CudaBlock) -> Result<(), String> {
        let Some((late, rest)) = self.late.split_first() else { return Ok(()) };
        if late.free == at {
            self.late = rest;
            self.begun = true;
            self.begin(late.until).map_err(|error| failure(self.trace, at, error))?;
            block.record_stream(&self.side);
        }
        Ok(())
    }

    fn after(&mut self, at: usize, _: &CudaAllocator) -> Result<(), String> {
        if std::mem::take(&mut self.begun) {
            self.mark().map_err(|error| failure(self.trace, at, error))?;
        }
        if self.waited.load(Ordering::Relaxed) {
            let reason = "the allocator waited for memory whose completion comes later in the \
                          trace: it needs more capacity for completions to be honoured";
            return Err(failure(self.trace, at, reason));
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        self.before(usize::MAX)
    }
}

impl Drop for Completions<'_> {
    fn drop(&mut self) {
        self.pending.clear();
        if let Some(Waiter { events, thread, reached }) = self.waiter.take() {
            drop((events, reached));
            let _ = thread.join();
        }
    }
}
