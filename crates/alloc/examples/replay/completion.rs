//! Uses by other streams that end where a trace says so.
//!
//! A block whose completion comes later in the trace than its free is used, at the free, by a side
//! stream that waits for a *tick* of a clock. The clock is a stream too: its ticks are host functions
//! that return where the completions stand, one after another. So the allocator sees an event that
//! really is pending, and only one host function at a time is blocked, whatever the order of the
//! completions.
//!
//! A thread waits for the clock. On a simulated device it is the one that runs the host function
//! (there, work runs only inside calls), and no other work runs meanwhile; on a real device the
//! driver runs it.

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

/// How long a use lasts at most, where nothing says otherwise. Only a call that waits for it makes
/// it last.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Holds back completions during one replay.
#[derive(Debug)]
pub struct Completions<'a> {
    driver: Arc<dyn Driver>,
    trace: &'a Trace,
    patience: Duration,
    clock: Stream,
    /// Streams that use freed memory, and when the last use of each ends.
    sides: Vec<(usize, Stream)>,
    /// Frees still to come.
    late: &'a [Late],
    /// When completions are still to come that the clock has no tick for.
    unticked: VecDeque<usize>,
    /// Ticks that have not come, by time: what the clock was given for each.
    ticks: BTreeMap<usize, Tick>,
    /// The side stream whose use began at the event that is happening, and when that ends.
    begun: Option<(usize, usize)>,
    /// A use ended because something waited for it.
    waited: Arc<AtomicBool>,
    waiter: Option<Waiter>,
}

#[derive(Debug)]
struct Tick {
    /// Lets the tick return when dropped.
    open: Sender<()>,
    /// Told when it began.
    began: Receiver<()>,
    /// What the clock comes to once the tick has returned.
    event: Arc<Event>,
    /// What side streams come to after that.
    uses: Vec<Event>,
}

/// A thread that waits for events, and tells of each.
#[derive(Debug)]
struct Waiter {
    events: Sender<Arc<Event>>,
    reached: Receiver<Result<(), DriverError>>,
    thread: JoinHandle<()>,
}

impl<'a> Completions<'a> {
    /// For one replay, in which uses last `patience` at most.
    ///
    /// # Errors
    /// The trace has no completions; the driver's.
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

    /// Gives a side stream work that ends when its use does. Returns which.
    fn begin(&mut self, at: usize, until: usize) -> Result<usize, DriverError> {
        let runs = !self.ticks.is_empty();
        while let Some(time) = self.unticked.pop_front_if(|time| *time <= until) {
            // Those that passed are of no use any more.
            if time > at {
                let tick = self.tick()?;
                self.ticks.insert(time, tick);
            }
        }
        if !runs {
            self.start();
        }
        // Of the streams that are done by then, the one that is done last.
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

    /// Enqueues the clock's next tick.
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
        // SAFETY: the stream is alive and of this driver.
        unsafe { self.driver.launch_host_func(self.clock.handle(), gate) }?;
        let event = Arc::new(self.mark(&self.clock)?);
        Ok(Tick { open, began, event, uses: Vec::new() })
    }

    /// An event of what a stream was given so far.
    fn mark(&self, stream: &Stream) -> Result<Event, DriverError> {
        let event = Event::new(&self.driver, 0, EventFlags::default())?;
        event.record(stream)?;
        Ok(event)
    }

    /// Has the thread wait for the next tick, which must run before anything else waits for it.
    fn start(&self) {
        if let (Some(tick), Some(waiter)) = (self.ticks.values().next(), &self.waiter) {
            let _ = waiter.events.send(Arc::clone(&tick.event));
            let _ = tick.began.recv_timeout(self.patience);
        }
    }

    /// Lets the next tick come, and waits for the uses that end there.
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

/// Streams that wait for no other.
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
            // After what the allocator recorded at the free.
            let mark = self.mark(&self.sides[side].1);
            let mark = mark.map_err(|error| failure(self.trace, at, error))?;
            if let Some(tick) = self.ticks.get_mut(&until) {
                tick.uses.push(mark);
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
