//! Copies of plain bytes to and from host memory.

use warpline_cuda_sys_safe::Access;

use super::cpu::with_host_locks;
use super::result_marks::{record_host_writes, wait_for_host};
use super::transfer::check_range;
use crate::race::{Touch, check_host};
use crate::storage::not_host;
use crate::{ErrorKind, Result, Site, Storage};

/// Copies bytes of host memory, from a byte offset on, to `out`, after device work that writes them
/// is complete.
///
/// # Errors
/// - [`crate::ErrorKind::IndexOutOfRange`] if the bytes do not lie inside the storage.
/// - [`crate::ErrorKind::Driver`] if the storage is device memory, and in a forked child for
///   page-locked memory.
/// - [`crate::ErrorKind::IndexCheck`], [`crate::ErrorKind::Collective`] or
///   [`crate::ErrorKind::PeerGone`] if the bytes depend on work that failed.
/// - [`crate::ErrorKind::InvalidArgument`] inside a closure that holds locks of host memory.
/// - [`crate::ErrorKind::Race`] if the access races with device work under
///   [`SyncPolicy::Manual`](crate::SyncPolicy) with [`RaceReport::Error`](crate::RaceReport::Error).
/// - [`crate::ErrorKind::TimedOut`] if the storage depends on work of another process that is not
///   complete within the limit set on receipt.
/// - Errors of the wait ([`Stream::host_wait`](crate::Stream::host_wait)).
#[track_caller]
pub fn read_bytes(src: (&Storage, usize), out: &mut [u8]) -> Result<()> {
    let site = Site::here("read_bytes");
    let (storage, offset) = src;
    check_range("read_bytes", storage, offset, out.len())?;
    let base = storage.host_ptr();
    if base.is_none() && !storage.is_shared_host() {
        return Err(not_host("read_bytes", storage));
    }
    let touch = Touch::range(storage, offset, out.len(), Access::Read);
    with_host_locks(site.op, [(storage, false)].into_iter(), || {
        check_host(&touch, 0, site)?;
        wait_for_host(&touch)?;
        let Some(base) = base else {
            // SAFETY: the storage's read lock is held, and device work of this process that writes
            // the bytes is complete. New device work that writes them needs the write lock.
            return unsafe { storage.read_shared_host(offset, out) };
        };
        // SAFETY: the bytes lie inside the storage and are initialized. Its read lock is held, and
        // device work that writes the bytes is complete. `out` is a borrow, so it cannot overlap
        // them.
        unsafe {
            std::ptr::copy_nonoverlapping(base.add(offset), out.as_mut_ptr(), out.len());
        }
        Ok(())
    })
}

/// Copies `bytes` to host memory, from a byte offset on, after device work that uses it is
/// complete.
///
/// # Errors
/// The same as [`read_bytes`], except those for bytes that depend on failed work.
#[track_caller]
pub fn write_bytes(dst: (&Storage, usize), bytes: &[u8]) -> Result<()> {
    let site = Site::here("write_bytes");
    let (storage, offset) = dst;
    check_range("write_bytes", storage, offset, bytes.len())?;
    let base = storage.host_ptr();
    if base.is_none() && !storage.is_shared_host() {
        return Err(not_host("write_bytes", storage));
    }
    let touch = Touch::range(storage, offset, bytes.len(), Access::Write);
    with_host_locks(site.op, [(storage, true)].into_iter(), || {
        check_host(&touch, 0, site)?;
        wait_for_host(&touch)?;
        storage.record_write();
        // SAFETY: the bytes lie inside the storage. Its write lock is held, and device work that
        // uses the bytes is complete. `bytes` is a borrow, so it cannot overlap them.
        unsafe {
            match base {
                Some(base) => {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), base.add(offset), bytes.len());
                }
                None => storage.write_shared_host(offset, bytes)?,
            }
        }
        record_host_writes([touch].into_iter(), None);
        Ok(())
    })
}

/// Calls `f` to write `len` bytes of host memory, from a byte offset on, after device work that
/// uses them is complete. For example, `f` can read from a file directly into page-locked memory.
/// When `f` is called, the bytes hold their previous contents.
///
/// `f` must not use the host memory of storages. On the calling thread, such a use is an error. If
/// `f` waits for another thread that uses the memory, the wait never ends.
///
/// # Errors
/// - [`crate::ErrorKind::SharedHostMemory`] if other processes may write to the memory.
/// - The errors of [`write_bytes`].
#[track_caller]
pub fn fill_bytes<R>(
    dst: (&Storage, usize),
    len: usize,
    f: impl FnOnce(&mut [u8]) -> R,
) -> Result<R> {
    let op = "fill_bytes";
    let site = Site::here(op);
    let (storage, offset) = dst;
    check_range(op, storage, offset, len)?;
    let Some(base) = storage.host_ptr() else {
        if storage.is_shared_host() {
            return Err(ErrorKind::SharedHostMemory.of(op));
        }
        return Err(not_host(op, storage));
    };
    let touch = Touch::range(storage, offset, len, Access::Write);
    with_host_locks(site.op, [(storage, true)].into_iter(), || {
        check_host(&touch, 0, site)?;
        wait_for_host(&touch)?;
        storage.record_write();
        // SAFETY: the bytes lie inside the storage and are initialized. Its write lock is held, and
        // device work that uses the bytes is complete, so there is no other access.
        let result = f(unsafe { std::slice::from_raw_parts_mut(base.add(offset), len) });
        record_host_writes([touch].into_iter(), None);
        Ok(result)
    })
}
