//! Running copies and memsets.

use std::ptr::{copy, with_exposed_provenance, with_exposed_provenance_mut};

use super::{RunError, copy_time};
use crate::MemsetValue;
use crate::sim::state::SimState;
use crate::sim::state::memory::HostOverlap;
use crate::sim::state::vmm::MemoryUser;
use crate::sim::state::work::{CopyWork, MemsetWork, QueuedCopyEnd};

impl SimState {
    pub(super) fn run_copy(&mut self, work: &CopyWork) -> Result<f64, RunError> {
        let mut at = |end: &QueuedCopyEnd, write: bool| match end {
            QueuedCopyEnd::Host(address) => match self.memory.host_range(*address, work.bytes) {
                HostOverlap::Freed => Err(format!("the host memory at {address:#x} was freed")),
                _ => Ok(*address),
            },
            QueuedCopyEnd::Staged(bytes) => Ok(bytes.as_ptr().expose_provenance()),
            QueuedCopyEnd::Device(_, address) => {
                self.locate(*address, work.bytes, MemoryUser::Copy, write)
            }
        };
        let dst = at(&work.dst, true).map_err(RunError::illegal)?;
        let src = at(&work.src, false).map_err(RunError::illegal)?;
        let mut hosts = [&work.dst, &work.src].into_iter();
        let registered = hosts
            .any(|end| matches!(end, QueuedCopyEnd::Host(at) if self.memory.is_registered(*at)));
        if registered && dst.abs_diff(src) >= work.bytes {
            // Another process may share registered memory and write to it at any time.
            // SAFETY: device ends lie in live backing memory, host ends are valid until the copy is
            // done, and the ranges do not overlap.
            unsafe {
                crate::racy::copy(
                    with_exposed_provenance::<u8>(src),
                    with_exposed_provenance_mut::<u8>(dst),
                    work.bytes,
                );
            }
            return Ok(copy_time(work));
        }
        // SAFETY: device ends were just checked to lie in live backing memory, which only the
        // executor accesses. The caller of the copy keeps host ends valid until it is done. The
        // ends may overlap.
        unsafe {
            copy(
                with_exposed_provenance::<u8>(src),
                with_exposed_provenance_mut::<u8>(dst),
                work.bytes,
            );
        }
        Ok(copy_time(work))
    }

    pub(super) fn run_memset(&mut self, work: &MemsetWork) -> Result<f64, RunError> {
        let bytes = work.count * work.value.size();
        let at = self.locate(work.dst, bytes, MemoryUser::Copy, true).map_err(RunError::illegal)?;
        let memory =
            // SAFETY: the range was just checked to lie in live memory. Only the executor accesses
            // device memory, and the caller of the memset keeps other code from page-locked memory.
            unsafe { std::slice::from_raw_parts_mut(with_exposed_provenance_mut::<u8>(at), bytes) };
        match work.value {
            MemsetValue::U8(v) => memory.fill(v),
            MemsetValue::U16(v) => repeat(memory, v.to_ne_bytes()),
            MemsetValue::U32(v) => repeat(memory, v.to_ne_bytes()),
        }
        Ok(self.kernel_time(bytes))
    }
}

fn repeat<const N: usize>(memory: &mut [u8], value: [u8; N]) {
    for chunk in memory.chunks_exact_mut(N) {
        chunk.copy_from_slice(&value);
    }
}
