//! Waits of streams for words in host memory, which other processes may write to.
//!
//! Work runs only inside driver calls, and another process that waits for a word does not call this
//! driver. So a thread runs the work that precedes writes of words, some time after the writes were
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
        // Unlocking the memory waits for all enqueued work. By the driver's contract, only atomics
        // of this size access the word.
        let word = unsafe { Word::new(at) };
        self.enqueue(key, Label::of(call), kind(word), &[]).map(drop)
    }

    /// Returns `true` if a wait for a word's value blocks the way to a point.
    pub(super) fn waits_for_value(&self, point: Point) -> bool {
        let next = self.next_toward(point).and_then(|key| self.streams.get(&key)?.queue.front());
        next.is_some_and(SimStreamOp::waits_for_value)
    }

    /// Returns the end of each stream's first write of a word.
    fn writes(&self) -> Vec<Point> {
        let first = |(&stream, s): (&u64, &StreamState)| {
            let at =
                s.queue.iter().position(|op| matches!(op.kind, StreamOpKind::WriteValue(..)))?;
            Some(Point { stream, position: s.done + at as u64 + 1 })
        };
        self.streams.iter().filter_map(first).collect()
    }
}

/// Interval between two reads of a word during a wait.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Time after which the thread runs a write that no driver call has run.
const GRACE_PERIOD: Duration = Duration::from_millis(2);

impl SimDriver {
    /// Continues a host wait that is blocked by a word: runs work toward writes, or sleeps.
    pub(super) fn wait_for_value<'a>(&'a self, state: Guard<'a>) -> Guard<'a> {
        let (state, ran) = self.run_toward_writes(state);
        if ran {
            return state;
        }
        self.unlock(state);
        std::thread::sleep(POLL_INTERVAL);
        self.lock()
    }

    /// Runs one operation toward a write of a word, because the awaited write may be this driver's
    /// own.
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

    /// Starts the thread that runs the work before writes of words, unless it is running.
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
