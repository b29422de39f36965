//! The race detector of [`crate::SyncPolicy::Manual`].
//!
//! The `Uses` of each storage have a history of accesses: the bytes, the stream and operation, and
//! the argument of the call. Before work is enqueued, its declared accesses are compared with the
//! history: first the address ranges from the first byte to the last, then the single bytes, within
//! a limit of steps. A recorded access races with the new access if the two conflict, share a byte,
//! and are not ordered by the streams' clocks.
//!
//! A recorded access is dropped when a later access replaces it (`history.rs`).
//!
//! The history of freed device memory is kept by address, and the next storage at these addresses
//! receives it (`freed.rs`). Accesses that the allocator itself orders are left out. If the
//! allocator maps a free page at another address, the history follows. Accesses by host code are
//! compared with the history of page-locked memory. For soundness, host code always waits for
//! device work on such memory; this wait does not count as order.

mod check;
mod freed;
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

pub(crate) use check::{CheckedAccesses, check_host, record_freed};
pub(crate) use history::History;
pub use printed::printed;
pub(crate) use span::{Span, Touch};

/// Maximum number of races that are kept until the program takes them.
const MAX_RACES: usize = 1024;

/// Handling of races under [`crate::SyncPolicy::Manual`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RaceReport {
    /// Races are not detected.
    Off,
    /// Races are kept for [`Runtime::take_races`](crate::Runtime::take_races).
    #[default]
    Collect,
    /// Races are kept, and logged as warnings through `tracing`.
    Log,
    /// An op that would race is not enqueued and returns [`crate::ErrorKind::Race`]. Possible races
    /// are kept, as with [`RaceReport::Collect`].
    Error,
}

/// One of the two accesses of a race.
#[derive(Clone, Debug)]
pub struct RacingUse {
    /// Name of the op.
    pub op: &'static str,
    /// Location of the op's call.
    pub location: &'static Location<'static>,
    /// The line that printed the tensor, if printing read it. `location` is then inside the
    /// library, because formatting does not know its caller.
    pub printed_at: Option<Arc<str>>,
    /// Index of the argument in the order of the kernel's operands, from 0.
    pub argument: usize,
    /// The op's access to the argument.
    pub access: Access,
    /// The stream that the op was enqueued on. `None` for host code.
    pub stream: Option<Stream>,
}

/// Two accesses to the same bytes. At least one of the accesses is a write, and no event, stream
/// order or synchronization orders them.
///
/// `Display` describes the race and the remedy in sentences; `{:#}` adds a [`Race::picture`].
#[derive(Clone, Debug)]
pub struct Race {
    /// The access that was enqueued first.
    pub first: RacingUse,
    /// The later access, which nothing orders after `first`.
    pub second: RacingUse,
    /// Range of bytes in the second access's storage that contains the shared bytes.
    pub bytes: Range<u64>,
    /// Whether the two accesses certainly share a byte. `false` if their strided views interleave
    /// in a way that takes too long to decide.
    pub certain: bool,
    /// Location of the allocation of the second access's storage.
    pub allocated: &'static Location<'static>,
    storage_bytes: usize,
    /// Location of the earlier allocation and its stream, if the memory was freed between the
    /// accesses.
    freed: Option<(&'static Location<'static>, Option<Stream>)>,
}

/// The race detector of a runtime: its races, and the history of freed memory.
#[derive(Debug)]
pub(crate) struct Detector {
    report: AtomicU8,
    certain: Mutex<Vec<Race>>,
    possible: Mutex<Vec<Race>>,
    freed: Mutex<freed::FreedMemory>,
}

impl Detector {
    pub(crate) fn new(report: RaceReport) -> Self {
        Self {
            report: AtomicU8::new(report as u8),
            certain: Mutex::default(),
            possible: Mutex::default(),
            freed: Mutex::default(),
        }
    }

    /// Moves the history of free memory whenever the device's allocator maps the memory at another
    /// address.
    pub(crate) fn follow(self: &Arc<Self>, device: &CudaDevice) {
        let (detector, index) = (Arc::clone(self), device.index());
        device.allocator().on_remap(move |from, to, bytes| {
            detector.freed().moved(index, from as i64, to as i64, bytes as i64);
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

    /// Records races. Under [`RaceReport::Error`], returns the first certain race as an error.
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

    fn freed(&self) -> MutexGuard<'_, freed::FreedMemory> {
        self.freed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
