//! The log of a capture in progress: the storages of the captured work, and their uses.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use smallvec::SmallVec;
use warpline_alloc::cuda::CudaBlock;
use warpline_cuda_sys_safe::owned::Communicator;
use warpline_cuda_sys_safe::{DriverError, StreamHandle};
use warpline_stream::{CapturedChecks, CapturedStream, OpNumber, Stream};
use warpline_sync::atomic::Ordering;
use warpline_sync::{Mutex, MutexGuard};

use super::bodies::Bodies;
use super::philox::GENERATORS;
use super::pool::GraphPool;
use crate::captured_collectives::{self, CollectiveWatcher};
use crate::generator::CudaGenerator;
use crate::launch::{ResultMarks, TOKEN};
use crate::race::{CheckedAccesses, Touch};
use crate::storage::{
    PoolMembership, ReplayedFlag, StorageMarks, Uses, WeakStorage, outside_body, uses_elsewhere,
};
use crate::{CudaDevice, Error, Result, SharedGenerator, Site, Storage, SyncPolicy};

/// The log of one capture.
pub(crate) struct GraphLog {
    pub(super) pool: GraphPool,
    pub(super) philox_state: Storage,
    pub(super) replayed: ReplayedFlag,
    records: Mutex<LogRecords>,
    /// Reports of failed index checks by captured kernels.
    checks: Arc<CapturedChecks>,
    /// Communicators used in the capture. Not part of `records`, whose lock is held while their
    /// collectives are enqueued.
    communicators: Mutex<Vec<UsedCommunicator>>,
}

#[derive(Default)]
pub(super) struct LogRecords {
    /// The storages of the captured work. Each value references its storage, strongly or weakly, so
    /// that no other storage can get the key.
    pub(super) storages_by_key: HashMap<usize, LoggedStorage>,
    /// Replay flags of other captures: this capture uses storages that were made in them.
    needed: Vec<ReplayedFlag>,
    /// Storages made in the capture, by key.
    pub(super) made: HashMap<usize, MadeStorage>,
    /// Twins of the streams for which memory was allocated.
    twins: Vec<Stream>,
    /// Memory of dropped storages that other streams of the capture may still use, with its uses.
    pub(super) unreleased: Vec<(Arc<CudaBlock>, Uses)>,
    /// The generators from which random ops draw, at most [`GENERATORS`].
    draws: Vec<Draws>,
    /// The bodies of conditional nodes.
    pub(super) bodies: Bodies,
    /// Whether the capture has ended.
    ended: bool,
}

/// A storage made in the capture.
pub(super) struct MadeStorage {
    /// Keeps the key from being reused.
    _storage: WeakStorage,
    /// The point up to which a stream's captured work may use the previous storage in this memory.
    /// The first use by another stream waits for it.
    pub(super) prior: (Stream, OpNumber),
    site: Site,
}

/// A storage that the captured work uses.
pub(super) struct LoggedStorage {
    storage: GraphStorage,
    /// Size in bytes.
    pub(super) bytes: usize,
    writes: bool,
    /// Captured uses of the storage, on the streams' twins.
    pub(super) uses: Box<Uses>,
}

/// A graph's reference to a storage.
pub(super) enum GraphStorage {
    /// A storage outside the graph's pool. The graph keeps it alive for the replays.
    External(Storage),
    /// A storage in the graph's pool. The pool keeps its memory, so the storage may be dropped.
    Pooled(WeakStorage),
}

/// The results of a capture, which the graph keeps.
pub(super) struct CapturedWork {
    /// The storages, whether each is written, and their marks.
    pub(super) storages: Vec<(GraphStorage, bool, StorageMarks)>,
    pub(super) needed: Vec<ReplayedFlag>,
    pub(super) draws: Vec<Draws>,
    pub(super) checks: Arc<CapturedChecks>,
    pub(super) communicators: Vec<captured_collectives::CapturedCommunicator>,
    /// Name of the op whose body failed.
    pub(super) broken: Option<&'static str>,
}

/// The draws of captured random ops from one generator.
#[derive(Debug)]
pub(super) struct Draws {
    pub(super) generator: SharedGenerator<CudaGenerator>,
    /// Position of the generator in the log, and of its state in the pool's memory.
    pub(super) index: usize,
    /// Number of values by which the ops advance the generator.
    pub(super) values: u64,
}

/// A communicator used in the capture, its watcher, and the names of its calls.
struct UsedCommunicator {
    comm: Communicator,
    replays: Option<Arc<dyn CollectiveWatcher>>,
    calls: Vec<&'static str>,
}

