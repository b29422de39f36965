//! Random steps.

mod memory;

use crate::generate::{Options, Rng};
use crate::model::{MemoryKind, Model, Region};
use crate::order::{HOST, TRACKED};
use crate::step::*;

#[derive(Debug)]
pub(crate) struct StepPicker {
    pub(crate) rng: Rng,
    pub(crate) options: Options,
    next: Id,
}

const MODES: [Mode; 3] = [Mode::Global, Mode::ThreadLocal, Mode::Relaxed];

impl StepPicker {
    pub(crate) fn new(rng: Rng, options: Options) -> Self {
        Self { rng, options, next: FIRST_STREAM }
    }

    pub(crate) fn fresh(&mut self) -> Id {
        self.next += 1;
        self.next
    }

    /// Returns an id that no object has, for steps that must be refused.
    pub(crate) fn peek(&self) -> Id {
        Id::MAX / 2 + self.next
    }

    /// Returns the live buffers of a device that `cuMemAlloc` allocated.
    pub(crate) fn memory_of(&self, m: &Model, device: usize) -> Vec<Id> {
        let own = m.bufs.iter().filter(|(_, b)| b.alive && b.device == device);
        own.filter(|(_, b)| b.kind == MemoryKind::Alloc).map(|(&id, _)| id).collect()
    }

    pub(crate) fn size(&mut self) -> usize {
        [64, 256, 512, 1024, 4096][self.rng.below(5)]
    }

    fn device(&mut self, m: &Model) -> usize {
        self.rng.below(m.devices)
    }

    pub(crate) fn stream_create(&mut self, m: &Model) -> Step {
        let priority = [0, 0, 0, -1, -5, -100, 7][self.rng.below(7)];
        let (stream, device) = (self.fresh(), self.device(m));
        Step::StreamCreate { stream, device, non_blocking: !self.rng.rarely(3), priority }
    }

    fn stream(&mut self, m: &Model) -> Option<Id> {
        let all: Vec<Id> = m.streams.iter().filter(|(_, s)| s.alive).map(|(&id, _)| id).collect();
        let made: Vec<Id> = all.iter().copied().filter(|&id| id >= FIRST_STREAM).collect();
        if self.rng.rarely(4) || made.is_empty() { self.rng.of(&all) } else { self.rng.of(&made) }
    }

    /// Picks a stream, usually of this device.
    fn stream_of(&mut self, m: &Model, device: usize) -> Option<Id> {
        if self.options.may("far") && self.rng.rarely(8) {
            return self.stream(m);
        }
        let own = m.streams.iter().filter(|(_, s)| s.alive && s.device == device);
        let own: Vec<Id> = own.map(|(&id, _)| id).collect();
        self.rng.of(&own)
    }

    fn event(&mut self, m: &Model) -> Option<Id> {
        let all: Vec<Id> = m.events.iter().filter(|(_, e)| e.alive).map(|(&id, _)| id).collect();
        self.rng.of(&all)
    }

    fn buf(&mut self, m: &Model, kinds: &[MemoryKind]) -> Option<Id> {
        let all = m.bufs.iter().filter(|(_, b)| b.alive && kinds.contains(&b.kind));
        let all: Vec<Id> = all.map(|(&id, _)| id).collect();
        self.rng.of(&all)
    }

    /// Picks memory for a copy or kernel. Returns the place and its size.
    fn place(&mut self, m: &Model, kinds: &[MemoryKind]) -> Option<(Place, usize)> {
        let pages: Vec<(Id, usize)> = m
            .ranges
            .iter()
            .filter(|(_, r)| r.alive)
            .flat_map(|(&id, r)| r.mappings.keys().map(move |&page| (id, page)))
            .collect();
        let room = if !pages.is_empty() && self.rng.rarely(3) {
            let (range, page) = self.rng.of(&pages)?;
            (Place::Page { range, page, at: 16 * self.rng.below(16) }, 1024)
        } else {
            let buf = self.buf(m, kinds)?;
            let bytes = m.bufs[&buf].bytes.min(TRACKED);
            let at = 16 * self.rng.below(bytes / 32);
            (Place::Buf { buf, at }, bytes - at)
        };
        Some(room)
    }

