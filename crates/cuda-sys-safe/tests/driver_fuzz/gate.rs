//! Gates, which hold a stream back. On a real driver, a gate is a host function that blocks.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use warpline_cuda_sys_safe::sim::Hold;

/// Time after which a call counts as waiting for the gate, if the call waits on the simulator.
const EXPECTED_WAIT: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LatchState {
    Closed,
    Open,
    Needed,
}

#[derive(Debug)]
pub(crate) struct Latch {
    state: Mutex<LatchState>,
    changed: Condvar,
}

impl Latch {
    fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(LatchState::Closed), changed: Condvar::new() })
    }

    fn leave_closed(&self, to: LatchState) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if *state == LatchState::Closed {
            *state = to;
        }
        self.changed.notify_all();
    }

    /// Blocks until the latch opens. Runs as a host function.
    pub(crate) fn pass(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while *state == LatchState::Closed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn needed(&self) -> bool {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) == LatchState::Needed
    }
}

/// The gate of one driver.
#[derive(Clone, Debug)]
pub(crate) enum Gate {
    Simulated(Hold),
    Real(Arc<Latch>),
}

impl Gate {
    pub(crate) fn real() -> (Self, Arc<Latch>) {
        let latch = Latch::new();
        (Self::Real(Arc::clone(&latch)), latch)
    }

    pub(crate) fn open(&self) {
        match self {
            Self::Simulated(hold) => hold.open(),
            Self::Real(latch) => latch.leave_closed(LatchState::Open),
        }
    }

    /// Returns `true` if a call waited for the gate, and thereby opened it.
    pub(crate) fn was_needed(&self) -> bool {
        match self {
            Self::Simulated(hold) => hold.was_needed(),
            Self::Real(latch) => latch.needed(),
        }
    }
}

/// A latch and the time at which it is opened.
type Watched = Option<(Instant, Arc<Latch>)>;

/// A thread that opens a gate when a call has waited too long.
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// Time that a call may take if it should not wait. A busy machine makes calls slow.
    pub(crate) patience: Duration,
    shared: Arc<(Mutex<Watched>, Condvar)>,
}

impl Watchdog {
    pub(crate) fn new() -> Self {
        let shared = Arc::new((Mutex::new(Watched::None), Condvar::new()));
        let own = Arc::clone(&shared);
        // The thread ends with the process.
        std::thread::spawn(move || {
            let (watch, changed) = &*own;
            let mut armed = watch.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                let now = Instant::now();
                let left = armed.as_ref().map(|(until, _)| until.saturating_duration_since(now));
                armed = match left {
                    None => changed.wait(armed).unwrap_or_else(PoisonError::into_inner),
                    Some(Duration::ZERO) => {
                        if let Some((_, latch)) = armed.take() {
                            latch.leave_closed(LatchState::Needed);
                        }
                        armed
                    }
                    Some(left) => {
                        let woken = changed.wait_timeout(armed, left);
                        woken.unwrap_or_else(PoisonError::into_inner).0
                    }
                };
            }
        });
        Self { patience: Duration::from_secs(1), shared }
    }

    /// Creates a watchdog for drivers whose gates open by themselves.
    pub(crate) fn idle() -> Self {
        Self { patience: EXPECTED_WAIT, shared: Arc::default() }
    }

    /// Makes a call that may wait for the gate. `expected` tells whether it should wait.
    pub(crate) fn watch<T>(
        &self,
        gate: Option<&Gate>,
        expected: bool,
        call: impl FnOnce() -> T,
    ) -> T {
        let Some(Gate::Real(latch)) = gate else { return call() };
        let patience = if expected { EXPECTED_WAIT } else { self.patience };
        self.arm(Some((Instant::now() + patience, Arc::clone(latch))));
        let result = call();
        self.arm(None);
        result
    }

    fn arm(&self, watch: Watched) {
        *self.shared.0.lock().unwrap_or_else(PoisonError::into_inner) = watch;
        self.shared.1.notify_one();
    }
}
