//! The driver's lock, and the parts that all calls have in common: faults, lost devices, running
//! work, waiting.

use std::cell::Cell;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::sim::exec::{PickRule, run_host};
use crate::sim::state::work::{Label, Point};
use crate::sim::state::{SimState, error};
use crate::sim::{CallKind, Schedule, SimConfig};
use crate::*;

/// A set of simulated CUDA devices. The [module](crate::sim#behaviour) describes their behaviour.
pub struct SimDriver {
    process: u32,
    state: Mutex<SimState>,
    /// Signalled when a host function has ended.
    host_fn_ended: Condvar,
    pub(super) refused: owned::Refused,
    /// A reference to this driver itself, for other threads that run work of this driver.
    pub(super) me: Weak<Self>,
    pub(super) number: u64,
}

pub(super) type Guard<'a> = MutexGuard<'a, SimState>;

thread_local! {
    /// Whether this thread is running a host function.
    static IN_HOST_FN: Cell<bool> = const { Cell::new(false) };
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepResult {
    Ran,
    /// No operation can run.
    Idle,
    /// Another thread is running a host function.
    Busy,
}

/// Virtual time that a call takes on its host thread, in microseconds.
const CALL_TIME: f64 = 2.0;

impl SimConfig {
    /// Builds the devices. A clone of the result converts to `Arc<dyn Driver>`.
    #[must_use]
    pub fn build(self) -> Arc<SimDriver> {
        Arc::new_cyclic(|me| SimDriver::new(self, me.clone()))
    }
}

impl SimDriver {
    pub(super) fn new(config: SimConfig, me: Weak<Self>) -> Self {
        Self {
            process: std::process::id(),
            state: Mutex::new(SimState::new(config)),
            host_fn_ended: Condvar::new(),
            refused: owned::Refused::default(),
            me,
            number: Self::fresh_number(),
        }
    }

    pub(super) fn lock(&self) -> Guard<'_> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the lock, then drops cancelled host functions, because a drop may call the driver.
    pub(super) fn unlock(&self, mut state: Guard<'_>) {
        let cancelled_fns = std::mem::take(&mut state.cancelled_fns);
        drop(state);
        for f in cancelled_fns {
            run_host(Box::new(move || drop(f)));
        }
    }

    /// Releases the lock, drops the cancelled host functions, and acquires the lock again. Call
    /// this before a call goes on or returns, because the program may wait for these drops.
    fn drop_cancelled<'a>(&'a self, state: Guard<'a>) -> Guard<'a> {
        if state.cancelled_fns.is_empty() {
            return state;
        }
        self.unlock(state);
        self.lock()
    }

    /// Begins a call that concerns a device.
    pub(super) fn enter(&self, call: CallKind, device: usize) -> Result<Guard<'_>> {
        if std::process::id() != self.process {
            return Err(DriverError::ForkedChild { call: call.name(), parent: self.process });
        }
        if IN_HOST_FN.try_with(Cell::get).unwrap_or(false) {
            let why = "a host function must not call CUDA";
            return Err(error(call, CudaCode::NOT_PERMITTED, device, why));
        }
        // A schedule checker treats the rest of the call as one step.
        warpline_sync::let_others_run();
        let mut state = self.lock();
        *state.calls.entry(call).or_insert(0) += 1;
        *state.host_clock() += CALL_TIME;
        let count = state.devices.len();
        if device >= count {
            return Err(DriverError::InvalidDevice { device, count });
        }
        if let Some(code) = state.faults.hit(call, device, false) {
            let why = "injected fault";
            if code.is_sticky() {
                let cause = DriverError::cuda(call.name(), code, Some(device));
                if let DriverError::Cuda(cause) = cause.with_detail(|| why.into()) {
                    state.lose(device, *cause);
                    state.mark_loss_reported(device);
                }
            }
            self.unlock(state);
            return Err(error(call, code, device, why));
        }
        if call.needs_no_context() {
            // These calls report a lost device only after another call has reported the loss.
            if state.devices[device].loss_reported {
                state.report_loss(call, device)?;
            }
            return Ok(state);
        }
        if let Schedule::Seeded(_) = state.config.schedule {
            for _ in 0..state.random(4) {
                let (next, step) = self.step(state, PickRule::Random);
                state = next;
                if step != StepResult::Ran {
                    break;
                }
            }
        }
        let mut state = self.drop_cancelled(state);
        if !call.is_release() {
            state.report_loss(call, device)?;
        }
        if call.is_unsafe_in_capture() {
            state.check_unsafe_call(call, device)?;
        }
        state.devices[device].context = true;
        Ok(state)
    }

    /// Ends a call that enqueued work.
    pub(super) fn finish_enqueue<'a>(
        &'a self,
        state: Guard<'a>,
        call: CallKind,
        device: usize,
        point: Option<Point>,
    ) -> Result<()> {
        if let Some(point) = point
            && state.config.launch_blocking
        {
            let mut state = self.wait(state, &[point]);
            return state.report_loss(call, device);
        }
        self.after_enqueue(state);
        Ok(())
    }

    /// Under the eager schedule, runs all operations that can run.
    pub(super) fn after_enqueue<'a>(&'a self, mut state: Guard<'a>) {
        if state.config.schedule == Schedule::Eager {
            loop {
                let (next, step) = self.step(state, PickRule::Oldest);
                state = next;
                if step != StepResult::Ran {
                    break;
                }
            }
        }
        self.unlock(state);
    }

    /// Makes the host wait until all points are reached.
    pub(super) fn wait<'a>(&'a self, mut state: Guard<'a>, points: &[Point]) -> Guard<'a> {
        state.host_waits += 1;
        let mut stall_timer = StallTimer::new(state.config.collective_timeout);
        while let Some(&unmet) = points.iter().find(|&&p| !state.reached(p)) {
            let (next, step) = self.step(state, PickRule::Needed(unmet));
            state = match step {
                StepResult::Ran => {
                    stall_timer.restart();
                    next
                }
                StepResult::Busy => {
                    self.host_fn_ended.wait(next).unwrap_or_else(PoisonError::into_inner)
                }
                // An operation waits only for earlier operations. So if none can run, another rank
                // or process must continue first.
                StepResult::Idle if next.waits_for_value(unmet) => self.wait_for_value(next),
                StepResult::Idle => match self.wait_for_ranks(next, unmet, &mut stall_timer) {
                    (next, true) => next,
                    (next, false) => return self.drop_cancelled(next),
                },
            };
        }
        points.iter().for_each(|&point| state.host_saw(point));
        state.pools_at_synchronisation();
        self.drop_cancelled(state)
    }

    /// Returns whether a point is reached. If the point is not reached, first runs one operation
    /// that the point needs.
    pub(super) fn query<'a>(&'a self, state: Guard<'a>, point: Point) -> (Guard<'a>, bool) {
        let (mut state, step) = match state.reached(point) {
            true => (state, StepResult::Ran),
            false => self.step(state, PickRule::Toward(point)),
        };
        if step == StepResult::Idle {
            state = self.drive_ranks(state, point);
        }
        let reached = state.reached(point);
        if reached {
            state.host_saw(point);
        }
        (self.drop_cancelled(state), reached)
    }

    /// Runs one operation. A host function runs outside the lock, and no other operation runs
    /// meanwhile.
    pub(super) fn step<'a>(
        &'a self,
        mut state: Guard<'a>,
        pick: PickRule,
    ) -> (Guard<'a>, StepResult) {
        if state.host_fn_running {
            return (state, StepResult::Busy);
        }
        let Some(key) = state.pick(pick) else { return (state, StepResult::Idle) };
        let Some(f) = state.run_next(key) else { return (state, StepResult::Ran) };
        let begin = state.streams.get(&key).map_or(0.0, |s| s.clock);
        state.host_fn_running = true;
        drop(state);
        let _ = IN_HOST_FN.try_with(|inside| inside.set(true));
        // `run_host` catches a panic, as the real driver's callback does.
        run_host(f);
        let _ = IN_HOST_FN.try_with(|inside| inside.set(false));
        let mut state = self.lock();
        state.host_fn_running = false;
        let label = Label { op: "host function", ..Label::of(CallKind::LaunchHostFunc) };
        state.ended(key, label, begin, Ok(3.0));
        self.host_fn_ended.notify_all();
        nccl::sim::notify_change();
        (state, StepResult::Ran)
    }

    /// Runs one operation, chosen by the schedule. Returns `false` if no operation can run.
    pub fn run_one(&self) -> bool {
        let state = self.lock();
        let pick = match state.config.schedule {
            Schedule::Seeded(_) => PickRule::Random,
            _ => PickRule::Oldest,
        };
        let (state, step) = self.step(state, pick);
        self.unlock(state);
        step == StepResult::Ran
    }

    /// Runs all operations that can run.
    pub fn run_all(&self) {
        while self.run_one() {}
    }
}

impl fmt::Debug for SimDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDriver").field("process", &self.process).finish_non_exhaustive()
    }
}

/// Limit on the time of a wait without progress.
pub(super) struct StallTimer {
    limit: Duration,
    since: Instant,
}

impl StallTimer {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, since: Instant::now() }
    }

    pub(super) fn restart(&mut self) {
        self.since = Instant::now();
    }

    pub(super) fn remaining(&self) -> Duration {
        self.limit.saturating_sub(self.since.elapsed())
    }
}