    fn found(&self, m: &Model, place: Place) -> Option<Region> {
        m.find(place, 16)
    }

    /// Picks any step. Common steps are more likely.
    pub(crate) fn any(&mut self, m: &Model) -> Option<Step> {
        match self.rng.below(100) {
            0..16 => self.copy(m),
            16..27 => self.memset_or_launch(m),
            27..39 => self.events(m),
            39..50 => self.streams(m),
            50..60 => self.memory(m),
            60..73 => self.captures(m),
            73..81 => self.mapping(m),
            81..86 => self.pools(m),
            86..92 => self.host(m),
            _ => self.others(m),
        }
    }

    fn copy(&mut self, m: &Model) -> Option<Step> {
        use MemoryKind::*;
        let all = [Alloc, Alloc, Pool, Pinned, Pageable, Registered];
        let (dst, room) = self.place(m, &all)?;
        let (src, more) = self.place(m, &all)?;
        let (to, from) = (self.found(m, dst)?, self.found(m, src)?);
        if from.device.is_none() && to.device.is_none() && !self.options.may("host-to-host") {
            return None;
        }
        let bytes = match self.rng.below(12) {
            0 => 0,
            1..5 => 16.min(room.min(more)),
            _ => room.min(more) / 16 * 16,
        };
        let device = to.device.or(from.device).unwrap_or_else(|| self.device(m));
        let by = if self.rng.rarely(4) {
            By::Device(device)
        } else {
            By::Stream(self.stream_of(m, device)?)
        };
        let pageable = to.kind == Pageable || from.kind == Pageable;
        if let By::Stream(stream) = by
            && pageable
            && m.streams[&stream].capture.is_some()
            && !self.options.may("capture-pageable")
        {
            return None;
        }
        Some(Step::Copy { dst, src, bytes, by })
    }

    fn memset_or_launch(&mut self, m: &Model) -> Option<Step> {
        use MemoryKind::*;
        let (dst, room) = self.place(m, &[Alloc, Alloc, Alloc, Pool, Pinned])?;
        let region = self.found(m, dst)?;
        let device = region.device.unwrap_or_else(|| self.device(m));
        if region.device.is_none() && !self.options.may("host-memset") {
            return None;
        }
        let stream = self.stream_of(m, device)?;
        if self.rng.rarely(2) {
            let width = [1, 2, 4][self.rng.below(3)];
            let value = self.rng.below(1 << 32) as u32;
            let count = if self.rng.rarely(10) { 0 } else { room / 16 * 16 / width };
            let odd = width > 1 && self.rng.rarely(10) && self.options.may("misaligned-memset");
            let (dst, count) = match dst {
                Place::Buf { buf, at } if odd => (Place::Buf { buf, at: at + 1 }, count.min(2)),
                _ => (dst, count),
            };
            return Some(Step::Memset { dst, width, value, count, stream });
        }
        if self.rng.rarely(12) {
            use BadShape::*;
            let shapes = [NoBlocks, NoThreads, TooManyThreads, TooDeep, TooTall, TooMuchShared];
            return Some(Step::LaunchRefused { stream, shape: self.rng.of(&shapes)? });
        }
        let (src, more) = if self.rng.rarely(3) {
            (dst, room)
        } else {
            self.place(m, &[Alloc, Alloc, Pool, Pinned])?
        };
        let words = (room.min(more) / 16 * 4).min(256);
        let addend = self.rng.below(1 << 20) as u32;
        Some(Step::Launch { stream, dst, src, words, addend })
    }

    fn events(&mut self, m: &Model) -> Option<Step> {
        let event = self.event(m);
        Some(match (self.rng.below(14), event) {
            (0..3, _) | (_, None) => {
                let (event, device) = (self.fresh(), self.device(m));
                let interprocess = self.rng.rarely(12);
                Step::EventCreate { event, device, timing: self.rng.rarely(2), interprocess }
            }
            (3..7, Some(event)) => {
                let stream = self.stream_of(m, m.events[&event].device)?;
                Step::EventRecord { event, stream }
            }
            (7..10, Some(event)) => Step::EventWait { stream: self.stream(m)?, event },
            (10, Some(event)) => Step::EventQuery { event },
            (11, Some(event)) => Step::EventSynchronize { event },
            (12, Some(start)) => Step::EventElapsed { start, end: self.event(m)? },
            (_, Some(event)) => Step::EventDestroy { event },
        })
    }

