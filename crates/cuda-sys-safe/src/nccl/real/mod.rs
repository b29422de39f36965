//! The NCCL library, found and loaded at run time: version 2.18 or newer.
//!
//! # Library search
//! If `WARPLINE_NCCL` is set, only its value is tried: the path of the library, or of the folder
//! that contains it. Otherwise `libnccl.so.2`, then `libnccl.so`, are looked for on the loader's
//! path, then in `/usr/lib/x86_64-linux-gnu`, `/usr/lib64` and `/usr/local/cuda/lib64`, then in
//! Python wheels: `nvidia/nccl/lib` below the packages of `VIRTUAL_ENV`, of `CONDA_PREFIX` and of
//! the system's Pythons.
//!
//! # Environment variables
//! NCCL obeys its own `NCCL_*` variables. On machines where several users share the GPUs of an
//! NVLink switch, set `NCCL_NVLS_ENABLE=0`, because NVLink multicast concerns the whole switch.
//! This crate cannot set the variable: the environment of a program with threads cannot be changed
//! safely.
//!
//! # Threads
//! Threads take turns to enqueue work for a device: one thread at a time, whatever the
//! communicator. A thread that waits for its turn stops waiting when its communicator is interrupted.
//! Aborts take other turns, one at a time in the process.

mod api;
mod exit;
mod find;
mod stages;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::{Duration, Instant};

use self::api::{NcclApi, NcclConfig, RawId, reduce_op, status_name, type_code};
use self::stages::CommStages;
use super::{Collective, CommHandle, CommState, Nccl, UniqueId};
use crate::dylib::StatusCode;
use crate::real::CudaDriver;
use crate::{CaptureMode, DevicePtr, Driver, DriverError, Result, StreamHandle};

/// The oldest supported version.
const OLDEST: u32 = 21_800;

const SUCCESS: StatusCode = 0;
const IN_PROGRESS: StatusCode = 7;

struct Library {
    api: NcclApi,
    version: u32,
}

/// The library during a call. The process waits for the call before it ends.
struct Entered {
    library: &'static Library,
    _call: exit::RunningCall,
}

impl std::ops::Deref for Entered {
    type Target = Library;

    fn deref(&self) -> &Library {
        self.library
    }
}

fn loaded() -> Result<&'static Library> {
    static LIBRARY: OnceLock<Result<Library>> = OnceLock::new();
    LIBRARY.get_or_init(|| load(&find::candidates())).as_ref().map_err(Clone::clone)
}

/// Returns the process's NCCL for one call.
fn library() -> Result<Entered> {
    Ok(Entered { library: loaded()?, _call: exit::enter()? })
}

/// Returns the process's NCCL for an abort.
fn library_to_abort() -> Result<Entered> {
    Ok(Entered { library: loaded()?, _call: exit::enter_to_abort()? })
}

fn load(candidates: &[std::path::PathBuf]) -> Result<Library> {
    let library = find::SEARCH.open(candidates)?;
    // SAFETY: nccl.h has declared these signatures in all versions since 2.18.
    let api = unsafe { NcclApi::resolve(library, find::version_text) }?;
    let mut version = 0;
    // SAFETY: the pointer is valid for writes.
    let status = unsafe { (api.ncclGetVersion)(&mut version) };
    let version = version as u32;
    if status == SUCCESS && version >= OLDEST {
        exit::register();
        return Ok(Library { api, version });
    }
    Err(DriverError::MissingSymbol {
        library: find::SEARCH.library,
        symbol: "complete 2.18 interface",
        version: find::text(version),
        needs: "NCCL 2.18",
    })
}

/// Returns an error if NCCL cannot be loaded. For [`Driver::nccl`] of the real driver.
pub(crate) fn available() -> Result<()> {
    library().map(drop)
}

fn address(ptr: DevicePtr) -> *mut c_void {
    ptr::without_provenance_mut(ptr.addr() as usize)
}