impl LogRecords {
    /// Returns the twin in whose order memory for a stream is reused.
    fn twin_of(&self, stream: u64) -> Option<&Stream> {
        let outside_bodies = || self.twins.iter().find(|twin| twin.id() == stream);
        self.bodies.twin_of(stream).or_else(outside_bodies)
    }

    /// Releases the memory of dropped storages, if the memory's stream is ordered after all uses.
    fn reclaim(&mut self) {
        let mut unreleased = std::mem::take(&mut self.unreleased);
        unreleased.retain(|(block, uses)| {
            let comes_after = |twin: &Stream| {
                let mut all = uses.conflicting(true);
                all.all(|used| twin.is_ordered_after(&used.stream, used.op).unwrap_or(false))
            };
            !self.twin_of(block.stream_id()).is_some_and(comes_after)
        });
        self.unreleased = unreleased;
    }
}

impl Drop for GraphLog {
    fn drop(&mut self) {
        self.replayed.graph_dropped.store(true, Ordering::Release);
    }
}

impl GraphLog {
    pub(super) fn new(pool: GraphPool, philox_state: Storage) -> Self {
        Self {
            pool,
            philox_state,
            replayed: ReplayedFlag::default(),
            records: Mutex::default(),
            checks: Arc::default(),
            communicators: Mutex::default(),
        }
    }

    /// Returns the log of the capture that a stream belongs to.
    #[inline]
    pub(crate) fn of(stream: &Stream) -> Option<Arc<Self>> {
        Self::of_captured(&stream.captured()?)
    }

    fn of_captured(captured: &CapturedStream) -> Option<Arc<Self>> {
        Arc::clone(captured.log()).downcast().ok()
    }

    pub(super) fn records(&self) -> MutexGuard<'_, LogRecords> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates memory for a captured stream, which is not that of a body, from the graph's pool
    /// unless the program routes requests to another pool. The request names the pool. Routing all
    /// requests of the stream to the pool instead would also redirect requests that other threads
    /// make just before or after the capture.
    #[track_caller]
    pub(crate) fn malloc(
        &self,
        device: &CudaDevice,
        bytes: usize,
        stream: &Stream,
    ) -> Result<CudaBlock> {
        let mut records = self.records();
        if !records.twins.iter().any(|twin| twin.id() == stream.id()) {
            let twin = stream.captured().map_or_else(|| stream.clone(), |c| c.twin().clone());
            records.twins.push(twin);
        }
        records.reclaim();
        drop(records);
        let block = device.allocator().malloc_from(self.pool.memory(), bytes, stream.raw());
        block.map_err(crate::error::alloc("empty"))
    }

    /// Returns the pool membership of a storage made in the capture. `of_body` is set for a storage made in a body.
    pub(crate) fn member(&self, of_body: bool) -> PoolMembership {
        self.pool.member(&self.replayed, of_body)
    }

    /// Returns whether the memory belongs to the graph's pool.
    pub(crate) fn keeps(&self, block: &CudaBlock) -> bool {
        self.pool.memory().holds(block)
    }

    /// Keeps the memory of a dropped storage if the capture uses it. The capture can reuse the
    /// memory after the memory's stream is ordered after all these uses.
    pub(super) fn park(&self, key: usize, block: &Arc<CudaBlock>) {
        let mut records = self.records();
        if let Some(logged) = records.storages_by_key.get_mut(&key) {
            let uses = std::mem::take(&mut logged.uses);
            records.unreleased.push((Arc::clone(block), *uses));
        }
    }

    /// Adds a storage made in the capture with memory for `stream`. Returns `false` if the capture has
    /// ended: replays may write to the memory, so the storage must not use it.
    #[track_caller]
    pub(crate) fn add_made(&self, storage: &Storage, stream: &Stream) -> bool {
        let mut records = self.records();
        if records.ended {
            return false;
        }
        let twin = records.twin_of(stream.id()).unwrap_or(stream).clone();
        let prior = (twin.clone(), twin.last_op());
        let (site, _storage) = (Site::here("empty"), storage.downgrade());
        records.made.insert(storage.key(), MadeStorage { _storage, prior, site });
        records.bodies.add_made(storage.key());
        drop(records);
        self.pool.add(storage);
        true
    }

    /// Makes a captured stream wait for the work that may use the previous storage in the memory of a
    /// new one.
    #[track_caller]
    pub(super) fn wait_for_prior_storage(
        &self,
        storage: &Storage,
        captured: &CapturedStream,
    ) -> Result<()> {
        let prior = self.records().made.get(&storage.key()).map(|made| made.prior.clone());
        match prior {
            Some((twin, op)) if twin != *captured.twin() => {
                Ok(captured.twin().wait_for(&twin, op)?)
            }
            _ => Ok(()),
        }
    }

