//! Random steps that allocate, map and release memory.

use super::StepPicker;
use crate::model::{MemoryKind, Model};
use crate::step::*;

impl StepPicker {
    pub(super) fn memory(&mut self, m: &Model) -> Option<Step> {
        let device = self.device(m);
        Some(match self.rng.below(16) {
            0..3 => {
                let odd = [0, 1 << 46, 100, 8 << 20][self.rng.below(4)];
                let bytes = if self.rng.rarely(6) { odd } else { self.size() };
                Step::MemAlloc { buf: self.fresh(), device, bytes: bytes / 16 * 16 }
            }
            3..6 => {
                let buf = self.buf(m, &[MemoryKind::Alloc, MemoryKind::Alloc, MemoryKind::Pool])?;
                let own = m.bufs[&buf].device;
                let wrong = self.options.may("wrong-device") && self.rng.rarely(10);
                let device = if wrong { device } else { own };
                let at = if self.rng.rarely(6) { 32 } else { 0 };
                Step::MemFree { buf, device, at }
            }
            6 => {
                let bytes = if self.rng.rarely(8) { 0 } else { self.size() };
                Step::HostAlloc { buf: self.fresh(), device, bytes }
            }
            7 => {
                let odd = self.options.may("wrong-release") && self.rng.rarely(4);
                let kinds = [MemoryKind::Pinned, MemoryKind::Pageable, MemoryKind::Registered];
                let buf = self.buf(m, if odd { &kinds } else { &kinds[..1] })?;
                Step::HostFree { buf, device }
            }
            8 => Step::Pageable { buf: self.fresh(), bytes: self.size() },
            9 | 10 => {
                let odd = self.options.may("wrong-release") && self.rng.rarely(4);
                let kinds = [MemoryKind::Pageable, MemoryKind::Registered, MemoryKind::Pinned];
                let buf = self.buf(m, if odd { &kinds } else { &kinds[..1] })?;
                let all = m.bufs[&buf].bytes;
                let bytes = if self.rng.rarely(10) { 0 } else { all };
                Step::HostRegister { buf, device, bytes }
            }
            11 => {
                let odd = self.options.may("wrong-release") && self.rng.rarely(4);
                let kinds = [MemoryKind::Registered, MemoryKind::Pageable, MemoryKind::Pinned];
                let buf = self.buf(m, if odd { &kinds } else { &kinds[..1] })?;
                Step::HostUnregister { buf, device }
            }
            12..15 => {
                let buf = self
                    .buf(m, &[MemoryKind::Pinned, MemoryKind::Pageable, MemoryKind::Registered])?;
                Step::HostWrite { buf, value: self.rng.below(256) as u8 }
            }
            _ => {
                let all = [
                    MemoryKind::Alloc,
                    MemoryKind::Pool,
                    MemoryKind::Pinned,
                    MemoryKind::Pageable,
                    MemoryKind::Registered,
                ];
                Step::PointerKind { place: self.place(m, &all)?.0 }
            }
        })
    }

    pub(super) fn host(&mut self, m: &Model) -> Option<Step> {
        let buf =
            self.buf(m, &[MemoryKind::Pinned, MemoryKind::Pageable, MemoryKind::Registered])?;
        Some(if self.rng.rarely(2) {
            Step::HostRead { buf }
        } else {
            Step::HostWrite { buf, value: self.rng.below(256) as u8 }
        })
    }