    fn streams(&mut self, m: &Model) -> Option<Step> {
        let stream = self.stream(m)?;
        Some(match self.rng.below(16) {
            0 | 1 if m.streams.len() + m.devices < HOST - 3 => self.stream_create(m),
            2 => Step::StreamDestroy { stream },
            3..6 => Step::StreamSynchronize { stream },
            6 => Step::StreamQuery { stream },
            7 => Step::StreamPriority { stream },
            8 => Step::Synchronize { device: self.device(m) },
            9..12 => Step::HostFunction { stream, panics: self.rng.rarely(6) },
            12..15 => Step::Gate { stream },
            _ => Step::OpenGate,
        })
    }

    fn captures(&mut self, m: &Model) -> Option<Step> {
        let graphs: Vec<Id> = m.graphs.iter().filter(|(_, g)| g.alive).map(|(&id, _)| id).collect();
        let execs: Vec<Id> = m.execs.iter().filter(|(_, g)| g.alive).map(|(&id, _)| id).collect();
        let captured: Vec<Id> = m
            .streams
            .iter()
            .filter(|(_, s)| s.alive && s.capture.is_some())
            .map(|(&id, _)| id)
            .collect();
        let captured = self.rng.of(&captured);
        let any = self.stream(m)?;
        Some(match self.rng.below(24) {
            0..4 => Step::BeginCapture { stream: any, mode: self.rng.of(&MODES)? },
            4..8 => Step::EndCapture { stream: captured?, graph: self.fresh() },
            8 if self.options.may("wrong-end") => {
                Step::EndCapture { stream: any, graph: self.fresh() }
            }
            9 => Step::CaptureStatus { stream: any },
            10 => Step::ThreadMode { device: self.device(m), mode: self.rng.of(&MODES)? },
            11..14 => {
                let (dst, room) = self.place(m, &[MemoryKind::Alloc])?;
                let count = room / 16 * 4;
                let value = self.rng.below(1 << 32) as u32;
                Step::Memset { dst, width: 4, value, count, stream: captured? }
            }
            14 | 15 => {
                let (dst, room) = self.place(m, &[MemoryKind::Alloc])?;
                let words = (room / 16 * 4).min(256);
                Step::Launch { stream: captured?, dst, src: dst, words, addend: 1 }
            }
            16 => Step::EventRecord { event: self.event(m)?, stream: captured? },
            17..20 => {
                let graph = self.rng.of(&graphs)?;
                Step::Instantiate { graph, exec: self.fresh() }
            }
            20..22 => Step::GraphLaunch { exec: self.rng.of(&execs)?, stream: any },
            22 => Step::GraphDestroy { graph: self.rng.of(&graphs)? },
            _ => Step::ExecDestroy { exec: self.rng.of(&execs)? },
        })
    }

    fn others(&mut self, m: &Model) -> Option<Step> {
        use DeviceQuery::*;
        let (device, peer) = (self.device(m), self.device(m));
        Some(match self.rng.below(20) {
            0..3 => Step::PeerCan { device, peer },
            3..7 => Step::PeerEnable { device, peer },
            7 | 8 => Step::PeerDisable { device, peer },
            9 if self.rng.rarely(8) => {
                let images = [Image::Good, Image::CutShort, Image::TooNew, Image::NoSuchKernel];
                Step::Module { device, image: self.rng.of(&images)? }
            }
            10 => {
                let buf = self.buf(m, &[MemoryKind::Alloc, MemoryKind::Alloc, MemoryKind::Pool])?;
                let at = if self.rng.rarely(4) { 32 } else { 0 };
                Step::IpcMemory { buf, device: m.bufs[&buf].device, at }
            }
            11 => Step::IpcEvent { event: self.event(m)? },
            12..16 => Step::Gate { stream: self.stream(m)? },
            _ => {
                let all = [Priorities, Granularity, MemInfo, Lost, NoSuchDevice];
                Step::Ask { device, what: self.rng.of(&all)? }
            }
        })
    }
}
