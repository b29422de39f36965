//! Copies and memsets. Arguments are checked during the call, and sources are staged as in CUDA.

use std::ptr::with_exposed_provenance;

use crate::sim::CallKind;
use crate::sim::state::memory::{DEVICE_SPACE, HostOverlap};
use crate::sim::state::streams::StreamOpKind;
use crate::sim::state::work::{CopyWork, DeviceWork, Label, MemsetWork, Point, QueuedCopyEnd};
use crate::sim::state::{SimState, error};
use crate::*;

/// The kind of memory of one end of a copy. Host synchronisation depends on it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MemoryKind {
    Pageable,
    Pinned,
    Device,
}

/// The work for which the host waits before a copy returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostWait {
    Nothing,
    /// The copy itself.
    Done(Point),
    /// The work before the copy. The call has already staged the source of the copy.
    Before(Point),
}

impl SimState {
    /// Enqueues a copy. `synchronous` is true for `cuMemcpy`, on the default stream.
    ///
    /// # Safety
    /// The same as [`Driver::memcpy_async`]: a host source is readable.
    pub(super) unsafe fn memcpy(
        &mut self,
        call: CallKind,
        request: &Copy,
        stream: StreamHandle,
        synchronous: bool,
    ) -> Result<(Option<Point>, HostWait)> {
        let key = self.stream_key(call, stream)?;
        let device = stream.device();
        let captured = self.streams.get(&key).is_some_and(|s| s.capture.is_some());
        if let (CopyEnd::Device { device: to, .. }, CopyEnd::Device { device: from, .. }) =
            (request.dst, request.src)
            && captured
            && to != from
        {
            // The copy is refused even if the capture is already invalid.
            self.invalidate_stream_capture(stream);
            let why = "a copy between devices cannot be captured";
            return Err(error(call, CudaCode::STREAM_CAPTURE_UNSUPPORTED, device, why));
        }
        self.check_captures(key, call)?;
        if request.bytes == 0 {
            return Ok((None, HostWait::Nothing));
        }
        let (dst, to) = self.copy_end(call, device, request.dst, request.bytes)?;
        let (src, from) = self.copy_end(call, device, request.src, request.bytes)?;
        let to_device = to == MemoryKind::Device;
        let src = match (src, from) {
            (QueuedCopyEnd::Host(address), MemoryKind::Pageable) if to_device && !captured => {
                let source = with_exposed_provenance::<u8>(address);
                // SAFETY: the caller guarantees that the source is readable and has this many
                // bytes.
                QueuedCopyEnd::Staged(
                    unsafe { std::slice::from_raw_parts(source, request.bytes) }.into(),
                )
            }
            (src, _) => src,
        };
        let work = DeviceWork::Copy(CopyWork { dst, src, bytes: request.bytes });
        let Some(point) = self.enqueue(key, Label::of(call), StreamOpKind::Work(work), &[])? else {
            return Ok((None, HostWait::Nothing));
        };
        let wait = match (from, to) {
            // Copies from host to host, and all copies to pageable memory, are synchronous.
            (_, MemoryKind::Pageable)
            | (MemoryKind::Pageable | MemoryKind::Pinned, MemoryKind::Pinned) => {
                HostWait::Done(point)
            }
            (MemoryKind::Pageable, MemoryKind::Device) if synchronous => HostWait::Before(point),
            (MemoryKind::Pinned, MemoryKind::Device) | (MemoryKind::Device, MemoryKind::Pinned)
                if synchronous =>
            {
                HostWait::Done(point)
            }
            _ => HostWait::Nothing,
        };
        Ok((Some(point), wait))
    }

    fn copy_end(
        &self,
        call: CallKind,
        device: usize,
        end: CopyEnd,
        bytes: usize,
    ) -> Result<(QueuedCopyEnd, MemoryKind)> {
        let refuse = |why: String| Err(error(call, CudaCode::INVALID_VALUE, device, &why));
        let address = match end {
            CopyEnd::Host(ptr) => {
                let address = ptr.as_ptr().expose_provenance();
                if address as u64 >= DEVICE_SPACE {
                    return refuse(format!("{address:#x} is a device address, not host memory"));
                }
                address
            }
            CopyEnd::Device { device: owner, ptr } if ptr.addr() >= DEVICE_SPACE => {
                return match self.owner(ptr.addr(), bytes) {
                    Some(real) if real == owner => {
                        Ok((QueuedCopyEnd::Device(owner, ptr.addr()), MemoryKind::Device))
                    }
                    Some(real) => {
                        refuse(format!("{ptr:?} is memory of cuda:{real}, not cuda:{owner}"))
                    }
                    None => refuse(format!("{bytes} bytes at {ptr:?} are not all allocated")),
                };
            }
            CopyEnd::Device { ptr, .. } => ptr.addr() as usize,
        };
        match self.memory.host_range(address, bytes) {
            HostOverlap::Inside => Ok((QueuedCopyEnd::Host(address), MemoryKind::Pinned)),
            HostOverlap::None if matches!(end, CopyEnd::Host(_)) => {
                Ok((QueuedCopyEnd::Host(address), MemoryKind::Pageable))
            }
            HostOverlap::None => refuse(format!("{address:#x} is not device memory")),
            HostOverlap::Partly => {
                refuse(format!("{bytes} bytes at {address:#x} are only partly page-locked"))
            }
            HostOverlap::Freed => refuse(format!("the host memory at {address:#x} was freed")),
        }
    }

    pub(super) fn memset(
        &mut self,
        dst: DevicePtr,
        value: MemsetValue,
        count: usize,
        stream: StreamHandle,
    ) -> Result<Option<Point>> {
        let call = CallKind::MemsetAsync;
        let key = self.stream_key(call, stream)?;
        self.check_captures(key, call)?;
        let device = stream.device();
        let refuse = |why: String| Err(error(call, CudaCode::INVALID_VALUE, device, &why));
        if count == 0 {
            return Ok(None);
        }
        if !dst.addr().is_multiple_of(value.size() as u64) {
            return refuse(format!("{dst:?} is not a multiple of {}", value.size()));
        }
        let known = count.checked_mul(value.size()).is_some_and(|bytes| {
            self.owner(dst.addr(), bytes).is_some()
                || self.memory.host_range(dst.addr() as usize, bytes) == HostOverlap::Inside
        });
        if !known {
            return refuse(format!("{count} elements at {dst:?} are not all allocated"));
        }
        // The driver does not check access for a captured memset.
        let captured = self.streams.get(&key).is_some_and(|s| s.capture.is_some());
        if !captured && !self.may_set(device, dst.addr()) {
            return refuse(format!("cuda:{device} has no access to {dst:?}"));
        }
        let work = DeviceWork::Memset(MemsetWork { dst: dst.addr(), value, count });
        self.enqueue(key, Label::of(call), StreamOpKind::Work(work), &[])
    }
}
