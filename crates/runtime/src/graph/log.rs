//! The log of a capture in progress: the storages that its work uses, and their order.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use smallvec::SmallVec;
use warpline_alloc::cuda::CudaBlock;
use warpline_cuda_sys_safe::owned::Communicator;
use warpline_cuda_sys_safe::{DriverError, StreamHandle};
use warpline_stream::{Captured, CapturedChecks, OpNumber, Stream};
use warpline_sync::{Mutex, MutexGuard};

use super::pool::GraphPool;
use crate::launch::{Marking, TOKEN};
use crate::race::{Touch, Watch};
use crate::replays::{self, Replays};
use crate::storage::{Marks, Member, Replayed, Uses, WeakStorage, uses_elsewhere};
use crate::{CudaDevice, Error, Result, Site, Storage, SyncPolicy};

/// The log of one capture.
pub(crate) struct Log {
    pub(super) pool: GraphPool,
    pub(super) state: Storage,
    pub(super) replayed: Replayed,
    noted: Mutex<Noted>,
    /// Reports of failed checks by captured kernels.
    checks: Arc<CapturedChecks>,
    /// Communicators used in the capture. Not part of `noted`, whose lock is held while their
    /// collectives are enqueued.
    communicators: Mutex<Vec<Taking>>,
}

#[derive(Default)]
struct Noted {
    /// By storage key. An entry holds its storage, so that no other storage gets the key.
    entries: HashMap<usize, Entry>,
    /// Replay flags of other captures whose results this capture uses.
    needed: Vec<Replayed>,
    /// Storages made in the capture, by key.
    made: HashMap<usize, WeakStorage>,
    /// Twins of the streams that received memory.
    twins: Vec<Stream>,
    /// Dropped memory that other streams of the capture may still use, with its uses.
    parked: Vec<(Arc<CudaBlock>, Uses)>,
    /// Number of values by which random ops advanced the generator.
    draws: u64,
    /// Whether the capture has ended.
    over: bool,
}

struct Entry {
    storage: Held,
    writes: bool,
    /// Captured uses of the storage, on the streams' twins.
    uses: Box<Uses>,
}

/// A graph's reference to a storage.
pub(super) enum Held {
    /// A storage from outside the capture, which replays use.
    Kept(Storage),
    /// A storage in the graph's pool. The pool keeps its memory, so the storage may be dropped.
    OfPool(WeakStorage),
}

/// The part of the log that the graph keeps.
pub(super) struct Notes {
    /// The storages, whether each is written, and their marks.
    pub(super) storages: Vec<(Held, bool, Marks)>,
    pub(super) needed: Vec<Replayed>,
    pub(super) draws: u64,
    pub(super) checks: Arc<CapturedChecks>,
    pub(super) communicators: Vec<replays::Captured>,
}

/// A communicator used in the capture, its watcher, and the names of its calls.
struct Taking {
    comm: Communicator,
    replays: Option<Arc<dyn Replays>>,
    calls: Vec<&'static str>,
}

impl Noted {
    /// Frees parked memory whose stream is ordered after all its uses.
    fn reclaim(&mut self) {
        let twins = &self.twins;
        self.parked.retain(|(block, uses)| {
            let owner = twins.iter().find(|twin| twin.id() == block.stream_id());
            let comes_after = |twin: &Stream| {
                let mut all = uses.conflicting(true);
                all.all(|used| twin.is_ordered_after(&used.stream, used.op).unwrap_or(false))
            };
            !owner.is_some_and(comes_after)
        });
    }
}

impl Log {
    pub(super) fn new(pool: GraphPool, state: Storage) -> Self {
        Self {
            pool,
            state,
            replayed: Replayed::default(),
            noted: Mutex::default(),
            checks: Arc::default(),
            communicators: Mutex::default(),
        }
    }

    /// Returns the log of the capture that a stream belongs to.
    #[inline]
    pub(crate) fn of(stream: &Stream) -> Option<Arc<Self>> {
        Self::of_captured(&stream.captured()?)
    }

