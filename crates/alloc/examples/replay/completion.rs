//! Simulates work on other streams that still uses freed memory, until the completion line in the trace.
//!
//! The last use of some blocks completes later in the trace than the free of the block. At such a
//! free, a side stream uses the block by waiting for a *tick* of a clock. The clock is another
//! stream. A tick is a host function on the clock that returns when the replay reaches the
//! completion in the trace. So the allocator meets an event that is really pending, and only one
//! host function at a time is blocked, in any order of completions.
//!
//! A thread waits for the clock. On a simulated device, where work runs only inside calls, this
//! thread runs the host function, and no other work runs meanwhile. On a real device the driver
//! runs the host function.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use warpline_alloc::{CudaAllocator, CudaBackend, CudaBlock};
use warpline_cuda_sys_safe::owned::{Event, Stream};
use warpline_cuda_sys_safe::{Driver, DriverError, EventFlags, StreamFlags};

use super::run::{Watch, failure};
use super::trace::{Late, Trace};

/// Default of the longest time that a tick blocks. A tick reaches this limit only if a call of the
/// replay waits for it.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Holds back completions during one replay.
#[derive(Debug)]
pub struct Completions<'a> {
    driver: Arc<dyn Driver>,
    trace: &'a Trace,
    patience: Duration,
    clock: Stream,
    /// Streams that use freed memory, each with the end of its last use.
    sides: Vec<(usize, Stream)>,
    /// Late frees that the replay has not reached.
    late: &'a [Late],
    /// Completion times without a tick so far.
    unticked: VecDeque<usize>,
    /// Ticks that have not returned, by the time of their completion.
    ticks: BTreeMap<usize, Tick>,
    /// The side stream that uses the memory of the current free, and the end of this use.
    begun: Option<(usize, usize)>,
    /// Whether a tick ended because a call waited for it longer than `patience`.
    waited: Arc<AtomicBool>,
    waiter: Option<Waiter>,
}

#[derive(Debug)]
struct Tick {
    /// Lets the tick return when it is dropped.
    open: Sender<()>,
    /// Receives a message when the tick begins.
    began: Receiver<()>,
    /// Event of the clock after the tick.
    event: Arc<Event>,
    /// Events of the side streams, recorded after their uses. The uses end with the tick.
    uses: Vec<Event>,
}

/// A thread that waits for events and reports each.
#[derive(Debug)]
struct Waiter {
    events: Sender<Arc<Event>>,
    reached: Receiver<Result<(), DriverError>>,
    thread: JoinHandle<()>,
}

