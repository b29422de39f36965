//! NCCL's functions and constants.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::dylib::{StatusCode, function_table};
use crate::nccl::{NcclType, ReduceOp, UniqueId};

/// `ncclUniqueId`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct RawId(pub(super) [u8; UniqueId::BYTES]);

/// `ncclConfig_t` of version 2.18. Newer libraries read only the fields that this version has.
#[repr(C)]
pub(super) struct NcclConfig {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl NcclConfig {
    /// Configures a communicator whose calls return before they are complete.
    pub(super) fn non_blocking() -> Self {
        const UNDEFINED: c_int = c_int::MIN;
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: super::OLDEST,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
        }
    }

    /// Configures a non-blocking communicator that shares its abort flag with communicators split
    /// off it.
    pub(super) fn sharing() -> Self {
        Self { split_share: 1, ..Self::non_blocking() }
    }

    /// Configures a communicator whose calls return when they are complete.
    pub(super) fn blocking() -> Self {
        Self { blocking: 1, ..Self::non_blocking() }
    }
}

type Comm = *mut c_void;
type RawStream = *mut c_void;
type MemoryPointer = *mut c_void;

function_table! {
    pub(super) struct NcclApi of "NCCL";
    required "NCCL 2.18" {
        ncclGetVersion(*mut c_int);
        ncclGetUniqueId(*mut RawId);
        ncclCommInitRankConfig(*mut Comm, c_int, RawId, c_int, *mut NcclConfig);
        ncclCommSplit(Comm, c_int, c_int, *mut Comm, *mut NcclConfig);
        ncclCommGetAsyncError(Comm, *mut StatusCode);
        ncclCommAbort(Comm);
        ncclCommUserRank(Comm, *mut c_int);
        ncclCommCount(Comm, *mut c_int);
        ncclGetErrorString(StatusCode) -> *const c_char;
        ncclGetLastError(Comm) -> *const c_char;
        ncclGroupStart();
        ncclGroupEnd();
        ncclAllReduce(MemoryPointer, MemoryPointer, usize, c_int, c_int, Comm, RawStream);
        ncclBroadcast(MemoryPointer, MemoryPointer, usize, c_int, c_int, Comm, RawStream);
        ncclReduce(MemoryPointer, MemoryPointer, usize, c_int, c_int, c_int, Comm, RawStream);
        ncclAllGather(MemoryPointer, MemoryPointer, usize, c_int, Comm, RawStream);
        ncclReduceScatter(MemoryPointer, MemoryPointer, usize, c_int, c_int, Comm, RawStream);
        ncclSend(MemoryPointer, usize, c_int, c_int, Comm, RawStream);
        ncclRecv(MemoryPointer, usize, c_int, c_int, Comm, RawStream);
    }
    optional {}
}

pub(super) fn type_code(dtype: NcclType) -> c_int {
    match dtype {
        NcclType::I8 => 0,
        NcclType::U8 => 1,
        NcclType::I32 => 2,
        NcclType::U32 => 3,
        NcclType::I64 => 4,
        NcclType::U64 => 5,
        NcclType::F16 => 6,
        NcclType::F32 => 7,
        NcclType::F64 => 8,
        NcclType::BF16 => 9,
    }
}

pub(super) fn reduce_op(op: ReduceOp) -> c_int {
    match op {
        ReduceOp::Sum => 0,
        ReduceOp::Product => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
        ReduceOp::Avg => 4,
    }
}

/// Returns the name of a status in `nccl.h`.
pub(super) fn status_name(status: StatusCode) -> String {
    let name = match status {
        1 => "ncclUnhandledCudaError",
        2 => "ncclSystemError",
        3 => "ncclInternalError",
        4 => "ncclInvalidArgument",
        5 => "ncclInvalidUsage",
        6 => "ncclRemoteError",
        other => return format!("status {other}"),
    };
    name.to_owned()
}