    /// Returns the index of a generator from which a captured op draws.
    ///
    /// # Errors
    /// [`ErrorKind::Capture`] if the capture draws from too many generators.
    #[track_caller]
    pub(super) fn source(&self, generator: &SharedGenerator<CudaGenerator>) -> Result<usize> {
        let draws = &mut self.records().draws;
        let known = draws.iter().position(|draws| draws.generator.key() == generator.key());
        let index = known.unwrap_or(draws.len());
        if index == GENERATORS {
            let reason = format!("a graph cannot draw from more than {GENERATORS} generators");
            return Err(Error::capture("capture", reason));
        }
        if known.is_none() {
            draws.push(Draws { generator: generator.clone(), index, values: 0 });
        }
        Ok(index)
    }

    /// Reserves random values for an op whose threads take at most `values` values each. Returns
    /// the op's offset, relative to the replay's offset.
    pub(super) fn draw(&self, source: usize, values: u64) -> u64 {
        self.at_source(source, |drawn| {
            let offset = *drawn;
            *drawn = offset.wrapping_add(values.next_multiple_of(4));
            offset
        })
    }

    /// Returns the offset of the next random op that draws from a generator.
    pub(super) fn drawn(&self, source: usize) -> u64 {
        self.at_source(source, |drawn| *drawn)
    }

    /// Sets the offset of the next random op to a value that [`GraphLog::drawn`] returned.
    pub(super) fn draw_from(&self, source: usize, drawn: u64) {
        self.at_source(source, |offset| *offset = drawn);
    }

    /// Calls `f` with the offset of the next op that draws from a generator.
    fn at_source<R>(&self, source: usize, f: impl FnOnce(&mut u64) -> R) -> R {
        // Another thread may have ended the capture, and then no launch of the op succeeds.
        let mut ended = 0;
        f(self.records().draws.get_mut(source).map_or(&mut ended, |draws| &mut draws.values))
    }

    /// Returns the reports of failed index checks by captured kernels. The graph keeps these
    /// reports.
    pub(crate) fn checks(&self) -> &CapturedChecks {
        &self.checks
    }

    /// Keeps a communicator alive for the graph, because replays use it.
    pub(crate) fn keep_communicator(
        &self,
        comm: &Communicator,
        call: &'static str,
        replays: Option<&dyn Fn() -> Arc<dyn CollectiveWatcher>>,
    ) {
        let mut communicators = self.communicators();
        let kept = communicators.iter().position(|kept| kept.comm.id() == comm.id());
        let at = kept.unwrap_or_else(|| {
            communicators.push(UsedCommunicator {
                comm: comm.clone(),
                replays: None,
                calls: Vec::new(),
            });
            communicators.len() - 1
        });
        // A call without a watcher has no number on the communicator.
        if let Some(replays) = replays {
            communicators[at].replays.get_or_insert_with(replays);
            communicators[at].calls.push(call);
        }
    }

    fn communicators(&self) -> MutexGuard<'_, Vec<UsedCommunicator>> {
        self.communicators.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the memory from which captured kernels read the replay's seeds and offsets.
    pub(super) fn philox_state(&self) -> &Storage {
        &self.philox_state
    }