impl Library {
    /// Turns the status of a call into a state or an error. `comm` may be null.
    fn check(
        &self,
        call: &'static str,
        status: StatusCode,
        comm: *mut c_void,
    ) -> Result<CommState> {
        match status {
            SUCCESS => Ok(CommState::Ready),
            IN_PROGRESS => Ok(CommState::InProgress),
            _ => {
                let text = |text: *const c_char| {
                    if text.is_null() {
                        return String::new();
                    }
                    // SAFETY: NCCL returned a static NUL-terminated string.
                    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
                };
                // SAFETY: both functions accept any status, and any live communicator or null.
                let (what, last) = unsafe {
                    (
                        text((self.api.ncclGetErrorString)(status)),
                        text((self.api.ncclGetLastError)(comm)),
                    )
                };
                let detail = if last.is_empty() { what } else { format!("{what}: {last}") };
                let status = status_name(status);
                Err(DriverError::LibraryCall { call, status, detail, location: None })
            }
        }
    }

    /// # Safety
    /// The same as [`Nccl::enqueue`]. The call must be inside an NCCL group.
    unsafe fn one(
        &self,
        comm: *mut c_void,
        call: &Collective,
        stream: *mut c_void,
    ) -> (&'static str, StatusCode) {
        let api = &self.api;
        // SAFETY: the caller guarantees that the communicator and the stream are alive, and that
        // the memory is valid until the work is done.
        unsafe {
            match *call {
                Collective::AllReduce { send, recv, count, dtype, op } => {
                    let (send, recv, dtype) = (address(send), address(recv), type_code(dtype));
                    let op = reduce_op(op);
                    let status = (api.ncclAllReduce)(send, recv, count, dtype, op, comm, stream);
                    ("ncclAllReduce", status)
                }
                Collective::Broadcast { send, recv, count, dtype, root } => {
                    let (send, recv, dtype) = (address(send), address(recv), type_code(dtype));
                    let root = root as c_int;
                    let status = (api.ncclBroadcast)(send, recv, count, dtype, root, comm, stream);
                    ("ncclBroadcast", status)
                }
                Collective::Reduce { send, recv, count, dtype, op, root } => {
                    let (send, recv, dtype) = (address(send), address(recv), type_code(dtype));
                    let (op, root) = (reduce_op(op), root as c_int);
                    let status = (api.ncclReduce)(send, recv, count, dtype, op, root, comm, stream);
                    ("ncclReduce", status)
                }
                Collective::AllGather { send, recv, count, dtype } => {
                    let (send, recv, dtype) = (address(send), address(recv), type_code(dtype));
                    let status = (api.ncclAllGather)(send, recv, count, dtype, comm, stream);
                    ("ncclAllGather", status)
                }
                Collective::ReduceScatter { send, recv, count, dtype, op } => {
                    let (send, recv, dtype) = (address(send), address(recv), type_code(dtype));
                    let op = reduce_op(op);
                    let status =
                        (api.ncclReduceScatter)(send, recv, count, dtype, op, comm, stream);
                    ("ncclReduceScatter", status)
                }
                Collective::Send { send, count, dtype, peer } => {
                    let (dtype, peer) = (type_code(dtype), peer as c_int);
                    ("ncclSend", (api.ncclSend)(address(send), count, dtype, peer, comm, stream))
                }
                Collective::Recv { recv, count, dtype, peer } => {
                    let (dtype, peer) = (type_code(dtype), peer as c_int);
                    ("ncclRecv", (api.ncclRecv)(address(recv), count, dtype, peer, comm, stream))
                }
            }
        }
    }
}

/// Runs `f`, which calls NCCL, with the device's context current and the thread in relaxed capture
/// mode, so that NCCL may allocate while a stream is captured.
fn relaxed<R>(driver: &CudaDriver, device: usize, f: impl FnOnce() -> Result<R>) -> Result<R> {
    let mode = driver.exchange_capture_mode(device, CaptureMode::Relaxed)?;
    let result = f();
    driver.exchange_capture_mode(device, mode)?;
    result
}

// SAFETY: NCCL enqueues work only on the given stream, and the work accesses only the memory that
// the calls name.
unsafe impl Nccl for CudaDriver {
    fn version(&self) -> Result<u32> {
        library().map(|library| library.version)
    }

    fn unique_id(&self) -> Result<UniqueId> {
        let library = library()?;
        let mut id = RawId([0; UniqueId::BYTES]);
        // SAFETY: the pointer is valid for writes.
        let status = unsafe { (library.api.ncclGetUniqueId)(&mut id) };
        library.check("ncclGetUniqueId", status, ptr::null_mut())?;
        Ok(UniqueId::from_bytes(id.0))
    }

