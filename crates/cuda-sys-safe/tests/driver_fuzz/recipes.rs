//! Sequences of steps that are unlikely to occur by chance, mixed with random steps.

use crate::generate::Generator;
use crate::step::*;

impl Generator {
    pub(crate) fn recipe(&mut self) {
        match self.pick.rng.below(7) {
            0..3 => self.capture(),
            3 => self.map(),
            4 => self.pool(),
            5 if self.model.devices > 1 => self.peers(),
            _ => self.hold_back(),
        }
    }

    /// Adds a random step, once in `one_in` calls on average.
    fn perhaps(&mut self, one_in: usize) {
        if self.pick.rng.rarely(one_in)
            && let Some(step) = self.pick.any(&self.model)
        {
            self.take(step);
        }
    }

    /// Picks a live stream. If `made` is set, only streams that the program created.
    fn some_stream(&mut self, made: bool) -> Option<Id> {
        let all = self.model.streams.iter().filter(|(_, s)| s.alive && (!made || !s.legacy));
        let all: Vec<Id> = all.map(|(&id, _)| id).collect();
        self.pick.rng.of(&all)
    }

    /// Adds a few operations on a stream.
    fn work(&mut self, stream: Id) {
        let device = self.model.streams[&stream].device;
        for _ in 0..1 + self.pick.rng.below(3) {
            let bufs: Vec<Id> = self.pick.memory_of(&self.model, device);
            let (Some(to), Some(from)) = (self.pick.rng.of(&bufs), self.pick.rng.of(&bufs)) else {
                return;
            };
            let bytes = self.model.bufs[&to].bytes.min(self.model.bufs[&from].bytes).min(1024);
            let (dst, src) = (Place::Buf { buf: to, at: 0 }, Place::Buf { buf: from, at: 0 });
            let (words, addend) = (bytes / 4, self.pick.rng.below(100) as u32);
            let step = match self.pick.rng.below(3) {
                0 => Step::Memset { dst, width: 4, value: addend, count: words, stream },
                1 => Step::Copy { dst, src, bytes, by: By::Stream(stream) },
                _ => Step::Launch { stream, dst, src, words: words.min(256), addend },
            };
            self.take(step);
        }
    }

    /// Adds a capture, with or without a second stream, and replays of its graph.
    fn capture(&mut self) {
        let Some(stream) = self.some_stream(true) else { return };
        let modes = [Mode::ThreadLocal, Mode::Relaxed, Mode::Relaxed, Mode::Global];
        let Some(mode) = self.pick.rng.of(&modes) else { return };
        let device = self.model.streams[&stream].device;
        let [fork, join] = [self.pick.fresh(), self.pick.fresh()];
        for event in [fork, join] {
            self.take(Step::EventCreate { event, device, timing: false, interprocess: false });
        }
        self.take(Step::BeginCapture { stream, mode });
        self.work(stream);
        self.perhaps(6);
        let other = self.some_stream(true).filter(|&other| other != stream);
        if let Some(other) = other {
            self.take(Step::EventRecord { event: fork, stream });
            self.take(Step::EventWait { stream: other, event: fork });
            self.work(other);
            if self.pick.rng.rarely(3) {
                self.work(stream);
            }
            if !self.pick.rng.rarely(5) {
                self.take(Step::EventRecord { event: join, stream: other });
                self.perhaps(8);
                self.take(Step::EventWait { stream, event: join });
            }
            self.work(stream);
        }
        self.perhaps(6);
        let (graph, exec) = (self.pick.fresh(), self.pick.fresh());
        if self.pick.rng.rarely(12)
            && let Some(other) = other
        {
            self.take(Step::EndCapture { stream: other, graph: self.pick.peek() });
        }
        self.take(Step::EndCapture { stream, graph });
        self.take(Step::Instantiate { graph, exec });
        for _ in 0..self.pick.rng.below(4) {
            if let Some(stream) = self.some_stream(false) {
                self.take(Step::GraphLaunch { exec, stream });
            }
            self.perhaps(3);
        }
        if self.pick.rng.rarely(2) {
            self.take(Step::GraphDestroy { graph });
        }
    }

