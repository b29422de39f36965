//! NCCL itself, found and loaded at run time: version 2.18 or newer.
//!
//! # Where the library is looked for
//! A path in `WARPLINE_NCCL` is the only one tried; it names the library or the folder that holds
//! it. Without one: `libnccl.so.2`, then `libnccl.so`, on the loader's path, then in
//! `/usr/lib/x86_64-linux-gnu`, `/usr/lib64` and `/usr/local/cuda/lib64`, then where a Python wheel
//! puts it, `nvidia/nccl/lib` below the packages of `VIRTUAL_ENV`, of `CONDA_PREFIX` and of the
//! system's Pythons.
//!
//! # What the environment does
//! NCCL obeys its own `NCCL_*` variables. On machines where GPUs of one NVLink switch are shared with
//! others, run with `NCCL_NVLS_ENABLE=0`: NVLink multicast concerns the whole switch. It cannot be
//! turned off from here, since a program's environment cannot be changed safely once it has threads.

mod api;
mod exit;
mod find;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use self::api::{Api, Config, RawId, reduce_op, status_name, type_code};
use super::{Collective, CommHandle, CommState, Nccl, UniqueId};
use crate::dylib::Status;
use crate::real::CudaDriver;
use crate::{CaptureMode, DevicePtr, Driver, DriverError, Result, StreamHandle};

/// The oldest version that will do.
const OLDEST: u32 = 21_800;

const SUCCESS: Status = 0;
const IN_PROGRESS: Status = 7;

struct Library {
    api: Api,
    version: u32,
}

/// The library during a call, for which the process waits before it ends.
struct Entered {
    library: &'static Library,
    _call: exit::Call,
}

impl std::ops::Deref for Entered {
    type Target = Library;

    fn deref(&self) -> &Library {
        self.library
    }
}

/// The process's NCCL, to be called once.
fn library() -> Result<Entered> {
    static LIBRARY: OnceLock<Result<Library>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| load(&find::candidates())).as_ref();
    Ok(Entered { library: library.map_err(Clone::clone)?, _call: exit::enter()? })
}

