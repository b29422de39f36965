//! The race detector of [`crate::SyncPolicy::Manual`].
//!
//! The `Uses` of each storage hold a history of accesses: the bytes, the stream and operation, and
//! the argument of the call. Before work is enqueued, its declared accesses are compared with the
//! history: first the hulls of the byte ranges, then the bytes themselves within a limit. An access
//! that conflicts, shares a byte and does not come before by the streams' clocks is a race.
//!
//! A history entry is dropped once a later one stands in for it: a later access that is ordered
//! after it, touches all its bytes and conflicts with everything that it conflicts with.
//!
//! The history of freed device memory is kept by address, for the next owner of the addresses,
//! except for order that the allocator itself provides (`graves.rs`). If the allocator maps a free
//! page at another address, the history moves along. Host code is compared with the history of
//! page-locked memory. That host code waits for such memory, which soundness requires, does not
//! count as order.

mod check;
mod graves;
mod history;
mod printed;
mod report;
mod span;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::panic::Location;
use std::sync::{Arc, PoisonError};

use warpline_cuda_sys_safe::Access;
use warpline_stream::Stream;
use warpline_sync::atomic::{AtomicU8, Ordering};
use warpline_sync::{Mutex, MutexGuard};

use crate::{CudaDevice, Result};

pub(crate) use check::{Watch, bury, check_host};
pub(crate) use history::History;
pub use printed::printed;
pub(crate) use span::{Span, Touch};

/// Races kept for a program that does not ask for them.
const MAX_RACES: usize = 1024;

/// What is done with races under [`crate::SyncPolicy::Manual`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RaceReport {
    /// They are not looked for.
    Off,
    /// They are kept for `take_races`.
    #[default]
    Collect,
    /// They are kept, and logged as warnings through `tracing`.
    Log,
    /// The op that completes one is not enqueued and returns [`crate::ErrorKind::Race`]. Possible
    /// races are kept, as by [`RaceReport::Collect`].
    Error,
}

/// One side of a race.
#[derive(Clone, Debug)]
pub struct RacingUse {
    /// The op.
    pub op: &'static str,
    /// Where it was called.
    pub location: &'static Location<'static>,
    /// The line that printed the tensor, where that is what read it: formatting is not told the place
    /// that it is called from, so that `location` is one inside the library.
    pub printed_at: Option<Arc<str>>,
    /// Which of its arguments it was, in the order in which its kernel takes them, from 0.
    pub argument: usize,
    /// What it did with it.
    pub access: Access,
    /// The stream it was enqueued on; `None` for the host's own code.
    pub stream: Option<Stream>,
}

/// Two accesses to the same bytes, at least one a write, that no event, stream order or
/// synchronisation orders.
///
/// Its text is what to know and what to do, in sentences; `{:#}` adds a [`Race::picture`].
#[derive(Clone, Debug)]
pub struct Race {
    /// The access that was enqueued first.
    pub first: RacingUse,
    /// The access that should have come after it.
    pub second: RacingUse,
    /// Between which bytes of the second's storage both lie.
    pub bytes: Range<u64>,
    /// Whether both are certain to touch a byte. If not, their strided views interleave in a way
    /// that takes too long to tell.
    pub certain: bool,
    /// Where the second's storage was allocated.
    pub allocated: &'static Location<'static>,
    storage_bytes: usize,
    /// Of memory that was freed between the two: where it had been allocated, for which stream.
    freed: Option<(&'static Location<'static>, Option<Stream>)>,
}

/// What a runtime knows of races.
#[derive(Debug)]
pub(crate) struct Detector {
    report: AtomicU8,
    certain: Mutex<Vec<Race>>,
    possible: Mutex<Vec<Race>>,
    graves: Mutex<graves::Graves>,
}

impl Detector {
    pub(crate) fn new(report: RaceReport) -> Self {
        Self {
            report: AtomicU8::new(report as u8),
            certain: Mutex::default(),
            possible: Mutex::default(),
            graves: Mutex::default(),
        }
    }

    /// Learns from a device's allocator where it maps free memory anew.
    pub(crate) fn follow(self: &Arc<Self>, device: &CudaDevice) {
        let (detector, index) = (Arc::clone(self), device.index());
        device.allocator().on_remap(move |from, to, bytes| {
            detector.graves().moved(index, from as i64, to as i64, bytes as i64);
        });
    }

    pub(crate) fn set_report(&self, report: RaceReport) {
        self.report.store(report as u8, Ordering::Relaxed);
    }

    pub(crate) fn report(&self) -> RaceReport {
        use RaceReport::{Collect, Error, Log, Off};
        let value = self.report.load(Ordering::Relaxed);
        [Off, Collect, Log, Error].into_iter().find(|r| *r as u8 == value).unwrap_or_default()
    }

    /// Notes races. The first that is certain is an error if they are to be.
    fn note(&self, races: impl IntoIterator<Item = Race>) -> Result<()> {
        let report = self.report();
        for race in races {
            if report == RaceReport::Error && race.certain {
                return Err(race.into());
            }
            if report == RaceReport::Log {
                tracing::warn!(target: "warpline::race", "{race:#}");
            }
            let kept = if race.certain { &self.certain } else { &self.possible };
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() < MAX_RACES {
                kept.push(race);
            }
        }
        Ok(())
    }

    pub(crate) fn take(&self, certain: bool) -> Vec<Race> {
        let kept = if certain { &self.certain } else { &self.possible };
        std::mem::take(&mut *kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn graves(&self) -> MutexGuard<'_, graves::Graves> {
        self.graves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
