//! Memory that tensors share, and the record of its last uses.
//!
//! A [`Storage`] is bytes (pageable, page-locked or device memory) with its `Uses`: the last write
//! and the reads since then, by stream, and the marks of pending checks (`marks.rs`). `Storage`
//! knows nothing of graphs, see `graph/mod.rs`.

mod marks;
mod member;
mod replay_uses;
mod shared;
mod shared_host;
mod sources;
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

use crate::runtime::{KEPT_FROM, Unused};
use crate::semaphore::{Awaited, PeerSemaphore};
use crate::{CudaDevice, Error, ErrorKind, Result, Runtime, Site, race};

pub use shared::ExportedStorage;
use shared::SharedBlock;
use shared_host::SharedHostBlock;

pub(crate) use marks::{Marks, Replaying};
pub(crate) use member::{Member, Pool, Replayed};
pub(crate) use replay_uses::{Member as ReplayMember, ReplayUses, Turn, Visited};
pub(crate) use sources::{LAUNCHES, Source, Sources};
pub(crate) use uses::{FORMER, Uses, uses_elsewhere};
pub use version::Version;

/// The bytes behind one or more tensors. Clones share them; the last one frees them.
#[derive(Clone, Debug)]
pub struct Storage(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    // Dropped before `runtime`, whose caches the block goes back to.
    memory: Memory,
    bytes: usize,
    runtime: Runtime,
    /// Device work that used the bytes and that later work may have to wait for.
    uses: Mutex<Uses>,
    /// Whether bytes depend on checks that may have failed: host code need not lock `uses` to know.
    /// Changed under the lock on `uses`, and of host memory under its host lock too.
    marked: AtomicBool,
    /// Whether `uses` may be attached to replays. Changed under the lock on `uses`; set before the write of
    /// a replay is entered.
    attached: AtomicBool,
    /// How often the bytes were written, for [`Version`].
    writes: AtomicU64,
    /// Guards host bytes against host code. Device memory does not need it.
    host: RwLock<()>,
    /// Where it was allocated.
    allocated: &'static Location<'static>,
    /// There if it was made in a capture.
    member: Option<Member>,
}

/// A storage that somebody else may keep.
#[derive(Clone, Debug)]
pub(crate) struct WeakStorage(Weak<Inner>);

impl WeakStorage {
    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// [`Storage::key`].
    pub(crate) fn key(&self) -> usize {
        self.0.as_ptr().addr()
    }

    pub(crate) fn upgrade(&self) -> Option<Storage> {
        self.0.upgrade().map(Storage)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Memory::Pageable(memory) = &self.memory {
            if memory.bytes() >= KEPT_FROM {
                self.keep_pageable();
            }
            return;
        }
        if !self.runtime.is_own_process() {
            // It is the parent's, of whose other threads one may have had the cache locked.
            std::mem::forget(std::mem::replace(&mut self.memory, Memory::Gone));
            return;
        }
        let key = std::ptr::from_ref(self).addr();
        let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
        uses.detach();
        if uses.history.is_some()
            && let Memory::Device(index, block) = &self.memory
        {
            let start = block.address() as i64;
            let range = start..start + self.bytes as i64;
            race::bury(&self.runtime, (*index, range, block.stream_id()), self.allocated, uses);
        }
        if matches!(self.memory, Memory::Shared(_) | Memory::SharedHost(_)) {
            let (id, unused) = match std::mem::replace(&mut self.memory, Memory::Gone) {
                Memory::Shared(block) => (block.id, Unused::Device(block.mapping)),
                Memory::SharedHost(block) => (block.id, Unused::Host(block.memory)),
                _ => return,
            };
            let used = uses.conflicting(true).map(|used| &used.stream);
            let streams = used.chain(uses.told()).cloned();
            return self.runtime.retire_shared(id, unused, streams);
        }
        let Some(member) = &self.member else { return };
        if let Memory::Device(_, block) = std::mem::replace(&mut self.memory, Memory::Gone) {
            member.leave(key, uses, block);
        }
    }
}