    fn of_captured(captured: &Captured) -> Option<Arc<Self>> {
        Arc::clone(captured.log()).downcast().ok()
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates memory for a captured stream, from the pool unless the program routes requests
    /// elsewhere. Names the pool instead of routing the stream to it: a route would also redirect
    /// requests of other threads that do not know of the capture yet, or of its end.
    #[track_caller]
    pub(crate) fn malloc(
        &self,
        device: &CudaDevice,
        bytes: usize,
        stream: &Stream,
    ) -> Result<CudaBlock> {
        let mut noted = self.noted();
        if !noted.twins.contains(stream) {
            let twin = stream.captured().map_or_else(|| stream.clone(), |c| c.twin().clone());
            noted.twins.push(twin);
        }
        noted.reclaim();
        drop(noted);
        let block = device.allocator().malloc_from(self.pool.memory(), bytes, stream.raw());
        block.map_err(crate::error::alloc("empty"))
    }

    /// Returns the pool membership of a storage made in the capture.
    pub(crate) fn member(&self) -> Member {
        self.pool.member(&self.replayed)
    }

    /// Returns whether the memory belongs to the graph's pool.
    pub(crate) fn keeps(&self, block: &CudaBlock) -> bool {
        self.pool.memory().holds(block)
    }

    /// Keeps the memory of a dropped storage if the capture uses it. The capture can reuse the
    /// memory once the memory's stream is ordered after all these uses.
    pub(super) fn park(&self, key: usize, block: &Arc<CudaBlock>) {
        let mut noted = self.noted();
        if let Some(entry) = noted.entries.get_mut(&key) {
            let uses = std::mem::take(&mut entry.uses);
            noted.parked.push((Arc::clone(block), *uses));
        }
    }

    /// Adds a storage made in the capture. Returns `false` if the capture has ended, in which case
    /// replays may write to the memory.
    pub(crate) fn enter_made(&self, storage: &Storage) -> bool {
        let mut noted = self.noted();
        if noted.over {
            return false;
        }
        noted.made.insert(storage.key(), storage.downgrade());
        drop(noted);
        self.pool.enter(storage);
        true
    }

    /// Returns the offset, relative to the replay's, of a random op whose threads take at most
    /// `values` values each.
    pub(crate) fn draw(&self, values: u64) -> u64 {
        let mut noted = self.noted();
        let offset = noted.draws;
        noted.draws = offset.wrapping_add(values.next_multiple_of(4));
        offset
    }

    /// Returns the offset of the next random op.
    pub(crate) fn drawn(&self) -> u64 {
        self.noted().draws
    }

    /// Sets the offset of the next random op to a value that [`Log::drawn`] returned.
    pub(crate) fn draw_from(&self, drawn: u64) {
        self.noted().draws = drawn;
    }

    /// Returns the reports of failed checks by captured kernels, which the graph keeps.
    pub(crate) fn checks(&self) -> &CapturedChecks {
        &self.checks
    }

    /// Keeps a communicator for the graph, whose replays use it.
    pub(crate) fn keep_communicator(
        &self,
        comm: &Communicator,
        call: &'static str,
        replays: Option<&dyn Fn() -> Arc<dyn Replays>>,
    ) {
        let mut communicators = self.communicators();
        let kept = communicators.iter().position(|kept| kept.comm.id() == comm.id());
        let at = kept.unwrap_or_else(|| {
            communicators.push(Taking { comm: comm.clone(), replays: None, calls: Vec::new() });
            communicators.len() - 1
        });
        // What nobody watches is no call of those who do.
        if let Some(replays) = replays {
            communicators[at].replays.get_or_insert_with(replays);
            communicators[at].calls.push(call);
        }
    }

    fn communicators(&self) -> MutexGuard<'_, Vec<Taking>> {
        self.communicators.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the memory in which kernels find the replay's seed and offset.
    pub(crate) fn state(&self) -> &Storage {
        &self.state
    }

    /// Enqueues work on a captured stream, in order with the other captured uses of `storages`. The
    /// replay waits for uses outside the capture.
    pub(crate) fn enqueue(
        captured: &Captured,
        storages: &[(&Storage, bool)],
        touches: &[Touch<'_>],
        site: Site,
        marking: &Marking<'_>,
        f: impl FnOnce(StreamHandle) -> Result<(), DriverError>,
    ) -> Result<OpNumber> {
        let Some(log) = Self::of_captured(captured) else {
            let (op, location) = (site.op, site.location);
            let reason = "the capture is not a graph's";
            return Err(Error::capture(op, reason).at(location));
        };
        let mut noted = log.noted();
        let Noted { entries, made, .. } = &mut *noted;
        let mut uses: SmallVec<[Box<Uses>; 4]> = SmallVec::new();
        for (storage, _) in storages {
            let (key, bytes) = (storage.key(), storage.bytes());
            let entry = entries.entry(key).or_insert_with(|| {
                let of_pool = storage.member().is_some_and(|member| log.pool.has(member));
                let storage = if of_pool {
                    Held::OfPool(storage.downgrade())
                } else {
                    Held::Kept((*storage).clone())
                };
                let mut uses = Box::<Uses>::default();
                if !made.contains_key(&key) {
                    uses.marks = Marks::before(bytes);
                }
                Entry { storage, writes: false, uses }
            });
            uses.push(std::mem::take(&mut entry.uses));
        }
        let op = in_order(captured, storages, touches, &mut uses, site, marking, f);
        for ((storage, write), uses) in storages.iter().zip(uses) {
            if let Some(entry) = noted.entries.get_mut(&storage.key()) {
                entry.uses = uses;
                entry.writes |= write & op.is_ok();
            }
        }
        for (storage, _) in storages.iter().filter(|_| op.is_ok()) {
            let Some(replayed) = storage.member().map(Member::replayed) else { continue };
            let known = std::iter::once(&log.replayed).chain(&noted.needed);
            if !known.into_iter().any(|known| Arc::ptr_eq(known, replayed)) {
                noted.needed.push(Arc::clone(replayed));
            }
        }
        op
    }

    /// Takes the notes out at the end of the capture.
    pub(super) fn take(&self) -> Notes {
        let over = Noted { over: true, ..Noted::default() };
        let noted = std::mem::replace(&mut *self.noted(), over);
        let Noted { entries, needed, made, twins, parked, draws, over: _ } = noted;
        let checks = Arc::clone(&self.checks);
        let mut communicators = std::mem::take(&mut *self.communicators());
        // Replays lock them in this order.
        communicators.sort_unstable_by_key(|taking| taking.comm.id());
        let captured = communicators.into_iter().map(|Taking { comm, replays, calls }| {
            replays::Captured { comm, watched: replays.map(|replays| (replays, calls.into())) }
        });
        let communicators = captured.collect();
        drop((made, twins, parked));
        let storages = entries.into_values();
        let storages = storages.map(|entry| (entry.storage, entry.writes, entry.uses.marks));
        Notes { storages: storages.collect(), needed, draws, checks, communicators }
    }
}

/// Enqueues captured work after the uses that it conflicts with, and records it as a use.
fn in_order(
    captured: &Captured,
    storages: &[(&Storage, bool)],
    touches: &[Touch<'_>],
    uses: &mut [Box<Uses>],
    site: Site,
    marking: &Marking<'_>,
    f: impl FnOnce(StreamHandle) -> Result<(), DriverError>,
) -> Result<OpNumber> {
    let twin = captured.twin();
    let carried = marking.carry(touches, storages, uses)?;
    let mut watch = None;
    if let Some((first, _)) = storages.first() {
        if first.runtime().sync_policy() == SyncPolicy::Auto {
            let all = storages.iter().zip(uses.iter());
            let all = all.flat_map(|((_, write), uses)| uses.conflicting(*write));
            for used in uses_elsewhere(twin, all) {
                twin.wait_for(&used.stream, used.op)?;
            }
        } else if first.runtime().detects_races() {
            watch = Some(Watch::new(twin, site, touches, storages, uses)?);
        }
    }
    let ((), op) = captured.submit(TOKEN, |handle| f(handle).map_err(Error::from))?;
    for ((_, write), uses) in storages.iter().zip(uses.iter_mut()) {
        uses.enter(twin, op, *write, site);
    }
    marking.enter(carried, touches, storages, uses, None);
    if let Some(watch) = watch {
        watch.enter(twin, op, uses);
    }
    Ok(op)
}
