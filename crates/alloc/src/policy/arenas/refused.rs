//! What is mapped nowhere any more, or never was, and that the backend refused to take back.

use super::Arenas;
use crate::core::Core;
use crate::sync::lock;
use crate::{Backend, Handle, PoolKind, VirtualMemory};

/// A page that is mapped nowhere, or with no bytes a range of addresses.
pub(super) struct RefusedHandle {
    handle: Handle,
    kind: PoolKind,
    bytes: usize,
}

impl Arenas {
    /// Gives back what is mapped nowhere. If the backend refuses it is kept, and its bytes are
    /// returned.
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

    /// Tries again to give back what is mapped nowhere, until the backend refuses, or all of it.
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
        // Those that were not tried come first next time.
        self.refused_handles.splice(0..0, again);
        self.count_refused(core);
    }

    /// How many mappings, pages and ranges the backend refused and has not taken back since, and
    /// their bytes.
    pub(super) fn refused(&self) -> (usize, usize) {
        let mapped: usize = self.refused.iter().map(|(arena, _)| self.page_size(*arena)).sum();
        let unmapped: usize = self.refused_handles.iter().map(|refused| refused.bytes).sum();
        (self.refused.len() + self.refused_handles.len(), mapped + unmapped)
    }
}