impl<'a> Completions<'a> {
    /// Prepares one replay. A tick blocks its stream for at most `patience`.
    ///
    /// # Errors
    /// A message if the trace has no completions, or if the clock's stream cannot be made.
    pub fn new(
        driver: &Arc<dyn Driver>,
        trace: &'a Trace,
        patience: Duration,
    ) -> Result<Self, String> {
        if !trace.completions {
            return Err(format!("{}: has no `c` lines that could be honoured", trace.name));
        }
        let clock = Stream::new(driver, 0, SIDE).map_err(|error| error.to_string())?;
        let mut unticked: Vec<usize> = trace.late.iter().map(|late| late.until).collect();
        unticked.sort_unstable();
        unticked.dedup();
        let (events, to_wait_for) = channel::<Arc<Event>>();
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
            clock,
            sides: Vec::new(),
            late: &trace.late,
            unticked: unticked.into(),
            ticks: BTreeMap::new(),
            begun: None,
            waited: Arc::default(),
            waiter: Some(Waiter { events, reached, thread }),
        })
    }

    /// Adds a use that ends at `until` to a side stream. Returns the index of the side stream.
    fn begin(&mut self, at: usize, until: usize) -> Result<usize, DriverError> {
        let runs = !self.ticks.is_empty();
        while let Some(time) = self.unticked.pop_front_if(|time| *time <= until) {
            // Ticks of the past need not be enqueued.
            if time > at {
                let tick = self.tick()?;
                self.ticks.insert(time, tick);
            }
        }
        if !runs {
            self.start();
        }
        // Among the streams that are idle by `until`, take the stream with the latest last use.
        let fits = self.sides.iter().enumerate().filter(|(_, (last, _))| *last <= until);
        let side = match fits.max_by_key(|(_, (last, _))| *last) {
            Some((side, _)) => side,
            None => {
                self.sides.push((0, Stream::new(&self.driver, 0, SIDE)?));
                self.sides.len() - 1
            }
        };
        self.sides[side].0 = until;
        if let Some(tick) = self.ticks.get(&until) {
            self.sides[side].1.wait_event(&tick.event)?;
        }
        Ok(side)
    }

    /// Enqueues a tick on the clock.
    fn tick(&self) -> Result<Tick, DriverError> {
        let (open, ended) = channel();
        let (begin, began) = channel();
        let (waited, patience) = (Arc::clone(&self.waited), self.patience);
        let gate = Box::new(move || {
            let _ = begin.send(());
            if !waited.load(Ordering::Relaxed)
                && ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout)
            {
                waited.store(true, Ordering::Relaxed);
            }
        });
        // SAFETY: `clock` is a live stream of this driver.
        unsafe { self.driver.launch_host_func(self.clock.handle(), gate) }?;
        let event = Arc::new(self.record_event(&self.clock)?);
        Ok(Tick { open, began, event, uses: Vec::new() })
    }

    /// Records an event on a stream.
    fn record_event(&self, stream: &Stream) -> Result<Event, DriverError> {
        let event = Event::new(&self.driver, 0, EventFlags::default())?;
        event.record(stream)?;
        Ok(event)
    }

    /// Hands the next tick to the thread and waits until the tick runs, before anything else waits
    /// for it.
    fn start(&self) {
        if let (Some(tick), Some(waiter)) = (self.ticks.values().next(), &self.waiter) {
            let _ = waiter.events.send(Arc::clone(&tick.event));
            let _ = tick.began.recv_timeout(self.patience);
        }
    }

    /// Ends the next tick and waits for the uses that end with it.
    fn end(&mut self) -> Result<(), DriverError> {
        let Some((_, Tick { open, uses, .. })) = self.ticks.pop_first() else { return Ok(()) };
        drop(open);
        if let Some(waiter) = &self.waiter {
            waiter.reached.recv().unwrap_or(Ok(()))?;
        }
        uses.iter().try_for_each(Event::synchronize)?;
        self.start();
        Ok(())
    }
}

/// Flags of the clock and the side streams, which do not wait for the default stream.
const SIDE: StreamFlags = StreamFlags { non_blocking: true, priority: 0 };

impl Watch<CudaBackend> for Completions<'_> {
    fn before(&mut self, at: usize) -> Result<(), String> {
        while self.ticks.first_key_value().is_some_and(|(&time, _)| time <= at) {
            self.end().map_err(|error| failure(self.trace, at, error))?;
        }
        Ok(())
    }

    fn freeing(&mut self, at: usize, _: u32, block: &CudaBlock) -> Result<(), String> {
        let Some((late, rest)) = self.late.split_first() else { return Ok(()) };
        if late.free == at {
            self.late = rest;
            let side =
                self.begin(at, late.until).map_err(|error| failure(self.trace, at, error))?;
            self.begun = Some((side, late.until));
            block.record_stream(&self.sides[side].1);
        }
        Ok(())
    }

    fn after(&mut self, at: usize, _: &CudaAllocator) -> Result<(), String> {
        if let Some((side, until)) = self.begun.take() {
            // This event follows the event that the allocator recorded at the free.
            let event = self.record_event(&self.sides[side].1);
            let event = event.map_err(|error| failure(self.trace, at, error))?;
            if let Some(tick) = self.ticks.get_mut(&until) {
                tick.uses.push(event);
            }
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
        self.ticks.clear();
        if let Some(Waiter { events, thread, reached }) = self.waiter.take() {
            drop((events, reached));
            let _ = thread.join();
        }
    }
}