    fn comm_init(
        &self,
        device: usize,
        id: &UniqueId,
        ranks: usize,
        rank: usize,
    ) -> Result<CommHandle> {
        const CALL: &str = "ncclCommInitRankConfig";
        let library = library()?;
        let (Ok(count), Ok(own)) = (c_int::try_from(ranks), c_int::try_from(rank)) else {
            let reason = format!("rank {rank} of {ranks} is more than NCCL can count");
            return Err(DriverError::InvalidArgument { call: CALL, reason });
        };
        relaxed(self, device, || {
            let (stages, comm) = CommStages::open(device);
            let (root, id) = (stages.root.as_ptr(), RawId(*id.as_bytes()));
            let mut config = NcclConfig::non_blocking();
            // SAFETY: the slot is freed only after NCCL has written it. NCCL reads the
            // configuration before the call returns. The device's context is current.
            let status =
                unsafe { (library.api.ncclCommInitRankConfig)(root, count, id, own, &mut config) };
            // After a failed call the stages are leaked, because NCCL may still write the slot.
            library.check(CALL, status, ptr::null_mut()).map(|_| comm)
        })
    }

    unsafe fn comm_split(
        &self,
        comm: CommHandle,
        color: Option<u32>,
        key: usize,
    ) -> Result<Option<CommHandle>> {
        const CALL: &str = "ncclCommSplit";
        const NO_COLOR: c_int = -1;
        let library = library()?;
        let refuse = |reason: String| DriverError::InvalidArgument { call: CALL, reason };
        let number = color.map_or(Ok(NO_COLOR), c_int::try_from);
        let number = number.map_err(|_| refuse(format!("color {color:?} is too large")))?;
        let key = c_int::try_from(key).map_err(|_| refuse(format!("key {key} is too large")))?;
        // SAFETY: the caller guarantees that the communicator is alive.
        let whole = unsafe { CommStages::of(comm) };
        relaxed(self, comm.device(), || {
            let (part, child) = CommStages::open(comm.device());
            let (root, slot) = (whole.root.load(Ordering::Acquire), part.root.as_ptr());
            let mut config = NcclConfig::non_blocking();
            // SAFETY: the caller guarantees that the communicator is alive. The slot is freed only
            // after NCCL has written it. NCCL reads the configuration before the call returns.
            let status =
                unsafe { (library.api.ncclCommSplit)(root, number, key, slot, &mut config) };
            library.check(CALL, status, root)?;
            Ok(color.map(|_| child))
        })
    }

    unsafe fn comm_rank(&self, comm: CommHandle) -> Result<(usize, usize)> {
        let library = library()?;
        let (mut rank, mut ranks) = (0, 0);
        // SAFETY: the caller guarantees that the communicator is alive. Both pointers are valid for
        // writes.
        let (comm, first, second) = unsafe {
            let comm = CommStages::of(comm).comm.load(Ordering::Acquire);
            let first = (library.api.ncclCommUserRank)(comm, &mut rank);
            (comm, first, (library.api.ncclCommCount)(comm, &mut ranks))
        };
        library.check("ncclCommUserRank", first, comm)?;
        library.check("ncclCommCount", second, comm)?;
        Ok((rank as usize, ranks as usize))
    }

    unsafe fn comm_state(&self, comm: CommHandle) -> Result<CommState> {
        let library = library()?;
        // SAFETY: the caller guarantees that the communicator is alive and used by one thread.
        unsafe { CommStages::of(comm).state(&library, self, comm.device()) }
    }