impl Inner {
    #[cold]
    fn keep_pageable(&mut self) {
        if let Some(cache) = self.runtime.host_cache()
            && let Memory::Pageable(memory) = std::mem::replace(&mut self.memory, Memory::Gone)
        {
            cache.put(memory);
        }
    }
}

#[derive(Debug)]
enum Memory {
    Pageable(HostMemory),
    Pinned(CudaPinnedBlock),
    Device(usize, CudaBlock),
    /// Of a device, and perhaps of other processes too.
    Shared(SharedBlock),
    /// Of the host, and perhaps of other processes too: nobody may have a reference to it.
    SharedHost(SharedHostBlock),
    /// While it is dropped.
    Gone,
}

impl Storage {
    /// Pageable host memory. A large block comes from the runtime's cache; its contents are then left
    /// over from its last user.
    ///
    /// # Errors
    /// When the system has no memory for it.
    #[track_caller]
    pub fn pageable(runtime: &Runtime, bytes: usize) -> Result<Self> {
        let memory = match (bytes >= KEPT_FROM).then(|| runtime.host_cache()).flatten() {
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
        Ok(Self::new(runtime, Memory::Pageable(memory), bytes))
    }

    /// Page-locked host memory from the runtime's cache; its contents are left over from its
    /// last user.
    ///
    /// # Errors
    /// [`ErrorKind::CudaUnavailable`], or the driver's own, that of a forked child among them.
    #[track_caller]
    pub fn pinned(runtime: &Runtime, bytes: usize) -> Result<Self> {
        runtime.check_process("empty")?;
        let block = runtime.pinned_cache()?.alloc(bytes).map_err(crate::error::alloc("empty"))?;
        Ok(Self::new(runtime, Memory::Pinned(block), bytes))
    }

    /// What the allocator gave for a stream.
    #[track_caller]
    pub(crate) fn found(
        runtime: &Runtime,
        block: CudaBlock,
        bytes: usize,
        stream: &Stream,
        member: Option<Member>,
    ) -> Self {
        let index = stream.device_index();
        let memory = Memory::Device(index, block);
        let storage = Self::build(runtime, memory, bytes, member, Location::caller());
        storage.exhume(index, stream);
        storage
    }

    /// Enters what its stream was given so far: the memory's last user may be among that, and the
    /// allocator orders it with that stream alone, by waits too that have no number.
    #[track_caller]
    pub(crate) fn enter_former_use(&self, stream: &Stream) {
        let site = Site { op: "empty", location: Location::caller() };
        self.uses().enter(stream, FORMER, true, site);
    }

    #[track_caller]
    fn new(runtime: &Runtime, memory: Memory, bytes: usize) -> Self {
        Self::build(runtime, memory, bytes, None, Location::caller())
    }

    fn build(
        runtime: &Runtime,
        memory: Memory,
        bytes: usize,
        member: Option<Member>,
        allocated: &'static Location<'static>,
    ) -> Self {
        Self(Arc::new(Inner {
            memory,
            bytes,
            runtime: runtime.clone(),
            uses: Mutex::default(),
            marked: AtomicBool::new(false),
            attached: AtomicBool::new(false),
            writes: AtomicU64::new(0),
            host: RwLock::new(()),
            allocated,
            member,
        }))
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// The runtime it belongs to.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.0.runtime
    }

    /// The device it is on; `None` for host memory.
    #[must_use]
    pub fn cuda_device(&self) -> Option<&CudaDevice> {
        match &self.0.memory {
            Memory::Device(index, _) => self.0.runtime.gpu(*index),
            Memory::Shared(block) => self.0.runtime.gpu(block.device),
            _ => None,
        }
    }

    /// Whether it is page-locked host memory.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        match &self.0.memory {
            Memory::Pinned(_) => true,
            Memory::SharedHost(block) => block.memory.is_pinned(),
            _ => false,
        }
    }

    /// Where it was allocated.
    pub(crate) fn allocated(&self) -> &'static Location<'static> {
        self.0.allocated
    }

    /// Whether two storages are the same memory.
    #[must_use]
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Its address, of the device or of the host.
    #[must_use]
    pub fn address(&self) -> u64 {
        match &self.0.memory {
            Memory::Device(_, block) => block.address(),
            Memory::Shared(block) => block.mapping.ptr().addr(),
            Memory::Pinned(block) => block.as_ptr().addr().get() as u64,
            Memory::SharedHost(block) => block.memory.as_ptr().addr().get() as u64,
            Memory::Pageable(memory) => memory.as_ptr().addr().get() as u64,
            Memory::Gone => 0,
        }
    }

    /// Tells the allocator that the memory is in use on `stream`, so that it is not given to
    /// anyone else before the work enqueued there by the time of the free is done
    /// (`Tensor.record_stream`). Under [`crate::SyncPolicy::Auto`] every launch does this itself.
    ///
    /// # Errors
    /// [`ErrorKind::RuntimeMismatch`] for a stream of another runtime.
    #[track_caller]
    pub fn record_stream(&self, stream: &Stream) -> Result<()> {
        if matches!(self.0.memory, Memory::Pageable(_) | Memory::Gone) {
            return Ok(());
        }
        self.0.runtime.check_stream(stream, "record_stream")?;
        self.uses().first_on(stream);
        match &self.0.memory {
            // The capture knows its uses, and there is no work to wait for.
            Memory::Device(..) if self.0.member.is_some() && stream.is_capturing() => {}
            Memory::Device(_, block) => block.record_stream(stream.raw()),
            Memory::Pinned(block) => block.record_use(stream.raw()),
            Memory::Shared(_) | Memory::SharedHost(_) | Memory::Pageable(_) | Memory::Gone => {}
        }
        Ok(())
    }

    /// Blocks the host until device work that a host access conflicts with is done.
    ///
    /// # Errors
    /// What that work failed with; for page-locked memory, that this is a forked child.
    #[track_caller]
    pub(crate) fn wait_for_host(&self, write: bool) -> Result<()> {
        if matches!(self.0.memory, Memory::Pageable(_)) {
            // Copies from and to pageable memory are waited for by whoever enqueues them.
            return Ok(());
        }
        self.0.runtime.check_process("host access")?;
        self.wait_for_peers()?;
        let pending = self.uses().conflicts(write);
        // Where the program is to order its streams, this keeps it sound and not right.
        let silently = self.0.runtime.detects_races();
        for used in pending {
            let waited = if silently {
                used.stream.host_wait_silently(used.op)
            } else {
                used.stream.host_wait(used.op)
            };
            match waited {
                Err(e) if used.is_moot() && e.driver_error().is_some() => {}
                waited => waited?,
            }
        }
        Ok(())
    }

    /// Waits for the work of other processes that its bytes depend on, within the limit that each was
    /// received with. Comes before the host waits for a stream, for which it can set no limit.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`].
    pub(crate) fn wait_for_peers(&self) -> Result<()> {
        if !self.is_marked() {
            return Ok(());
        }
        let awaited: Vec<Awaited> = self.uses().marks.awaited();
        awaited.iter().try_for_each(Awaited::wait_within_limit)
    }

    /// Refuses to read bytes, all work that writes them being done, if they depend on a check of
    /// indices, or on a collective, that failed, or on work of a process that is gone.
    ///
    /// # Errors
    /// [`ErrorKind::IndexCheck`]; [`ErrorKind::Collective`]; [`ErrorKind::PeerGone`].
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

    /// Marks all its bytes, however often they are overwritten, until work of another process is known
    /// to be done.
    pub(crate) fn mark_awaited(&self, awaited: Awaited) {
        let mut uses = self.uses();
        uses.marks.await_peer(awaited);
        self.set_marked(!uses.marks.is_empty());
    }

    /// Whether some bytes depend on more than work of the process that signals these.
    pub(crate) fn depends_on_others(&self, peers: &[&PeerSemaphore]) -> bool {
        self.is_marked() && self.uses().marks.has_others(peers)
    }

    /// Whether bytes may be marked.
    #[inline]
    pub(crate) fn is_marked(&self) -> bool {
        // In this order: `marked` is set before a storage is detached.
        self.0.attached.load(Ordering::Acquire) || self.0.marked.load(Ordering::Relaxed)
    }

    pub(crate) fn set_marked(&self, marked: bool) {
        self.0.marked.store(marked, Ordering::Relaxed);
    }

    pub(crate) fn downgrade(&self) -> WeakStorage {
        WeakStorage(Arc::downgrade(&self.0))
    }

    /// There if it was made in a capture.
    pub(crate) fn member(&self) -> Option<&Member> {
        self.0.member.as_ref()
    }

    /// Refuses to use, outside a capture, what was made in one and holds nothing yet.
    #[inline]
    #[track_caller]
    pub(crate) fn check_replayed(&self, captured: bool, op: &'static str) -> Result<()> {
        match &self.0.member {
            Some(member) if !member.was_replayed() && !captured => {
                Err(ErrorKind::NotReplayed.of(op))
            }
            _ => Ok(()),
        }
    }

    /// Locks the uses, and detaches them from replays.
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

    /// Enters that the uses are about to be attached. Called under the lock on them.
    pub(crate) fn enter_attached(&self) {
        self.0.attached.store(true, Ordering::Release);
    }

    pub(crate) fn is_device_memory(&self) -> bool {
        matches!(self.0.memory, Memory::Device(..))
    }

    pub(crate) fn host_lock(&self) -> &RwLock<()> {
        &self.0.host
    }

    /// The host bytes' address, `None` for device memory and where other processes may write.
    pub(crate) fn host_ptr(&self) -> Option<*mut u8> {
        match &self.0.memory {
            Memory::Pageable(memory) => Some(memory.as_ptr().as_ptr()),
            Memory::Pinned(block) => Some(block.as_ptr().as_ptr()),
            Memory::Device(..) | Memory::Shared(_) | Memory::SharedHost(_) | Memory::Gone => None,
        }
    }

    /// The device address, `None` for host memory.
    pub(crate) fn device_ptr(&self) -> Option<DevicePtr> {
        match &self.0.memory {
            // SAFETY: the block is alive as long as `self`, and launches that use it keep their
            // storages alive until the work is enqueued and tell the allocator of the stream.
            Memory::Device(_, block) => Some(unsafe { DevicePtr::from_raw(block.address()) }),
            Memory::Shared(block) => Some(block.mapping.ptr()),
            _ => None,
        }
    }

    /// Returns a number that no other living storage has. Locks of several storages are taken in its order.
    #[must_use]
    pub fn key(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Registers a use of the allocator's memory by a stream it was not allocated on.
    pub(crate) fn note_stream(&self, uses: &mut Uses, stream: &Stream) {
        match &self.0.memory {
            Memory::Device(_, block) => {
                if block.stream_id() != stream.id() && uses.first_on(stream) {
                    block.record_stream(stream.raw());
                }
            }
            Memory::Pinned(block) => {
                if uses.first_on(stream) {
                    block.record_use(stream.raw());
                }
            }
            // Whoever drops it waits for the streams of its uses, and for these.
            Memory::Shared(_) | Memory::SharedHost(_) => {
                uses.first_on(stream);
            }
            Memory::Pageable(_) | Memory::Gone => {}
        }
    }
}

/// Refuses an operation on host memory that is really a device's, or other processes' too.
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
