//! The history of the allocator, one entry per step, in a ring buffer.

use std::backtrace::Backtrace;
use std::collections::{HashMap, VecDeque};
use std::panic::Location;
use std::sync::{Arc, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use warpline_sync::atomic::{AtomicBool, Ordering};
use warpline_sync::{Mutex, MutexGuard};

use crate::snapshot::{BlockState, Frame, SegmentInfo};

/// The kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TraceAction {
    /// A block was allocated.
    Alloc,
    /// The program freed a block.
    FreeRequested,
    /// A freed block became free for reuse: no other stream uses it any more.
    FreeCompleted,
    /// A segment was added to a heap.
    SegmentAlloc,
    /// A segment was released to the backend.
    SegmentFree,
    /// Memory became usable at these addresses.
    SegmentMap,
    /// Memory is no longer usable at these addresses.
    SegmentUnmap,
    /// A request failed because memory was exhausted.
    Oom,
    /// A snapshot was taken.
    Snapshot,
    /// The program added an annotation.
    Annotate,
}

impl TraceAction {
    /// Returns PyTorch's name of the action.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::Oom => "oom",
            Self::Snapshot => "snapshot",
            Self::Annotate => "annotate",
        }
    }

    fn is_alloc(self) -> bool {
        matches!(self, Self::Alloc | Self::SegmentAlloc | Self::SegmentMap)
    }
}

/// One step in the allocator's history.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TraceEntry {
    /// The kind of the step.
    pub action: TraceAction,
    /// Address of the memory. For [`TraceAction::Oom`], as in PyTorch, the free bytes of the
    /// device.
    pub address: u64,
    /// Size in bytes; for a block the requested size.
    pub size: usize,
    /// The id of the stream.
    pub stream: u64,
    /// Time in microseconds since 1970.
    pub time_us: u64,
    /// Location in the program, if known.
    pub site: Option<&'static Location<'static>>,
    /// Backtrace of the step, if the trace captures it.
    pub backtrace: Option<Arc<Backtrace>>,
    /// Text set by [`set_memory_metadata`](crate::CachingAllocator::set_memory_metadata), or the text of an annotation.
    pub user_metadata: Arc<str>,
}

impl TraceEntry {
    /// Returns the frames of the backtrace, or else the location, or else nothing. The innermost
    /// call is first.
    #[must_use]
    pub fn frames(&self) -> Vec<Frame> {
        frames(self.site, self.backtrace.as_deref())
    }
}

fn frames(site: Option<&Location<'_>>, backtrace: Option<&Backtrace>) -> Vec<Frame> {
    match backtrace {
        Some(backtrace) => Frame::of_backtrace(backtrace, site),
        None => site.map(Frame::from).into_iter().collect(),
    }
}

/// Selects the entries that get a backtrace. Capturing one takes microseconds; writing it takes
/// much longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Backtraces {
    /// No backtraces. Entries still have the location of the request.
    #[default]
    Off,
    /// Entries that allocate.
    Alloc,
    /// All entries.
    All,
}

/// Options of a trace (the arguments of `torch.cuda.memory._record_memory_history`).
///
/// ```
/// use warpline_alloc::{Backtraces, TraceConfig};
/// let config = TraceConfig { backtraces: Backtraces::Alloc, ..TraceConfig::default() };
/// assert_ne!(config, TraceConfig::default());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceConfig {
    /// Maximum number of entries; the oldest are dropped first. With 0 (`enabled="state"`), only
    /// live blocks and segments have their origin recorded. Default: 100 000; PyTorch's is
    /// unlimited.
    pub max_entries: usize,
    /// Entries that get a backtrace. Default: none.
    pub backtraces: Backtraces,
    /// Actions that are not recorded in the history. Default: none.
    pub skip_actions: Vec<TraceAction>,
}

impl Default for TraceConfig {
    /// Returns options for the last 100 000 entries, without backtraces.
    fn default() -> Self {
        Self { max_entries: 100_000, backtraces: Backtraces::Off, skip_actions: Vec::new() }
    }
}

/// The origin of live memory.
#[derive(Clone, Debug)]
struct AllocationOrigin {
    site: Option<&'static Location<'static>>,
    backtrace: Option<Arc<Backtrace>>,
}

/// The last entries, and the origins of all live blocks and segments.
#[derive(Clone, Debug, Default)]
pub(crate) struct TraceRing {
    config: TraceConfig,
    entries: VecDeque<TraceEntry>,
    blocks: HashMap<u64, AllocationOrigin>,
    segments: HashMap<u64, AllocationOrigin>,
    metadata: Arc<str>,
}

