//! Memory that tensors share, and the record of its last uses.
//!
//! A [`Storage`] is a range of pageable, page-locked or device memory, with its `Uses`: the last
//! write, each stream's last read since that write, and the marks (`marks/`). A mark says that the
//! values of some bytes depend on work that may fail.
//!
//! This module does not depend on `graph`. `Storage::device`, which allocates device memory, is in
//! `graph/memory.rs`, because a captured stream gets memory of the graph's pool. For graphs, a
//! storage only keeps its membership in a pool (`pool_membership.rs`) and its uses by replays
//! (`replay_uses.rs`).

mod dependencies;
mod marks;
mod pool_membership;
mod reclaim;
mod replay_uses;
mod shared;
mod shared_host;
mod small;
mod uses;
mod version;

use std::ops::Range;
use std::panic::Location;
use std::sync::{Arc, PoisonError, Weak};

use warpline_alloc::AllocError;
use warpline_alloc::cuda::{CudaBlock, CudaPinnedBlock};
use warpline_cuda_sys_safe::owned::HostMemory;
use warpline_cuda_sys_safe::{DevicePtr, DriverError};
use warpline_stream::Stream;
use warpline_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use warpline_sync::{Mutex, MutexGuard, RwLock};

use crate::runtime::{MIN_CACHED_BYTES, UnusedMemory};
use crate::semaphore::{AwaitedSignal, PeerSemaphore};
use crate::{CudaDevice, Error, ErrorKind, Result, Runtime, race};

pub(crate) use reclaim::malloc_or_reclaim;
pub use reclaim::reclaim_before_out_of_memory;
pub use shared::ExportedStorage;
use shared::SharedBlock;
use shared_host::SharedHostBlock;
use small::SmallMemory;

pub(crate) use dependencies::{Dependencies, Dependency, MAX_LAUNCHES};
pub(crate) use marks::{ReplayDependencies, StorageMarks};
pub(crate) use pool_membership::{CapturePool, PoolMembership, ReplayedFlag};
pub(crate) use replay_uses::{ReplayGuard, ReplayUses, ReplayedStorage, VisitedStorage};
pub(crate) use uses::{PRIOR_STORAGE, Use, Uses, uses_elsewhere};
pub use version::Version;

/// Memory that one or more tensors share. Clones share the memory; dropping the last clone frees
/// it.
#[derive(Clone, Debug)]
pub struct Storage(Arc<StorageInner>);

#[derive(Debug)]
struct StorageInner {
    // Declared before `runtime`, so that it is dropped first: the block returns to a cache of the
    // runtime.
    memory: StorageMemory,
    bytes: usize,
    runtime: Runtime,
    /// Uses by device work that later work may have to wait for.
    uses: Mutex<Uses>,
    /// Whether `uses` has marks, so that host code need not lock `uses` to find out. Changed under
    /// the lock on `uses`, and for host memory also under the host lock.
    marked: AtomicBool,
    /// Whether the storage may be attached to replays. Changed under the lock on `uses`. Set before
    /// the write of a replay is counted.
    attached: AtomicBool,
    /// Number of writes, for [`Version`].
    writes: AtomicU64,
    /// Orders accesses by host code. Not used for device memory.
    host: RwLock<()>,
    /// Location of the allocation.
    allocated: &'static Location<'static>,
    /// The storage's membership in a graph's pool. `None` unless the storage was made in a capture.
    member: Option<PoolMembership>,
}

/// A weak reference to a storage.
#[derive(Clone, Debug)]
pub(crate) struct WeakStorage(Weak<StorageInner>);

impl WeakStorage {
    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Returns the storage's [`Storage::key`].
    pub(crate) fn key(&self) -> usize {
        self.0.as_ptr().addr()
    }

    pub(crate) fn upgrade(&self) -> Option<Storage> {
        self.0.upgrade().map(Storage)
    }
}