    /// Enqueues work on a captured stream, in order with the other captured uses of `storages`. The
    /// replay waits for uses outside the capture.
    pub(crate) fn enqueue(
        captured: &CapturedStream,
        storages: &[(&Storage, bool)],
        touches: &[Touch<'_>],
        site: Site,
        result_marks: &ResultMarks<'_>,
        f: impl FnOnce(StreamHandle) -> Result<(), DriverError>,
    ) -> Result<OpNumber> {
        let Some(log) = Self::of_captured(captured) else {
            let (op, location) = (site.op, site.location);
            let reason = "the stream is in a capture that no graph began";
            return Err(Error::capture(op, reason).at(location));
        };
        let at_site = |error: Error| error.at(site.location);
        if captured.has_open_body() {
            let reason = "the stream belongs to the capture around the body of `graph_if` or `graph_while` that is \
                          being captured; the body can only use its own stream and streams that wait for it";
            return Err(at_site(Error::capture(site.op, reason)));
        }
        let mut records = log.records();
        if storages.iter().any(|(storage, _)| storage.same_as(&log.philox_state)) {
            records.bodies.check_random(captured, site)?;
        }
        let LogRecords { storages_by_key, made, bodies, .. } = &mut *records;
        if storages.iter().any(|(storage, _)| !bodies.can_use(storage)) {
            return Err(at_site(outside_body(site.op)));
        }
        let mut uses: SmallVec<[Box<Uses>; 4]> = SmallVec::new();
        for (storage, _) in storages {
            let (key, bytes) = (storage.key(), storage.bytes());
            let logged = storages_by_key.entry(key).or_insert_with(|| {
                let of_pool = storage.member().is_some_and(|member| log.pool.has(member));
                let storage = if of_pool {
                    GraphStorage::Pooled(storage.downgrade())
                } else {
                    GraphStorage::External((*storage).clone())
                };
                let mut uses = Box::<Uses>::default();
                match made.get(&key) {
                    Some(MadeStorage { prior: (twin, op), site, .. }) => {
                        uses.record(twin, *op, true, *site);
                    }
                    None => uses.marks = StorageMarks::before_replay(bytes),
                }
                LoggedStorage { storage, bytes, writes: false, uses }
            });
            uses.push(std::mem::take(&mut logged.uses));
        }
        let op = in_order(captured, storages, touches, &mut uses, site, result_marks, f);
        for ((storage, write), uses) in storages.iter().zip(uses) {
            if let Some(logged) = storages_by_key.get_mut(&storage.key()) {
                logged.uses = uses;
                logged.writes |= write & op.is_ok();
                if *write && op.is_ok() {
                    storage.record_write();
                }
                if captured.home().is_some() && op.is_ok() {
                    let pooled = matches!(logged.storage, GraphStorage::Pooled(_));
                    bodies.note_use(storage, *write, pooled);
                }
            }
        }
        for (storage, _) in storages.iter().filter(|_| op.is_ok()) {
            let Some(replayed) = storage.member().map(PoolMembership::replayed) else { continue };
            let known = std::iter::once(&log.replayed).chain(&records.needed);
            if !known.into_iter().any(|known| Arc::ptr_eq(known, replayed)) {
                records.needed.push(Arc::clone(replayed));
            }
        }
        op
    }

    /// Ends the log and returns its results.
    pub(super) fn take(&self) -> CapturedWork {
        let ended = LogRecords { ended: true, ..LogRecords::default() };
        let records = std::mem::replace(&mut *self.records(), ended);
        let LogRecords {
            storages_by_key,
            needed,
            made,
            twins,
            unreleased,
            draws,
            bodies,
            ended: _,
        } = records;
        let broken = bodies.broken();
        let checks = Arc::clone(&self.checks);
        let mut communicators = std::mem::take(&mut *self.communicators());
        // Replays lock communicators in the order of their identifiers.
        communicators.sort_unstable_by_key(|used| used.comm.id());
        let captured =
            communicators.into_iter().map(|UsedCommunicator { comm, replays, calls }| {
                captured_collectives::CapturedCommunicator {
                    comm,
                    watched: replays.map(|replays| (replays, calls.into())),
                }
            });
        let communicators = captured.collect();
        drop((made, twins, unreleased, bodies));
        let storages = storages_by_key.into_values();
        let storages = storages.map(|logged| (logged.storage, logged.writes, logged.uses.marks));
        CapturedWork { storages: storages.collect(), needed, draws, checks, communicators, broken }
    }
}

/// Enqueues captured work after conflicting captured uses, and records it as a use.
fn in_order(
    captured: &CapturedStream,
    storages: &[(&Storage, bool)],
    touches: &[Touch<'_>],
    uses: &mut [Box<Uses>],
    site: Site,
    result_marks: &ResultMarks<'_>,
    f: impl FnOnce(StreamHandle) -> Result<(), DriverError>,
) -> Result<OpNumber> {
    let twin = captured.twin();
    let inputs = result_marks.input_dependencies(touches, storages, uses)?;
    let mut accesses = None;
    if let Some((first, _)) = storages.first() {
        if first.runtime().sync_policy() == SyncPolicy::Auto {
            let all = storages.iter().zip(uses.iter());
            let all = all.flat_map(|((_, write), uses)| uses.conflicting(*write));
            for used in uses_elsewhere(twin, all) {
                twin.wait_for(&used.stream, used.op)?;
            }
        } else if first.runtime().detects_races() {
            accesses = Some(CheckedAccesses::new(twin, site, touches, storages, uses)?);
        }
    }
    let ((), op) = captured.submit(TOKEN, |handle| f(handle).map_err(Error::from))?;
    for ((_, write), uses) in storages.iter().zip(uses.iter_mut()) {
        uses.record(twin, op, *write, site);
    }
    // A body may not run, so its results may keep their former values.
    let former = captured.home().map(|_| {
        uses.iter().map(|uses| uses.marks.clone()).collect::<SmallVec<[StorageMarks; 4]>>()
    });
    result_marks.record(inputs, touches, storages, uses, None);
    for (uses, former) in uses.iter_mut().zip(former.iter().flatten()) {
        uses.marks.add_all(former);
    }
    if let Some(accesses) = accesses {
        accesses.record(twin, op, uses);
    }
    Ok(op)
}