    unsafe fn enqueue(
        &self,
        comm: CommHandle,
        calls: &[Collective],
        stream: StreamHandle,
    ) -> Result<()> {
        const CALL: &str = "ncclGroupEnd";
        let (library, device) = (library()?, comm.device());
        if stream.device() != device {
            let reason = format!(
                "the stream is on cuda:{}, the communicator on cuda:{device}",
                stream.device()
            );
            return Err(DriverError::InvalidArgument { call: CALL, reason });
        }
        // SAFETY: the caller guarantees that the communicator is alive.
        let stages = unsafe { CommStages::of(comm) };
        // The first call of a kind holds the turn until the other ranks have made the call, too.
        let _turn = self.turn_of(CALL, stages, device)?;
        relaxed(self, device, || {
            let comm = stages.comm.load(Ordering::Acquire);
            let stream = ptr::without_provenance_mut(stream.raw() as usize);
            // SAFETY: the function takes no arguments.
            library.check("ncclGroupStart", unsafe { (library.api.ncclGroupStart)() }, comm)?;
            let called = calls.iter().try_for_each(|call| {
                // SAFETY: the caller guarantees that the communicator and the stream are alive and
                // that the memory is valid. A group has begun.
                let (name, status) = unsafe { library.one(comm, call, stream) };
                library.check(name, status, comm).map(drop)
            });
            // SAFETY: a group has begun. It must end even if a call failed.
            let status = unsafe { (library.api.ncclGroupEnd)() };
            called?;
            match library.check(CALL, status, comm)? {
                CommState::Ready => Ok(()),
                // `NCCL_COMM_BLOCKING=0` in the environment overrides the requested blocking mode.
                CommState::InProgress => stages.wait(&library, CALL),
            }
        })
    }

    unsafe fn comm_interrupt(&self, comm: CommHandle) -> Result<()> {
        let (library, device) = (library_to_abort()?, comm.device());
        // Takes no turn, because the call to interrupt holds the turn.
        let mode = match self.exchange_capture_mode(device, CaptureMode::Relaxed) {
            // A call that waits for other ranks must be interrupted even if the device is lost.
            Err(error) if error.loses_device() => None,
            mode => Some(mode?),
        };
        // SAFETY: the caller guarantees that the communicator is alive and interrupted once.
        let result = unsafe { CommStages::of(comm).interrupt(&library) };
        if let Some(mode) = mode {
            self.exchange_capture_mode(device, mode)?;
        }
        result
    }

    unsafe fn comm_abort(&self, comm: CommHandle) -> Result<()> {
        let library = library_to_abort()?;
        // Takes no turn to enqueue: the thread that holds it may wait for work that only this abort
        // ends.
        let _turn = turn_to_abort();
        relaxed(self, comm.device(), || {
            // SAFETY: the caller guarantees that the communicator is alive and used by no other
            // thread.
            unsafe { CommStages::close(comm, &library) }
        })
    }
}

/// Maximum time that an abort waits for its turn.
const ABORT_TURN: Duration = Duration::from_secs(2);

/// Waits until no other thread aborts a communicator: the driver may corrupt its memory when several threads unmap
/// memory at once. An abort may itself wait until another thread destroys a graph, so the wait is bounded.
fn turn_to_abort() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    let begun = Instant::now();
    loop {
        match TURN.try_lock() {
            Ok(turn) => return Some(turn),
            Err(TryLockError::Poisoned(turn)) => return Some(turn.into_inner()),
            Err(TryLockError::WouldBlock) if begun.elapsed() > ABORT_TURN => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

impl CudaDriver {
    /// Waits for the turn to enqueue NCCL work for a device, or until the communicator is
    /// interrupted. The thread that has the turn may be waiting for ranks that never come.
    fn turn_of(
        &self,
        call: &'static str,
        stages: &CommStages,
        device: usize,
    ) -> Result<MutexGuard<'_, ()>> {
        let mut nap = Duration::from_micros(1);
        loop {
            if stages.is_interrupted() {
                return Err(stages::interrupted(call));
            }
            if let Some(turn) = self.nccl_turn(call, device)? {
                return Ok(turn);
            }
            std::thread::sleep(nap);
            nap = (nap * 2).min(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_lists_the_search() {
        let path = std::path::PathBuf::from("/nonexistent/libnccl.so.2");
        let Err(error) = load(&[path]) else { panic!("a missing library was loaded") };
        let text = error.to_string();
        assert!(
            text.contains("no NCCL library") && text.contains("/nonexistent/libnccl.so.2"),
            "{text}"
        );
        assert!(text.contains("WARPLINE_NCCL"), "{text}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn another_library_lacks_the_symbols() {
        let Err(error) = load(&["libc.so.6".into()]) else { panic!("libc was loaded as NCCL") };
        assert!(matches!(error, DriverError::MissingSymbol { library: "NCCL", .. }), "{error}");
    }
}
