//! What the allocator did, one entry per step, in a ring.

use std::backtrace::Backtrace;
use std::collections::{HashMap, VecDeque};
use std::panic::Location;
use std::sync::{Arc, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use warpline_sync::atomic::{AtomicBool, Ordering};
use warpline_sync::{Mutex, MutexGuard};

use crate::snapshot::{BlockState, Frame, SegmentInfo};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TraceAction {
    /// A caller got a block.
    Alloc,
    /// A caller gave a block back.
    FreeRequested,
    /// The block can be used again: no other stream uses it any more.
    FreeCompleted,
    /// The backend gave a segment.
    SegmentAlloc,
    /// A segment went back to the backend.
    SegmentFree,
    /// Pages were mapped.
    SegmentMap,
    /// Pages were unmapped.
    SegmentUnmap,
    /// A request failed for want of memory.
    Oom,
    /// A snapshot was taken.
    Snapshot,
    /// The program set a mark.
    Annotate,
}

impl TraceAction {
    /// PyTorch's name for it.
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

/// One step of the allocator.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TraceEntry {
    /// What happened.
    pub action: TraceAction,
    /// Where; of [`TraceAction::Oom`], as in PyTorch, the device's free bytes.
    pub address: u64,
    /// How many bytes; of a block those that were asked for.
    pub size: usize,
    /// The stream's id.
    pub stream: u64,
    /// When, in microseconds since 1970.
    pub time_us: u64,
    /// The place in the program, where known.
    pub site: Option<&'static Location<'static>>,
    /// The calls that led there, if they were asked for.
    pub backtrace: Option<Arc<Backtrace>>,
    /// What the program attached to its steps, or the text of a mark.
    pub user_metadata: Arc<str>,
}

impl TraceEntry {
    /// The backtrace if there is one, else the place, else nothing. The innermost call is first.
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

/// Which entries get a backtrace. Capturing one takes microseconds, and much longer to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Backtraces {
    /// None; entries still name the place that asked.
    #[default]
    Off,
    /// Those that allocate.
    Alloc,
    /// All.
    All,
}

/// What a trace keeps (the arguments of `torch.cuda.memory._record_memory_history`).
///
/// ```
/// use warpline_alloc::{Backtraces, TraceConfig};
/// let config = TraceConfig { backtraces: Backtraces::Alloc, ..TraceConfig::default() };
/// assert_ne!(config, TraceConfig::default());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceConfig {
    /// How many entries are kept; the oldest go first. With 0 (`enabled="state"`) only live
    /// blocks and segments know who asked for them.
    pub max_entries: usize,
    /// Which entries get a backtrace.
    pub backtraces: Backtraces,
    /// Steps that are not kept as entries.
    pub skip_actions: Vec<TraceAction>,
}

impl Default for TraceConfig {
    /// The last 100 000 entries, without backtraces. PyTorch keeps all.
    fn default() -> Self {
        Self { max_entries: 100_000, backtraces: Backtraces::Off, skip_actions: Vec::new() }
    }
}

/// Who asked for something that lives.
#[derive(Clone, Debug)]
struct Origin {
    site: Option<&'static Location<'static>>,
    backtrace: Option<Arc<Backtrace>>,
}

/// The last entries, and the origin of all that lives.
#[derive(Clone, Debug, Default)]
pub(crate) struct TraceRing {
    config: TraceConfig,
    entries: VecDeque<TraceEntry>,
    blocks: HashMap<u64, Origin>,
    segments: HashMap<u64, Origin>,
    metadata: Arc<str>,
}

/// A step to record. `site` is that of the caller's call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
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

    pub(crate) fn record(&mut self, step: Step) {
        let metadata = Arc::clone(&self.metadata);
        self.push(step, metadata);
    }

    /// Sets a mark.
    pub(crate) fn annotate(&mut self, text: &str, site: &'static Location<'static>) {
        let action = TraceAction::Annotate;
        let step = Step { action, address: 0, size: 0, stream: 0, site: Some(site) };
        self.push(step, text.into());
    }

    /// Attaches a text to all later entries (`torch.cuda.memory._set_memory_metadata`).
    pub(crate) fn set_metadata(&mut self, text: &str) {
        self.metadata = text.into();
    }

    fn push(&mut self, step: Step, user_metadata: Arc<str>) {
        let Step { action, address, size, stream, site } = step;
        let captures = match self.config.backtraces {
            Backtraces::Off => false,
            Backtraces::Alloc => action.is_alloc(),
            Backtraces::All => true,
        };
        let backtrace = captures.then(|| Arc::new(Backtrace::force_capture()));
        let origin = || Origin { site, backtrace: backtrace.clone() };
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

    /// The entries, the oldest first.
    pub(crate) fn into_entries(self) -> Vec<TraceEntry> {
        self.entries.into()
    }

    /// Says of segments and active blocks who asked for them, where that was seen.
    pub(crate) fn name_origins(&self, segments: &mut [SegmentInfo]) {
        let find = |origins: &HashMap<u64, Origin>, address: u64| match origins.get(&address) {
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

/// Microseconds since 1970; 0 on a clock from before.
fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// A ring that can be switched on and off from any thread. While it is off, a step costs a load
/// and a branch.
///
/// Steps on one address must be recorded in their order, so under the lock that orders them.
#[derive(Debug, Default)]
pub(crate) struct Tracer {
    on: AtomicBool,
    ring: Mutex<TraceRing>,
}

impl Tracer {
    /// Starts anew, with nothing recorded.
    pub(crate) fn start(&self, config: TraceConfig) {
        *self.ring() = TraceRing::new(config);
        self.on.store(true, Ordering::Relaxed);
    }

    /// Stops. What was recorded can still be read.
    pub(crate) fn stop(&self) {
        self.on.store(false, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn record(&self, step: impl FnOnce() -> Step) {
        if self.is_on() {
            self.record_on(step());
        }
    }

    #[cold]
    fn record_on(&self, step: Step) {
        self.ring().record(step);
    }

    /// What is recorded by now. To read it takes long when it has backtraces, and is done on this
    /// copy, so that nobody waits.
    pub(crate) fn copy(&self) -> TraceRing {
        self.ring().clone()
    }

    pub(crate) fn ring(&self) -> MutexGuard<'_, TraceRing> {
        // An entry is pushed whole or not at all.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