/// A step to record. `site` is the location of the request in the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceStep {
    pub(crate) action: TraceAction,
    pub(crate) address: u64,
    pub(crate) size: usize,
    pub(crate) stream: u64,
    pub(crate) site: Option<&'static Location<'static>>,
}

impl TraceRing {
    pub(crate) fn new(config: TraceConfig) -> Self {
        Self { config, ..Self::default() }
    }

    pub(crate) fn record(&mut self, step: TraceStep) {
        let metadata = Arc::clone(&self.metadata);
        self.push(step, metadata);
    }

    /// Adds an annotation.
    pub(crate) fn annotate(&mut self, text: &str, site: &'static Location<'static>) {
        let action = TraceAction::Annotate;
        let step = TraceStep { action, address: 0, size: 0, stream: 0, site: Some(site) };
        self.push(step, text.into());
    }

    /// Attaches `text` to all later entries (`torch.cuda.memory._set_memory_metadata`).
    pub(crate) fn set_metadata(&mut self, text: &str) {
        self.metadata = text.into();
    }

    fn push(&mut self, step: TraceStep, user_metadata: Arc<str>) {
        let TraceStep { action, address, size, stream, site } = step;
        let captures = match self.config.backtraces {
            Backtraces::Off => false,
            Backtraces::Alloc => action.is_alloc(),
            Backtraces::All => true,
        };
        let backtrace = captures.then(|| Arc::new(Backtrace::force_capture()));
        let origin = || AllocationOrigin { site, backtrace: backtrace.clone() };
        match action {
            TraceAction::Alloc => drop(self.blocks.insert(address, origin())),
            TraceAction::FreeCompleted => drop(self.blocks.remove(&address)),
            TraceAction::SegmentAlloc | TraceAction::SegmentMap => {
                self.segments.insert(address, origin());
            }
            TraceAction::SegmentFree | TraceAction::SegmentUnmap => {
                self.segments.remove(&address);
            }
            _ => {}
        }
        if self.config.max_entries == 0 || self.config.skip_actions.contains(&action) {
            return;
        }
        if self.entries.len() >= self.config.max_entries {
            self.entries.pop_front();
        }
        let time_us = now_us();
        let entry =
            TraceEntry { action, address, size, stream, time_us, site, backtrace, user_metadata };
        self.entries.push_back(entry);
    }

    /// Returns the entries, the oldest first.
    pub(crate) fn into_entries(self) -> Vec<TraceEntry> {
        self.entries.into()
    }

    /// Adds the recorded origins to segments and active blocks.
    pub(crate) fn add_origins(&self, segments: &mut [SegmentInfo]) {
        let find =
            |origins: &HashMap<u64, AllocationOrigin>, address: u64| match origins.get(&address) {
                Some(origin) => frames(origin.site, origin.backtrace.as_deref()),
                None => Vec::new(),
            };
        for segment in segments {
            segment.frames = find(&self.segments, segment.address);
            for block in &mut segment.blocks {
                if block.state != BlockState::Free {
                    block.frames = find(&self.blocks, block.address);
                }
            }
        }
    }
}

/// Returns the time in microseconds since 1970. 0 if the clock is earlier.
fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// A history that any thread can start and stop. While it is stopped, a step costs a load and a
/// branch.
///
/// Steps at one address must be recorded in the order in which they happen. The caller therefore
/// records them under the lock that orders them.
#[derive(Debug, Default)]
pub(crate) struct Tracer {
    on: AtomicBool,
    ring: Mutex<TraceRing>,
}

impl Tracer {
    /// Starts a new, empty history.
    pub(crate) fn start(&self, config: TraceConfig) {
        *self.ring() = TraceRing::new(config);
        self.on.store(true, Ordering::Relaxed);
    }

    /// Stops recording. The history can still be read.
    pub(crate) fn stop(&self) {
        self.on.store(false, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn record(&self, step: impl FnOnce() -> TraceStep) {
        if self.is_on() {
            self.record_on(step());
        }
    }

    #[cold]
    fn record_on(&self, step: TraceStep) {
        self.ring().record(step);
    }

    /// Returns a copy of the history, so that its backtraces can be formatted without the lock.
    /// Formatting takes long.
    pub(crate) fn copy(&self) -> TraceRing {
        self.ring().clone()
    }

    pub(crate) fn ring(&self) -> MutexGuard<'_, TraceRing> {
        // A panic leaves the ring consistent, because an entry is pushed whole or not at all.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
