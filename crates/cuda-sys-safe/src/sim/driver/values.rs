//! Waits of streams for values in host memory (`cuStreamWaitValue32`), and writes of such values
//! (`cuStreamWriteValue32`).
//!
//! A simulated device runs work only inside driver calls. Another process may wait for a value that
//! a stream here will write, and its calls do not reach this driver. A background thread therefore
//! runs the queued work up to and including each value write, some time after the write was
//! enqueued. The thread ends when no write is left.

use std::ptr::NonNull;
use std::time::Duration;

use super::session::{Guard, SimDriver, StepResult};
use crate::sim::CallKind;
use crate::sim::exec::PickRule;
use crate::sim::state::memory::HostOverlap;
use crate::sim::state::streams::{SimStreamOp, StreamOpKind, StreamState};
use crate::sim::state::word::Word;
use crate::sim::state::work::{Label, Point};
use crate::sim::state::{SimState, error};
use crate::*;

impl SimState {
    pub(super) fn stream_value(
        &mut self,
        call: CallKind,
        stream: StreamHandle,
        word: NonNull<u32>,
        kind: impl FnOnce(Word) -> StreamOpKind,
    ) -> Result<()> {
        let key = self.stream_key(call, stream)?;
        let at = word.as_ptr().expose_provenance();
        if !at.is_multiple_of(4) || self.memory.host_range(at, 4) != HostOverlap::Inside {
            let why = "the word does not lie in page-locked memory";
            return Err(error(call, CudaCode::INVALID_VALUE, stream.device(), why));
        }
        self.check_captures(key, call)?;
        // SAFETY: the address was just checked to be a multiple of 4 in page-locked memory.
        // `host_free` and `host_unregister` wait for all enqueued work. The contract of
        // `Driver::stream_wait_value32` permits only 32-bit atomics to access the word.
        let word = unsafe { Word::new(at) };
        self.enqueue(key, Label::of(call), kind(word), &[]).map(drop)
    }

    /// Returns `true` if a wait for a value blocks the way to a point.
    pub(super) fn waits_for_value(&self, point: Point) -> bool {
        let next = self.next_toward(point).and_then(|key| self.streams.get(&key)?.queue.front());
        next.is_some_and(SimStreamOp::waits_for_value)
    }

    /// Returns the end of the first queued value write of each stream.
    fn writes(&self) -> Vec<Point> {
        let first = |(&stream, s): (&u64, &StreamState)| {
            let at =
                s.queue.iter().position(|op| matches!(op.kind, StreamOpKind::WriteValue(..)))?;
            Some(Point { stream, position: s.done + at as u64 + 1 })
        };
        self.streams.iter().filter_map(first).collect()
    }
}

/// Interval between two reads of the value during a wait.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Time after which the background thread runs a value write that no driver call has run.
const GRACE_PERIOD: Duration = Duration::from_millis(2);

impl SimDriver {
    /// Continues a host wait that is blocked because a stream waits for a value. Calls
    /// [`run_toward_writes`](Self::run_toward_writes), and sleeps if no operation ran.
    pub(super) fn wait_for_value<'a>(&'a self, state: Guard<'a>) -> Guard<'a> {
        let (state, ran) = self.run_toward_writes(state);
        if ran {
            return state;
        }
        self.unlock(state);
        std::thread::sleep(POLL_INTERVAL);
        self.lock()
    }

    /// Runs a queued value write, or one operation that must run before a queued value write. One
    /// of these writes may store the awaited value. Returns whether an operation ran.
    fn run_toward_writes<'a>(&'a self, mut state: Guard<'a>) -> (Guard<'a>, bool) {
        for point in state.writes() {
            let (next, step) = self.step(state, PickRule::Toward(point));
            state = next;
            if step == StepResult::Ran {
                return (state, true);
            }
        }
        (state, false)
    }

    /// Starts the background thread, unless it already runs or no stream has a queued value write.
    /// The thread runs the queued work up to and including these writes, so that other processes
    /// that wait for the values make progress.
    pub(super) fn write_values_in_time(&self) {
        let mut state = self.lock();
        if state.writes_values || state.writes().is_empty() {
            return;
        }
        state.writes_values = true;
        drop(state);
        let me = self.me.clone();
        let run = move || {
            loop {
                std::thread::sleep(GRACE_PERIOD);
                let Some(driver) = me.upgrade() else { return };
                let mut state = driver.lock();
                loop {
                    let (next, ran) = driver.run_toward_writes(state);
                    driver.unlock(next);
                    state = driver.lock();
                    if !ran {
                        break;
                    }
                }
                if state.writes().is_empty() {
                    state.writes_values = false;
                    return;
                }
            }
        };
        let spawned = std::thread::Builder::new().name("sim-values".into()).spawn(run);
        if spawned.is_err() {
            self.lock().writes_values = false; // only driver calls run the writes
        }
    }
}