impl Drop for StorageInner {
    fn drop(&mut self) {
        match &self.memory {
            StorageMemory::Small(_) => return,
            StorageMemory::Pageable(memory) => {
                if memory.bytes() >= MIN_CACHED_BYTES {
                    self.keep_pageable();
                }
                return;
            }
            _ => {}
        }
        if !self.runtime.is_own_process() {
            // A thread of the parent may have held the cache's lock during the fork, and the lock
            // then stays locked in this process.
            std::mem::forget(std::mem::replace(&mut self.memory, StorageMemory::Released));
            return;
        }
        let key = std::ptr::from_ref(self).addr();
        self.record_freed();
        let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
        if matches!(self.memory, StorageMemory::Shared(_) | StorageMemory::SharedHost(_)) {
            let (id, unused) = match std::mem::replace(&mut self.memory, StorageMemory::Released) {
                StorageMemory::Shared(block) => (block.id, UnusedMemory::Device(block.mapping)),
                StorageMemory::SharedHost(block) => (block.id, UnusedMemory::Host(block.memory)),
                _ => return,
            };
            let used = uses.conflicting(true).map(|used| &used.stream);
            let streams = used.chain(uses.allocator_streams()).cloned();
            return self.runtime.retire_shared(id, unused, streams);
        }
        let Some(member) = &self.member else { return };
        if let StorageMemory::Device(_, block) =
            std::mem::replace(&mut self.memory, StorageMemory::Released)
        {
            member.leave(key, uses, block);
        }
    }
}

impl StorageInner {
    /// Detaches the storage from replays, and records the history of device memory that is about to be freed.
    fn record_freed(&mut self) {
        let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
        uses.detach();
        if uses.history.is_some()
            && let StorageMemory::Device(index, block) = &self.memory
        {
            let start = block.address() as i64;
            let range = start..start + self.bytes as i64;
            let freed = (*index, range, block.stream_id());
            race::record_freed(&self.runtime, freed, self.allocated, uses);
        }
    }

    #[cold]
    fn keep_pageable(&mut self) {
        if let Some(cache) = self.runtime.host_cache()
            && let StorageMemory::Pageable(memory) =
                std::mem::replace(&mut self.memory, StorageMemory::Released)
        {
            cache.put(memory);
        }
    }
}

#[derive(Debug)]
enum StorageMemory {
    Pageable(HostMemory),
    /// Pageable host memory of a few elements.
    Small(SmallMemory),
    Pinned(CudaPinnedBlock),
    Device(usize, CudaBlock),
    /// Device memory that other processes may share.
    Shared(SharedBlock),
    /// Host memory that other processes may share. No Rust reference to its bytes may exist.
    SharedHost(SharedHostBlock),
    /// Released by `drop`.
    Released,
}

impl Storage {
    /// Allocates pageable host memory. A block of 64 KiB or more comes from the runtime's cache and
    /// may hold leftover bytes of earlier users.
    ///
    /// # Errors
    /// [`ErrorKind::Alloc`] if the system has no memory left.
    #[track_caller]
    pub fn pageable(runtime: &Runtime, bytes: usize) -> Result<Self> {
        if bytes <= SmallMemory::BYTES {
            return Ok(Self::new(runtime, StorageMemory::Small(SmallMemory::zeroed()), bytes));
        }
        let memory = match (bytes >= MIN_CACHED_BYTES).then(|| runtime.host_cache()).flatten() {
            Some(cache) => cache.take(bytes),
            None => HostMemory::pageable(bytes),
        };
        let refused = crate::error::alloc("empty");
        let memory = memory.map_err(|error| match error {
            DriverError::HostMemory { bytes: requested, reason } => {
                refused(AllocError::HostMemory { requested, reason })
            }
            error => Error::driver("empty", error),
        })?;
        Ok(Self::new(runtime, StorageMemory::Pageable(memory), bytes))
    }

    /// Allocates page-locked host memory from the runtime's cache. It may hold leftover bytes of
    /// earlier users.
    ///
    /// # Errors
    /// - [`ErrorKind::CudaUnavailable`] if there is no driver or no device.
    /// - [`ErrorKind::Alloc`] if the memory cannot be allocated.
    /// - [`ErrorKind::Driver`] in a forked child.
    #[track_caller]
    pub fn pinned(runtime: &Runtime, bytes: usize) -> Result<Self> {
        runtime.check_process("empty")?;
        let block = runtime.pinned_cache()?.alloc(bytes).map_err(crate::error::alloc("empty"))?;
        Ok(Self::new(runtime, StorageMemory::Pinned(block), bytes))
    }