    pub(super) fn mapping(&mut self, m: &Model) -> Option<Step> {
        let device = self.device(m);
        let ranges: Vec<Id> = m.ranges.iter().filter(|(_, r)| r.alive).map(|(&id, _)| id).collect();
        let memories: Vec<Id> =
            m.physical.iter().filter(|(_, p)| p.alive).map(|(&id, _)| id).collect();
        let odd = |pick: &mut Self| {
            let odd = pick.options.may("mapping-odd") && pick.rng.rarely(10);
            if odd { [1, 4096, 1 << 20][pick.rng.below(3)] } else { 0 }
        };
        let choice = self.rng.below(16);
        if ranges.is_empty() || choice < 2 {
            let (range, pages) = (self.fresh(), 1 + self.rng.below(3));
            return Some(Step::Reserve { range, device, pages, odd: odd(self) });
        }
        if memories.is_empty() || choice == 2 {
            let (memory, pages) = (self.fresh(), 1 + self.rng.below(2));
            return Some(Step::Create { memory, device, pages, odd: odd(self) });
        }
        let range = self.rng.of(&ranges)?;
        let r = &m.ranges[&range];
        let page = self.rng.below(r.pages);
        let mapped: Vec<usize> = r.mappings.keys().copied().collect();
        Some(match choice {
            3..7 => {
                let memory = self.rng.of(&memories)?;
                let strange = self.options.may("mapping-odd") && self.rng.rarely(8);
                let pages = if strange { 2 } else { m.physical[&memory].pages };
                let at = if strange && self.rng.rarely(3) { 4096 } else { 0 };
                let offset = if strange && self.rng.rarely(3) { crate::model::PAGE } else { 0 };
                Step::Map { range, page, at, pages, offset, memory }
            }
            7..12 => {
                let exact = self.rng.of(&mapped);
                let (page, pages) = match exact {
                    Some(at) if !self.rng.rarely(8) => (at, r.mappings[&at].pages),
                    _ => (page, 1 + self.rng.below(2)),
                };
                let access = if self.rng.rarely(8) && self.options.may("mapping-odd") {
                    [Access::None, Access::Read][self.rng.below(2)]
                } else {
                    Access::ReadWrite
                };
                let owner = r.mappings.get(&page).map(|x| m.physical[&x.memory].device);
                let device = if self.rng.rarely(3) { device } else { owner.unwrap_or(device) };
                Step::SetAccess { range, page, pages, device, access }
            }
            12 | 13 => {
                let exact = self.rng.of(&mapped);
                let (page, pages) = match exact {
                    Some(at) if !self.rng.rarely(5) => (at, r.mappings[&at].pages),
                    _ => (page, 1 + self.rng.below(2)),
                };
                Step::Unmap { range, device: r.device, page, pages }
            }
            14 => Step::Release { memory: self.rng.of(&memories)? },
            _ => {
                let pages = if self.rng.rarely(4) { 1 } else { r.pages };
                if !self.options.may("mapping-odd") && (pages != r.pages || !mapped.is_empty()) {
                    return None;
                }
                Step::AddressFree { range, device: r.device, pages }
            }
        })
    }

    pub(super) fn pools(&mut self, m: &Model) -> Option<Step> {
        let pools: Vec<Id> = m.pools.iter().filter(|(_, p)| p.alive).map(|(&id, _)| id).collect();
        let Some(pool) = self.rng.of(&pools) else {
            return Some(Step::PoolCreate { pool: self.fresh(), device: self.device(m) });
        };
        Some(match self.rng.below(12) {
            0..5 => {
                let owner = m.pools[&pool].device;
                let wrong = self.options.may("wrong-device") && self.rng.rarely(10);
                let own = m.streams.iter().filter(|(_, s)| s.alive && (wrong || s.device == owner));
                let own: Vec<Id> = own.map(|(&id, _)| id).collect();
                let stream = self.rng.of(&own)?;
                let odd = [0, 1 << 46][self.rng.below(2)];
                let bytes = if self.rng.rarely(10) { odd } else { self.size() };
                Step::AllocAsync { buf: self.fresh(), pool, bytes, stream }
            }
            5..9 => {
                let odd = self.options.may("pool-odd") && self.rng.rarely(8);
                let kinds = [MemoryKind::Pool, MemoryKind::Alloc];
                let buf = self.buf(m, if odd { &kinds } else { &kinds[..1] })?;
                let stream = self.stream_of(m, m.bufs[&buf].device)?;
                Step::FreeAsync { buf, stream }
            }
            9 => Step::PoolThreshold { pool, bytes: [0, 1 << 20, u64::MAX][self.rng.below(3)] },
            10 => Step::PoolTrim { pool, bytes: 0 },
            _ => Step::PoolDestroy { pool },
        })
    }
}