fn load(candidates: &[std::path::PathBuf]) -> Result<Library> {
    let library = find::SEARCH.open(candidates)?;
    // SAFETY: the signatures are those of nccl.h, the same in all versions since 2.18.
    let api = unsafe { Api::resolve(library, find::version_text) }?;
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

/// Whether there is an NCCL, for [`Driver::nccl`] of the real driver.
pub(crate) fn available() -> Result<()> {
    library().map(drop)
}

/// Where NCCL writes a communicator: that of a split comes some time after the call.
type Slot = AtomicPtr<c_void>;

fn slot(comm: CommHandle) -> *mut Slot {
    ptr::with_exposed_provenance_mut(comm.raw() as usize)
}

/// NCCL's own handle; null until it has made one.
///
/// # Safety
/// The communicator is alive.
unsafe fn raw(comm: CommHandle) -> *mut c_void {
    // SAFETY: the slot lives as long as the communicator.
    unsafe { (*slot(comm)).load(Ordering::Acquire) }
}

fn new_slot() -> *mut Slot {
    Box::into_raw(Box::new(Slot::new(ptr::null_mut())))
}

fn address(ptr: DevicePtr) -> *mut c_void {
    ptr::without_provenance_mut(ptr.addr() as usize)
}

impl Library {
    /// What a status is, of a call on a communicator (or of none).
    fn check(&self, call: &'static str, status: Status, comm: *mut c_void) -> Result<CommState> {
        match status {
            SUCCESS => Ok(CommState::Ready),
            IN_PROGRESS => Ok(CommState::InProgress),
            _ => {
                let text = |text: *const c_char| {
                    if text.is_null() {
                        return String::new();
                    }
                    // SAFETY: NCCL's own NUL-terminated string.
                    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
                };
                // SAFETY: takes any status, and any communicator or null.
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
    /// As of [`Nccl::enqueue`]; within a group.
    unsafe fn one(
        &self,
        comm: *mut c_void,
        call: &Collective,
        stream: *mut c_void,
    ) -> (&'static str, Status) {
        let api = &self.api;
        // SAFETY: the caller vouches for the communicator, the stream and the memory.
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

/// Calls NCCL with the device's context current, and what it allocates allowed while this thread
/// captures a stream.
fn relaxed<R>(driver: &CudaDriver, device: usize, f: impl FnOnce() -> Result<R>) -> Result<R> {
    let mode = driver.exchange_capture_mode(device, CaptureMode::Relaxed)?;
    let result = f();
    driver.exchange_capture_mode(device, mode)?;
    result
}

// SAFETY: NCCL enqueues on the stream that it is given, and touches what its calls name.
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
        let _turn = self.nccl_turn(CALL, device)?;
        relaxed(self, device, || {
            let (slot, id) = (new_slot(), RawId(*id.as_bytes()));
            let mut config = Config::non_blocking();
            // SAFETY: the slot is never freed while NCCL may write it; the configuration is read
            // before the call returns; the device's context is current.
            let status = unsafe {
                let comm = (*slot).as_ptr();
                (library.api.ncclCommInitRankConfig)(comm, count, id, own, &mut config)
            };
            // SAFETY: just made. Where the call failed it is leaked, for NCCL may still know it.
            let comm = unsafe { CommHandle::new(slot.expose_provenance() as u64, device) };
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
        let _turn = self.nccl_turn(CALL, comm.device())?;
        relaxed(self, comm.device(), || {
            let slot = new_slot();
            // SAFETY: the caller vouches for the communicator; the slot is never freed while NCCL may
            // write it. Without a configuration the new one is as its parent.
            let (status, parent) = unsafe {
                let parent = raw(comm);
                let child = (*slot).as_ptr();
                let none = ptr::null_mut();
                ((library.api.ncclCommSplit)(parent, number, key, child, none), parent)
            };
            library.check(CALL, status, parent)?;
            // SAFETY: just made.
            let child = unsafe { CommHandle::new(slot.expose_provenance() as u64, comm.device()) };
            Ok(color.map(|_| child))
        })
    }

    unsafe fn comm_rank(&self, comm: CommHandle) -> Result<(usize, usize)> {
        let library = library()?;
        let (mut rank, mut ranks) = (0, 0);
        // SAFETY: the caller vouches for the communicator; both pointers are valid for writes.
        let (comm, first, second) = unsafe {
            let comm = raw(comm);
            let first = (library.api.ncclCommUserRank)(comm, &mut rank);
            (comm, first, (library.api.ncclCommCount)(comm, &mut ranks))
        };
        library.check("ncclCommUserRank", first, comm)?;
        library.check("ncclCommCount", second, comm)?;
        Ok((rank as usize, ranks as usize))
    }

    unsafe fn comm_state(&self, comm: CommHandle) -> Result<CommState> {
        const CALL: &str = "ncclCommGetAsyncError";
        let library = library()?;
        // SAFETY: the caller vouches for the communicator.
        let comm = unsafe { raw(comm) };
        if comm.is_null() {
            return Ok(CommState::InProgress);
        }
        let mut state = 0;
        // SAFETY: alive; the pointer is valid for writes.
        let status = unsafe { (library.api.ncclCommGetAsyncError)(comm, &mut state) };
        library.check(CALL, status, comm)?;
        library.check(CALL, state, comm)
    }

    unsafe fn enqueue(
        &self,
        comm: CommHandle,
        calls: &[Collective],
        stream: StreamHandle,
    ) -> Result<CommState> {
        const CALL: &str = "ncclGroupEnd";
        let (library, device) = (library()?, comm.device());
        if stream.device() != device {
            let reason = format!(
                "the stream is on cuda:{}, the communicator on cuda:{device}",
                stream.device()
            );
            return Err(DriverError::InvalidArgument { call: CALL, reason });
        }
        let _turn = self.nccl_turn(CALL, device)?;
        relaxed(self, device, || {
            // SAFETY: the caller vouches for the communicator.
            let comm = unsafe { raw(comm) };
            let stream = ptr::without_provenance_mut(stream.raw() as usize);
            // SAFETY: takes nothing.
            library.check("ncclGroupStart", unsafe { (library.api.ncclGroupStart)() }, comm)?;
            let called = calls.iter().try_for_each(|call| {
                // SAFETY: the caller vouches for the stream and the memory; a group was begun.
                let (name, status) = unsafe { library.one(comm, call, stream) };
                library.check(name, status, comm).map(drop)
            });
            // SAFETY: a group was begun, and has to end whatever happened.
            let status = unsafe { (library.api.ncclGroupEnd)() };
            called?;
            library.check(CALL, status, comm)
        })
    }

    unsafe fn comm_abort(&self, comm: CommHandle) -> Result<()> {
        const CALL: &str = "ncclCommAbort";
        let library = library()?;
        // It takes no turn: it may be what ends the work that a thread which has the turn waits for.
        relaxed(self, comm.device(), || {
            // SAFETY: the caller vouches for the communicator.
            let own = unsafe { raw(comm) };
            if own.is_null() {
                // A split that never came to its end: NCCL may still write the slot.
                return Ok(());
            }
            // SAFETY: alive, and never used again; nor is its slot, which NCCL has written.
            let status = unsafe {
                let status = (library.api.ncclCommAbort)(own);
                drop(Box::from_raw(slot(comm)));
                status
            };
            library.check(CALL, status, ptr::null_mut()).map(drop)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_says_where_it_was_looked_for() {
        let path = std::path::PathBuf::from("/nonexistent/libnccl.so.2");
        let Err(error) = load(&[path]) else { panic!("there is one") };
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
        let Err(error) = load(&["libc.so.6".into()]) else { panic!("libc is no NCCL") };
        assert!(matches!(error, DriverError::MissingSymbol { library: "NCCL", .. }), "{error}");
    }
}