    /// Creates a storage from a block that the allocator returned for a stream. Outside graph pools, records the work on
    /// the previous storage in this memory ([`Uses::after_prior_storage`]).
    #[track_caller]
    pub(crate) fn from_block(
        runtime: &Runtime,
        block: CudaBlock,
        bytes: usize,
        stream: &Stream,
        member: Option<PoolMembership>,
    ) -> Self {
        let index = stream.device_index();
        let memory = StorageMemory::Device(index, block);
        let uses = match member {
            Some(_) => Uses::default(),
            None => Uses::after_prior_storage(stream),
        };
        let storage = Self::build(runtime, memory, bytes, (uses, member), Location::caller());
        storage.take_freed_history(index, stream);
        storage
    }

    /// Takes the block out of the storage, as if the block were freed and allocated again for its stream. `None` if the
    /// storage has other clones, was made in a capture, or is not device memory.
    pub(crate) fn into_block(self) -> Option<CudaBlock> {
        let mut inner = Arc::into_inner(self.0).filter(|inner| inner.member.is_none())?;
        inner.record_freed();
        match std::mem::replace(&mut inner.memory, StorageMemory::Released) {
            StorageMemory::Device(_, block) => Some(block),
            other => {
                inner.memory = other;
                None
            }
        }
    }

    #[track_caller]
    fn new(runtime: &Runtime, memory: StorageMemory, bytes: usize) -> Self {
        Self::build(runtime, memory, bytes, (Uses::default(), None), Location::caller())
    }

    #[inline]
    fn build(
        runtime: &Runtime,
        memory: StorageMemory,
        bytes: usize,
        (uses, member): (Uses, Option<PoolMembership>),
        allocated: &'static Location<'static>,
    ) -> Self {
        Self(Arc::new(StorageInner {
            memory,
            bytes,
            runtime: runtime.clone(),
            uses: Mutex::new(uses),
            marked: AtomicBool::new(false),
            attached: AtomicBool::new(false),
            writes: AtomicU64::new(0),
            host: RwLock::new(()),
            allocated,
            member,
        }))
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Returns the runtime that the storage belongs to.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.0.runtime
    }

    /// Returns the storage's device. `None` for host memory.
    #[must_use]
    pub fn cuda_device(&self) -> Option<&CudaDevice> {
        match &self.0.memory {
            StorageMemory::Device(index, _) => self.0.runtime.gpu(*index),
            StorageMemory::Shared(block) => self.0.runtime.gpu(block.device),
            _ => None,
        }
    }

    /// Returns whether this is pageable host memory of this process alone.
    pub(crate) fn is_pageable(&self) -> bool {
        matches!(self.0.memory, StorageMemory::Pageable(_) | StorageMemory::Small(_))
    }

