//! What is mapped nowhere any more, or never was, and that the backend refused to take back.

use crate::pages::Arenas;
use crate::{Backend, Handle, PoolKind, VirtualMemory};

/// A page that is mapped nowhere, or with no bytes a range of addresses.
pub(super) struct Loose {
    handle: Handle,
    kind: PoolKind,
    bytes: usize,
}

impl<B: Backend> Arenas<B> {
    /// Gives back what is mapped nowhere. If the backend refuses it is kept, and its bytes are
    /// answered.
    pub(super) fn let_go(
        &mut self,
        memory: &dyn VirtualMemory<B::Error>,
        kind: PoolKind,
        handle: Handle,
        bytes: usize,
    ) -> usize {
        let Err(handle) = memory.give_back(handle) else { return 0 };
        self.loose.push(Loose { handle, kind, bytes });
        bytes
    }

    /// Tries to give back what is mapped nowhere, until the backend refuses, or all of it. Answers
    /// the bytes that went, by pool.
    pub(crate) fn retry_loose(
        &mut self,
        memory: &dyn VirtualMemory<B::Error>,
        all: bool,
    ) -> Vec<(PoolKind, usize)> {
        let mut gone = Vec::new();
        let mut again = std::mem::take(&mut self.loose).into_iter();
        for Loose { handle, kind, bytes } in again.by_ref() {
            match memory.give_back(handle) {
                Ok(()) => gone.push((kind, bytes)),
                Err(handle) => {
                    self.loose.push(Loose { handle, kind, bytes });
                    if !all {
                        break;
                    }
                }
            }
        }
        // Those that were not tried come first next time.
        self.loose.splice(0..0, again);
        gone
    }

    pub(crate) fn has_loose(&self) -> bool {
        !self.loose.is_empty()
    }

    /// How many mappings, pages and ranges the backend refused and has not taken back since, and
    /// their bytes.
    pub(crate) fn refused(&self) -> (usize, usize) {
        let mapped: usize = self.refused.iter().map(|(arena, _)| self.page_size(*arena)).sum();
        let loose: usize = self.loose.iter().map(|loose| loose.bytes).sum();
        (self.refused.len() + self.loose.len(), mapped + loose)
    }
}