    /// Adds virtual memory, possibly mapped at two addresses.
    fn map(&mut self) {
        let device = self.pick.rng.below(self.model.devices);
        let [range, memory] = [self.pick.fresh(), self.pick.fresh()];
        let pages = 1 + self.pick.rng.below(2);
        self.take(Step::Reserve { range, device, pages: 2 * pages, odd: 0 });
        self.take(Step::Create { memory, device, pages, odd: 0 });
        let twice = self.pick.rng.rarely(2);
        for page in [0, pages].into_iter().take(if twice { 2 } else { 1 }) {
            self.take(Step::Map { range, page, at: 0, pages, offset: 0, memory });
            self.perhaps(6);
            let access = Access::ReadWrite;
            self.take(Step::SetAccess { range, page, pages, device, access });
            if self.model.devices > 1 && self.pick.rng.rarely(2) {
                let device = self.pick.rng.below(self.model.devices);
                self.take(Step::SetAccess { range, page, pages, device, access });
            }
        }
        if self.pick.rng.rarely(3) {
            self.take(Step::Release { memory });
        }
        let at = if self.pick.rng.rarely(2) { 0 } else { 512 };
        let dst = Place::Page { range, page: 0, at };
        let stream = device as Id;
        self.take(Step::Memset { dst, width: 1, value: 0x77, count: 512, stream });
        self.perhaps(3);
        if self.pick.rng.rarely(3) {
            self.take(Step::Synchronize { device });
            self.take(Step::Unmap { range, device, page: 0, pages });
            if !twice {
                self.take(Step::AddressFree { range, device, pages: 2 * pages });
            }
        }
    }

    /// Adds memory of a pool that is used and freed in stream order.
    fn pool(&mut self) {
        let Some(stream) = self.some_stream(true) else { return };
        let device = self.model.streams[&stream].device;
        let [pool, buf] = [self.pick.fresh(), self.pick.fresh()];
        self.take(Step::PoolCreate { pool, device });
        self.take(Step::AllocAsync { buf, pool, bytes: 1024, stream });
        let dst = Place::Buf { buf, at: 0 };
        self.take(Step::Memset { dst, width: 4, value: 0x1234_5678, count: 256, stream });
        self.perhaps(2);
        self.work(stream);
        if self.pick.rng.rarely(2) {
            self.take(Step::FreeAsync { buf, stream });
        } else if self.pick.rng.rarely(2) {
            self.take(Step::Synchronize { device });
            self.take(Step::MemFree { buf, device, at: 0 });
        }
        if self.pick.rng.rarely(3) {
            self.take(Step::PoolDestroy { pool });
        }
    }

    /// Adds a kernel that reads another device's memory.
    fn peers(&mut self) {
        let device = self.pick.rng.below(self.model.devices);
        let peer = (device + 1) % self.model.devices;
        self.take(Step::PeerEnable { device, peer });
        let (here, there) =
            (self.pick.memory_of(&self.model, device), self.pick.memory_of(&self.model, peer));
        if let (Some(to), Some(from)) = (self.pick.rng.of(&here), self.pick.rng.of(&there)) {
            for device in 0..self.model.devices {
                self.take(Step::Synchronize { device });
            }
            let (dst, src) = (Place::Buf { buf: to, at: 0 }, Place::Buf { buf: from, at: 0 });
            let stream = device as Id;
            self.take(Step::Launch { stream, dst, src, words: 16, addend: 3 });
            self.perhaps(3);
        }
        if self.pick.rng.rarely(2) {
            for device in 0..self.model.devices {
                self.take(Step::Synchronize { device });
            }
            self.take(Step::PeerDisable { device, peer });
        }
    }

    /// Adds work behind a gate, and calls that depend on the work.
    fn hold_back(&mut self) {
        let Some(stream) = self.some_stream(false) else { return };
        let device = self.model.streams[&stream].device;
        let [start, end] = [self.pick.fresh(), self.pick.fresh()];
        for event in [start, end] {
            self.take(Step::EventCreate { event, device, timing: true, interprocess: false });
        }
        self.take(Step::EventRecord { event: start, stream });
        self.take(Step::Gate { stream });
        self.work(stream);
        self.take(Step::EventRecord { event: end, stream });
        if let Some(other) = self.some_stream(false) {
            if self.pick.rng.rarely(2) {
                self.take(Step::EventWait { stream: other, event: end });
            }
            self.work(other);
            self.take(Step::StreamQuery { stream: other });
        }
        for _ in 0..self.pick.rng.below(4) {
            self.perhaps(1);
        }
        self.take(Step::EventQuery { event: end });
        let last = [
            Step::OpenGate,
            Step::StreamSynchronize { stream },
            Step::EventSynchronize { event: end },
            Step::Synchronize { device },
        ];
        if let Some(step) = self.pick.rng.of(&last) {
            self.take(step);
        }
        self.take(Step::StreamSynchronize { stream });
        self.take(Step::EventElapsed { start, end });
    }
}
