//! Runs an op on the host's cores.

use std::cell::Cell;
use std::sync::PoisonError;

use smallvec::SmallVec;
use warpline_cuda_sys_safe::HostLaunch;
use warpline_sync::thread_local;

use super::index_report::LocalMailbox;
use super::result_marks::{record_host_writes, wait_for_host};
use super::{Call, distinct};
use crate::race::{Touch, check_host};
use crate::storage::not_host;
use crate::{Error, ErrorKind, IndexCheck, Operand, Result, Site, Storage, host};

#[track_caller]
pub(super) fn run(call: &Call<'_>) -> Result<()> {
    let site = call.site();
    // SAFETY: `with_checked` keeps the pointers valid and locked during this call. The caller of
    // `launch::run` guarantees that the code matches its declaration and parameters.
    let run = |launch: &HostLaunch<'_>| unsafe { (call.host)(launch) };
    if !call.checks_indices {
        return with_operands(site, call.operands, call.params, run);
    }
    let reported = LocalMailbox::default();
    let failed = with_checked(site, call.operands, &reported.params(call), |launch| {
        run(launch);
        reported.failed(call)
    })?;
    failed.map_or(Ok(()), |failed| Err(failed.into()))
}

/// Runs host code on operands in host memory. Takes their host locks, waits for conflicting device
/// work, and holds the locks until `f` returns.
///
/// # Errors
/// - [`ErrorKind::RuntimeMismatch`] if the operands belong to different runtimes.
/// - [`ErrorKind::SharedHostMemory`] if other processes may write to an operand, and
///   [`ErrorKind::Driver`] if an operand is in device memory.
/// - [`ErrorKind::InvalidArgument`] inside a closure that holds locks of host memory.
/// - [`ErrorKind::Race`] if the operands race with device work under
///   [`SyncPolicy::Manual`](crate::SyncPolicy) with [`RaceReport::Error`](crate::RaceReport::Error).
/// - [`ErrorKind::TimedOut`] if an operand depends on work of another process that is not complete
///   within the limit set on receipt.
/// - The failure of device work that is waited for, or that the operands depend on.
#[track_caller]
pub fn with_operands(
    site: Site,
    operands: &[Operand<'_>],
    params: &[u8],
    f: impl FnOnce(&HostLaunch<'_>),
) -> Result<()> {
    let unchecked = |launch: &HostLaunch<'_>| {
        f(launch);
        None
    };
    with_checked(site, operands, params, unchecked).map(drop)
}

/// Runs host code as [`with_operands`] does, and returns the index check that failed, if any.
#[track_caller]
fn with_checked(
    site: Site,
    operands: &[Operand<'_>],
    params: &[u8],
    f: impl FnOnce(&HostLaunch<'_>) -> Option<IndexCheck>,
) -> Result<Option<IndexCheck>> {
    let op = site.op;
    let mut pointers: SmallVec<[*mut u8; 4]> = SmallVec::new();
    for operand in operands {
        let view = operand.view;
        if !view.storage.runtime().same_as(operands[0].view.storage.runtime()) {
            return Err(ErrorKind::RuntimeMismatch.of(op));
        }
        let Some(base) = view.storage.host_ptr() else { return Err(not_host(op, view.storage)) };
        // The address of index zero. The caller has checked that the layout lies inside the
        // storage.
        pointers.push(base.wrapping_add(view.layout.offset() * view.dtype.size()));
    }
    let storages = operands.iter().map(|o| (o.view.storage, o.access.writes()));
    with_host_locks(op, storages, || {
        // Nothing else is ordered with host code that uses pageable memory without marks. The host locks keep other code
        // from adding marks.
        let is_ordered =
            !operands.iter().all(|o| o.view.storage.is_pageable() && !o.view.storage.is_marked());
        if is_ordered {
            for (argument, operand) in operands.iter().enumerate() {
                check_host(&Touch::from(*operand), argument, site)?;
            }
            for operand in operands {
                wait_for_host(&Touch::from(*operand))?;
            }
        }
        for operand in operands.iter().filter(|operand| operand.access.writes()) {
            operand.view.storage.record_write();
        }
        let failed = f(&HostLaunch { pointers: &pointers, params, parallel: host::may_parallel() });
        if is_ordered || failed.is_some() {
            record_host_writes(operands.iter().map(|o| Touch::from(*o)), failed.as_ref());
        }
        Ok(failed)
    })
}

thread_local! {
    /// Whether this thread holds host locks.
    static HOLDS_HOST_LOCKS: Cell<bool> = const { Cell::new(false) };
}

/// Sets [`HOLDS_HOST_LOCKS`] until it is dropped.
struct HostLockScope;

impl HostLockScope {
    /// Fails if this thread already holds host locks, which is the case in the closure of a call
    /// such as `fill_bytes`. Taking more locks there could deadlock.
    #[track_caller]
    fn begin(op: &'static str) -> Result<Self> {
        if HOLDS_HOST_LOCKS.try_with(|holds| holds.replace(true)).unwrap_or(false) {
            let reason = "host memory was used inside a closure that is given locked host memory; use it \
                          before or after that call";
            return Err(Error::invalid(op, reason));
        }
        Ok(Self)
    }
}

impl Drop for HostLockScope {
    fn drop(&mut self) {
        let _ = HOLDS_HOST_LOCKS.try_with(|holds| holds.set(false));
    }
}

/// Runs `f` with each storage's host lock held. Locks are taken in the order of the storages' keys.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if this thread already runs such an `f`, and errors of `f`.
#[track_caller]
pub(crate) fn with_host_locks<'a, R>(
    op: &'static str,
    storages: impl Iterator<Item = (&'a Storage, bool)>,
    f: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let distinct = distinct(storages);
    if distinct.is_empty() {
        return f();
    }
    let _holding = HostLockScope::begin(op)?;
    let mut reads: SmallVec<[_; 4]> = SmallVec::new();
    let mut writes: SmallVec<[_; 2]> = SmallVec::new();
    for &(storage, write) in &distinct {
        let lock = storage.host_lock();
        if write {
            writes.push(lock.write().unwrap_or_else(PoisonError::into_inner));
        } else {
            reads.push(lock.read().unwrap_or_else(PoisonError::into_inner));
        }
    }
    f()
}
