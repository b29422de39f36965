//! Holding a stream back on a real driver: a host function that waits.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use warpline_cuda_sys_safe::sim::Hold;

/// How long a call may take before it counts as waiting for the gate, where the simulator's waits.
const SURE: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    Closed,
    Open,
    Needed,
}

#[derive(Debug)]
pub(crate) struct Latch {
    door: Mutex<Door>,
    moved: Condvar,
}

impl Latch {
    fn new() -> Arc<Self> {
        Arc::new(Self { door: Mutex::new(Door::Closed), moved: Condvar::new() })
    }

    fn leave_closed(&self, to: Door) {
        let mut door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        if *door == Door::Closed {
            *door = to;
        }
        self.moved.notify_all();
    }

    /// What the host function does.
    pub(crate) fn pass(&self) {
        let mut door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        while *door == Door::Closed {
            door = self.moved.wait(door).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn needed(&self) -> bool {
        *self.door.lock().unwrap_or_else(PoisonError::into_inner) == Door::Needed
    }
}

/// The gate of a lane.
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
            Self::Real(latch) => latch.leave_closed(Door::Open),
        }
    }

    /// Whether a call waited for it, and thereby opened it.
    pub(crate) fn was_needed(&self) -> bool {
        match self {
            Self::Simulated(hold) => hold.was_needed(),
            Self::Real(latch) => latch.needed(),
        }
    }
}

/// A latch, and until when it may stay closed.
type Watched = Option<(Instant, Arc<Latch>)>;

/// A thread that opens a gate for which a call has waited too long.
#[derive(Debug)]
pub(crate) struct Porter {
    /// How long a call may take that should not wait. A busy machine makes calls slow.
    pub(crate) patience: Duration,
    shared: Arc<(Mutex<Watched>, Condvar)>,
}

impl Porter {
    pub(crate) fn new() -> Self {
        let shared = Arc::new((Mutex::new(Watched::None), Condvar::new()));
        let own = Arc::clone(&shared);
        // Ends with the process.
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
                            latch.leave_closed(Door::Needed);
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

    /// For lanes whose gates open by themselves.
    pub(crate) fn idle() -> Self {
        Self { patience: SURE, shared: Arc::default() }
    }

    /// Makes a call that may wait for the gate, and should where it is `expected` to.
    pub(crate) fn watch<T>(
        &self,
        gate: Option<&Gate>,
        expected: bool,
        call: impl FnOnce() -> T,
    ) -> T {
        let Some(Gate::Real(latch)) = gate else { return call() };
        let patience = if expected { SURE } else { self.patience };
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