    /// Returns whether this is page-locked host memory.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        match &self.0.memory {
            StorageMemory::Pinned(_) => true,
            StorageMemory::SharedHost(block) => block.memory.is_pinned(),
            _ => false,
        }
    }

    /// Returns the location of the allocation.
    pub(crate) fn allocated(&self) -> &'static Location<'static> {
        self.0.allocated
    }

    /// Returns whether the storage was made in a capture that failed, or whose graph was dropped before its first
    /// replay. Such a storage never has contents.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.member.as_ref().is_some_and(PoolMembership::is_lost)
    }

    /// Returns whether `self` and `other` are the same memory.
    #[must_use]
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the device or host address of the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        match &self.0.memory {
            StorageMemory::Device(_, block) => block.address(),
            StorageMemory::Shared(block) => block.mapping.ptr().addr(),
            StorageMemory::Pinned(block) => block.as_ptr().addr().get() as u64,
            StorageMemory::SharedHost(block) => block.memory.as_ptr().addr().get() as u64,
            StorageMemory::Pageable(memory) => memory.as_ptr().addr().get() as u64,
            StorageMemory::Small(memory) => memory.as_ptr().addr() as u64,
            StorageMemory::Released => 0,
        }
    }

    /// Tells the allocator that the memory is in use on `stream`. After the storage is freed, its
    /// memory is reused only when the work enqueued on `stream` before the free is complete
    /// (`Tensor.record_stream`). Under [`crate::SyncPolicy::Auto`] launches do this themselves.
    ///
    /// # Errors
    /// [`ErrorKind::RuntimeMismatch`] if the stream belongs to another runtime, and
    /// [`ErrorKind::InvalidArgument`] if it is the twin of a captured stream.
    #[track_caller]
    pub fn record_stream(&self, stream: &Stream) -> Result<()> {
        if self.is_pageable() || matches!(self.0.memory, StorageMemory::Released) {
            return Ok(());
        }
        self.0.runtime.check_stream(stream, "record_stream")?;
        self.uses().add_allocator_stream(stream);
        match &self.0.memory {
            // The capture's log has recorded the use, and captured work does not run before a
            // replay.
            StorageMemory::Device(..) if self.0.member.is_some() && stream.is_capturing() => {}
            StorageMemory::Device(_, block) => block.record_stream(stream.raw()),
            StorageMemory::Pinned(block) => block.record_use(stream.raw()),
            StorageMemory::Shared(_)
            | StorageMemory::SharedHost(_)
            | StorageMemory::Pageable(_)
            | StorageMemory::Small(_)
            | StorageMemory::Released => {}
        }
        Ok(())
    }

    /// Blocks the host until device work that a host access conflicts with is complete.
    ///
    /// # Errors
    /// - The failure of that work, if the work has failed.
    /// - [`ErrorKind::TimedOut`] as for [`Storage::wait_for_peers`].
    /// - [`ErrorKind::Driver`] in a forked child, except for pageable memory.
    #[track_caller]
    pub(crate) fn wait_for_host(&self, write: bool) -> Result<()> {
        if self.is_pageable() {
            // No copy is pending: the thread that enqueues a copy of pageable memory waits for it.
            return Ok(());
        }
        self.0.runtime.check_process("host access")?;
        self.wait_for_peers()?;
        let pending = self.uses().conflicts(write);
        // Soundness needs this wait under either policy. While races are detected, the wait does
        // not count as order, because the program did not ask for it.
        let silently = self.0.runtime.detects_races();
        for used in pending {
            let waited = if silently {
                used.stream.host_wait_silently(used.op)
            } else {
                used.stream.host_wait(used.op)
            };
            match waited {
                Err(e) if used.is_read_on_lost_device() && e.driver_error().is_some() => {}
                waited => waited?,
            }
        }
        Ok(())
    }

    /// Waits for the work of other processes that the bytes depend on, within the limit set when
    /// the storage was received. Call it before waiting for a stream, because that wait has no
    /// limit.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] if the work is not complete within the limit.
    pub(crate) fn wait_for_peers(&self) -> Result<()> {
        if !self.is_marked() {
            return Ok(());
        }
        let awaited: Vec<AwaitedSignal> = self.uses().marks.awaited();
        awaited.iter().try_for_each(AwaitedSignal::wait_within_limit)
    }

    /// Checks that the bytes depend on no failed work, after all work that writes them is complete.
    ///
    /// # Errors
    /// - [`ErrorKind::IndexCheck`] if the bytes depend on a failed check of indices.
    /// - [`ErrorKind::Collective`] if the bytes depend on a failed collective.
    /// - [`ErrorKind::PeerGone`] if the bytes depend on unfinished work of a process that is gone.
    #[track_caller]
    pub fn check_marks(&self, bytes: Range<usize>) -> Result<()> {
        if !self.is_marked() {
            return Ok(());
        }
        match self.uses().marks.failed(&bytes) {
            Some(failed) => Err(failed),
            None => Ok(()),
        }
    }

    /// Marks all bytes until work of another process is known to be complete. Overwriting the bytes
    /// does not remove this mark.
    pub(crate) fn mark_awaited(&self, awaited: AwaitedSignal) {
        let mut uses = self.uses();
        uses.marks.add_awaited(awaited);
        self.set_marked(!uses.marks.is_empty());
    }

    /// Returns whether some bytes depend on work other than the work that `peers` signal.
    pub(crate) fn depends_on_others(&self, peers: &[&PeerSemaphore]) -> bool {
        self.is_marked() && self.uses().marks.depends_on_others(peers)
    }

    /// Returns whether bytes may be marked.
    #[inline]
    pub(crate) fn is_marked(&self) -> bool {
        // `attached` is read first, because `uses` sets `marked` before it clears `attached`.
        self.0.attached.load(Ordering::Acquire) || self.0.marked.load(Ordering::Relaxed)
    }

    pub(crate) fn set_marked(&self, marked: bool) {
        self.0.marked.store(marked, Ordering::Relaxed);
    }

    pub(crate) fn downgrade(&self) -> WeakStorage {
        WeakStorage(Arc::downgrade(&self.0))
    }

    /// Returns the membership in a graph's pool. `None` for a storage that was not made in a capture.
    pub(crate) fn member(&self) -> Option<&PoolMembership> {
        self.0.member.as_ref()
    }

    /// Fails outside a capture for a storage that was made in a capture and has no contents yet, or
    /// has contents only in the body of a conditional node.
    #[inline]
    #[track_caller]
    pub(crate) fn check_replayed(&self, captured: bool, op: &'static str) -> Result<()> {
        match &self.0.member {
            Some(member) if !captured && member.of_body() => Err(outside_body(op)),
            Some(member) if !member.was_replayed() && !captured => {
                Err(ErrorKind::NotReplayed.of(op))
            }
            _ => Ok(()),
        }
    }

    /// Locks the uses and detaches the storage from replays.
    #[inline]
    pub(crate) fn uses(&self) -> MutexGuard<'_, Uses> {
        let mut uses = self.0.uses.lock().unwrap_or_else(PoisonError::into_inner);
        if self.0.attached.load(Ordering::Relaxed) {
            uses.detach();
            self.set_marked(!uses.marks.is_empty());
            self.0.attached.store(false, Ordering::Release);
        }
        uses
    }

    /// Records that the storage is about to be attached. The caller holds the lock on the uses.
    pub(crate) fn set_attached(&self) {
        self.0.attached.store(true, Ordering::Release);
    }

    pub(crate) fn is_device_memory(&self) -> bool {
        matches!(self.0.memory, StorageMemory::Device(..))
    }

    pub(crate) fn host_lock(&self) -> &RwLock<()> {
        &self.0.host
    }

    /// Returns the address of the host bytes. `None` for device memory and for memory that other
    /// processes may write.
    pub(crate) fn host_ptr(&self) -> Option<*mut u8> {
        match &self.0.memory {
            StorageMemory::Pageable(memory) => Some(memory.as_ptr().as_ptr()),
            StorageMemory::Small(memory) => Some(memory.as_ptr()),
            StorageMemory::Pinned(block) => Some(block.as_ptr().as_ptr()),
            StorageMemory::Device(..)
            | StorageMemory::Shared(_)
            | StorageMemory::SharedHost(_)
            | StorageMemory::Released => None,
        }
    }

    /// Returns the device address. `None` for host memory.
    pub(crate) fn device_ptr(&self) -> Option<DevicePtr> {
        match &self.0.memory {
            StorageMemory::Device(_, block) => {
                // SAFETY: the block is live as long as `self`. Launches keep their storages alive
                // until the work is enqueued, and they tell the allocator of the stream, unless the
                // program orders the reuse of memory (`SyncPolicy::Manual`).
                Some(unsafe { DevicePtr::from_raw(block.address()) })
            }
            StorageMemory::Shared(block) => Some(block.mapping.ptr()),
            _ => None,
        }
    }

    /// Returns an identifier that no other living storage has. Locks of several storages are taken
    /// in the order of their keys.
    #[must_use]
    pub fn key(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Tells the allocator of a launch's stream, unless the allocator knows the stream already or
    /// allocated the memory for it.
    pub(crate) fn tell_allocator(&self, uses: &mut Uses, stream: &Stream) {
        match &self.0.memory {
            StorageMemory::Device(_, block) => {
                if block.stream_id() != stream.id() && uses.add_allocator_stream(stream) {
                    block.record_stream(stream.raw());
                }
            }
            StorageMemory::Pinned(block) => {
                if uses.add_allocator_stream(stream) {
                    block.record_use(stream.raw());
                }
            }
            // Shared memory has no allocator. `drop` keeps it mapped until the recorded streams are done.
            StorageMemory::Shared(_) | StorageMemory::SharedHost(_) => {
                uses.add_allocator_stream(stream);
            }
            StorageMemory::Pageable(_) | StorageMemory::Small(_) | StorageMemory::Released => {}
        }
    }
}

/// Creates the error for a host access to device memory, or to host memory that processes share.
#[track_caller]
pub(crate) fn not_host(op: &'static str, storage: &Storage) -> Error {
    if storage.is_shared_host() {
        return ErrorKind::SharedHostMemory.of(op);
    }
    Error::driver(
        op,
        DriverError::InvalidArgument {
            call: "host access",
            reason: "the storage is device memory; copy it to the host first".into(),
        },
    )
}

/// Creates the error for a use, outside a conditional node's body, of a storage that was made in the body.
#[cold]
#[track_caller]
pub(crate) fn outside_body(op: &'static str) -> Error {
    let reason = "the tensor was made in the body of `graph_if` or `graph_while` and has values only there; \
                  copy them into a tensor from outside the body";
    Error::capture(op, reason)
}
