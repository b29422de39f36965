//! Unmapped pages and ranges that the backend refused to take back.

use super::Arenas;
use crate::core::Core;
use crate::sync::lock;
use crate::{Backend, Handle, PoolKind, VirtualMemory};

/// A handle that the backend refused to release: an unmapped page or an address range. The `bytes`
/// of a range are 0, because a range holds no memory.
pub(super) struct RefusedHandle {
    handle: Handle,
    kind: PoolKind,
    bytes: usize,
}

impl Arenas {
    /// Releases an unmapped page or range. If the backend refuses, keeps the handle and returns its
    /// bytes.
    pub(super) fn release_handle<E>(
        &mut self,
        memory: &dyn VirtualMemory<E>,
        kind: PoolKind,
        handle: Handle,
        bytes: usize,
    ) -> usize {
        let Err(handle) = memory.release(handle) else { return 0 };
        self.refused_handles.push(RefusedHandle { handle, kind, bytes });
        bytes
    }

    /// Retries refused releases until the backend refuses again. With `all`, tries every release.
    pub(in crate::policy) fn retry_refused<B: Backend>(&mut self, core: &Core<B>, all: bool) {
        let Some(memory) = core.backend.virtual_memory() else { return };
        if self.refused_handles.is_empty() {
            return;
        }
        let mut again = std::mem::take(&mut self.refused_handles).into_iter();
        for RefusedHandle { handle, kind, bytes } in again.by_ref() {
            match memory.release(handle) {
                Ok(()) => {
                    let mut global = lock(&core.global);
                    global.reserved_bytes.decrease(kind, bytes as i64);
                    global.num_device_free += i64::from(bytes > 0);
                }
                Err(handle) => {
                    self.refused_handles.push(RefusedHandle { handle, kind, bytes });
                    if !all {
                        break;
                    }
                }
            }
        }
        // Untried releases come first at the next attempt.
        self.refused_handles.splice(0..0, again);
        self.count_refused(core);
    }

    /// Returns the number and bytes of the mappings, pages and ranges that the backend has refused
    /// and not released since.
    pub(super) fn refused(&self) -> (usize, usize) {
        let mapped: usize = self.refused.iter().map(|(arena, _)| self.page_size(*arena)).sum();
        let unmapped: usize = self.refused_handles.iter().map(|refused| refused.bytes).sum();
        (self.refused.len() + self.refused_handles.len(), mapped + unmapped)
    }
}
