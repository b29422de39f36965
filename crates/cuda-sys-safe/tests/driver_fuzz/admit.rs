//! Decides whether a step may run now. The driver may refuse an admitted step; many steps exist to
//! be refused. But the call must be sound, and its result must be determined.

use crate::model::{MemoryKind, Model, Region, StreamState, WorkAccess};
use crate::step::*;

/// The effect of an accepted step on memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepEffect {
    pub(crate) work: Option<WorkAccess>,
    /// For a read by the host: whether each byte is determined.
    pub(crate) mask: Vec<bool>,
}

impl Model {
    /// Returns the effect of the step, or `None` if the step must be left out.
    pub(crate) fn admit(&self, step: &Step) -> Option<StepEffect> {
        use Step::*;
        let plain = |fine: bool| fine.then(StepEffect::default);
        match *step {
            StreamCreate { .. } | EventCreate { .. } | Pageable { .. } | ThreadMode { .. } => {
                plain(true)
            }
            MemAlloc { bytes, .. } if bytes > 1 << 40 => plain(self.gate.is_none()),
            MemAlloc { .. } | HostAlloc { .. } | Reserve { .. } | Create { .. } => plain(true),
            PoolCreate { .. } | PeerCan { .. } | Ask { .. } => plain(true),
            OpenGate => plain(self.gate.is_some()),
            StreamDestroy { stream } => {
                // The driver may crash if a default stream is destroyed.
                plain(self.gate.is_none() && self.stream(stream).is_some_and(|s| !s.legacy))
            }
            StreamPriority { stream } | CaptureStatus { stream } => {
                plain(self.stream(stream).is_some())
            }
            StreamQuery { stream } => {
                let s = self.stream(stream)?;
                plain(s.capture.is_some() || self.decided(&self.own_and_implicit(s), &s.clock))
            }
            StreamSynchronize { stream } => {
                let s = self.stream(stream)?;
                let clock = if s.legacy { self.own_and_implicit(s) } else { s.clock };
                let sure =
                    self.gate.is_none() || self.behind_gate(&s.clock) || self.host.covers(&clock);
                plain(s.capture.is_some() || sure)
            }
            EventDestroy { event } => plain(self.event(event).is_some()),
            EventRecord { event, stream } => {
                plain(self.event(event).is_some() && self.stream(stream).is_some())
            }
            EventWait { stream, event } => {
                let (e, s) = (self.event(event)?, self.stream(stream)?);
                let known = e.recorded.is_some() || s.capture.is_some();
                plain(!e.interprocess || (e.device == s.device && known))
            }
            EventQuery { event } => {
                let clock = self.event(event)?.recorded.unwrap_or_default();
                plain(self.captured_now(event) || self.decided(&clock, &clock))
            }
            EventSynchronize { event } => {
                let clock = self.event(event)?.recorded.unwrap_or_default();
                plain(self.captured_now(event) || self.may_wait_for(&clock))
            }
            EventElapsed { start, end } => {
                let decided = |id| {
                    let clock = self.event(id)?.recorded.unwrap_or_default();
                    Some(self.decided(&clock, &clock))
                };
                plain(decided(start)? && decided(end)?)
            }
            Synchronize { device } => plain(self.may_wait_for(&self.device_clock(device))),
            MemFree { buf, device: _, at } => {
                let b = self.buf(buf)?;
                let safe = match b.kind {
                    MemoryKind::Alloc => at > 0 || self.used_only_on(b.content, b.device),
                    MemoryKind::Pool => {
                        at == 0 && self.idle(b.content) && self.host.covers(&b.since)
                    }
                    _ => false,
                };
                plain(safe)
            }
            // The device of the step may differ from the device of the registration.
            HostFree { .. } | HostUnregister { .. } if self.gate.is_some() && self.devices > 1 => {
                None
            }
            HostFree { buf, .. } | HostUnregister { buf, .. } => {
                let b = self.buf(buf)?;
                plain(
                    !matches!(b.kind, MemoryKind::Alloc | MemoryKind::Pool) && self.idle(b.content),
                )
            }
            HostRegister { buf, .. } => {
                let b = self.buf(buf)?;
                plain(
                    !matches!(b.kind, MemoryKind::Alloc | MemoryKind::Pool) && self.idle(b.content),
                )
            }
            HostWrite { buf, .. } => {
                let b = self.buf(buf)?;
                let host = !matches!(b.kind, MemoryKind::Alloc | MemoryKind::Pool);
                let len = b.bytes;
                plain(host && !self.contents[b.content].read_by_others(0, len, &self.host))
            }
            HostRead { buf } => {
                let b = self.buf(buf)?;
                let host = !matches!(b.kind, MemoryKind::Alloc | MemoryKind::Pool);
                host.then(|| StepEffect { mask: self.known(b), ..StepEffect::default() })
            }
            Copy { dst, src, bytes, by } => self.admit_copy(dst, src, bytes, by),
            Memset { dst, width, count, stream, .. } => {
                let s = self.stream(stream)?;
                let writes = self.find(dst, width * count)?;
                if matches!(writes.kind, MemoryKind::Pageable | MemoryKind::Registered) {
                    return None;
                }
                if count == 0 {
                    return plain(true);
                }
                let work = WorkAccess { device: s.device, kernel: false, reads: None, writes };
                // The driver checks the access of a captured memset later, at an unspecified time.
                if s.capture.is_some() && !self.reachable(&writes, s.device, true) {
                    return None;
                }
                self.admit_work(s, work)
            }
            Launch { stream, dst, src, words, .. } => {
                let s = self.stream(stream)?;
                let (writes, reads) = (self.find(dst, 4 * words)?, self.find(src, 4 * words)?);
                let aligned = writes.at % 4 == 0 && reads.at % 4 == 0;
                let same = writes.content == reads.content && writes.at == reads.at;
                let work =
                    WorkAccess { device: s.device, kernel: true, reads: Some(reads), writes };
                if !aligned || (overlap(&work) && !same) {
                    return None;
                }
                self.admit_work(s, work)
            }
            LaunchRefused { stream, .. } => plain(self.stream(stream).is_some()),
            HostFunction { stream, .. } => plain(self.stream(stream).is_some()),
            Gate { stream } => {
                let fine = |s: &StreamState| s.capture.is_none();
                plain(self.gate.is_none() && !self.capturing() && fine(self.stream(stream)?))
            }
            BeginCapture { stream, .. } | EndCapture { stream, .. } => {
                plain(self.stream(stream).is_some())
            }
            Instantiate { graph, .. } => {
                let g = self.graphs.get(&graph).filter(|g| g.alive)?;
                plain(g.work.iter().all(|work| self.capturable(work)))
            }
            GraphDestroy { graph } => plain(self.graphs.get(&graph)?.alive),
            GraphLaunch { exec, stream } => {
                let (x, s) = (self.execs.get(&exec).filter(|x| x.alive)?, self.stream(stream)?);
                let host = |r: &Region| r.device.is_none();
                let by_host = |w: &WorkAccess| {
                    let pageable = [Some(&w.writes), w.reads.as_ref()];
                    let pageable =
                        pageable.into_iter().flatten().any(|r| r.kind == MemoryKind::Pageable);
                    pageable || (!w.kernel && host(&w.writes) && w.reads.as_ref().is_some_and(host))
                };
                if self.gate.is_some() && x.work.iter().any(by_host) {
                    return None;
                }
                let mut clock = self.before(s);
                clock.join(&x.latest);
                let captured = s.capture.is_some();
                let fine = |work: &WorkAccess| match captured {
                    true => self.capturable(work),
                    false => self.safe(work, &clock),
                };
                plain(x.work.iter().all(fine))
            }
            ExecDestroy { exec } => {
                let x = self.execs.get(&exec).filter(|x| x.alive)?;
                plain(self.gate.is_none() && self.host.covers(&x.latest))
            }
            AddressFree { range, .. } => plain(self.ranges.get(&range)?.alive),
            Release { memory } => plain(self.physical.get(&memory)?.alive),
            Map { range, page, pages, memory, .. } => {
                let r = self.ranges.get(&range).filter(|r| r.alive)?;
                plain(page + pages <= r.pages && self.physical.get(&memory)?.alive)
            }
            SetAccess { range, page, pages, .. } => {
                let r = self.ranges.get(&range).filter(|r| r.alive)?;
                plain(page + pages <= r.pages && self.mappings_idle(range))
            }
            Unmap { range, page, pages, .. } => {
                let r = self.ranges.get(&range).filter(|r| r.alive)?;
                plain(page + pages <= r.pages && self.mappings_idle(range))
            }
            PoolDestroy { pool } => {
                let p = self.pools.get(&pool).filter(|p| p.alive)?;
                let freed = |b: &crate::model::Buf| !b.alive && self.host.covers(&b.since);
                plain(p.bufs.iter().all(|buf| freed(&self.bufs[buf])))
            }
            PoolThreshold { pool, .. } | PoolTrim { pool, .. } => {
                plain(self.pools.get(&pool)?.alive)
            }
            AllocAsync { pool, stream, .. } => {
                let s = self.stream(stream)?;
                plain(s.capture.is_none() && self.pools.get(&pool)?.alive)
            }
            FreeAsync { buf, stream } => {
                let (b, s) = (self.buf(buf)?, self.stream(stream)?);
                // The clock excludes the implicit order of the default stream, because this order
                // does not suffice for a free.
                let mut clock = s.clock;
                clock.join(&self.host);
                let ordered =
                    clock.covers(&b.since) && self.contents[b.content].untouched_since(&clock);
                let device = matches!(b.kind, MemoryKind::Alloc | MemoryKind::Pool);
                plain(device && ordered && s.capture.is_none())
            }
            PeerEnable { .. } => plain(self.gate.is_none()),
            PeerDisable { .. } => {
                let all = (0..self.devices).all(|d| self.host.covers(&self.device_clock(d)));
                plain(self.gate.is_none() && all)
            }
            PointerKind { place } => plain(self.find(place, 1).is_some()),
            Module { .. } => plain(self.gate.is_none() && !self.capturing()),
            IpcMemory { buf, .. } => {
                let b = self.buf(buf)?;
                plain(matches!(b.kind, MemoryKind::Alloc | MemoryKind::Pool) && !self.capturing())
            }
            IpcEvent { event } => plain(self.event(event).is_some() && !self.capturing()),
            Fail { stream, .. } => plain(
                !self.lost
                    && self.gate.is_none()
                    && !self.capturing()
                    && self.stream(stream).is_some(),
            ),
        }
    }

    fn admit_copy(&self, dst: Place, src: Place, bytes: usize, by: By) -> Option<StepEffect> {
        let stream = match by {
            By::Stream(stream) => stream,
            By::Device(device) => device as Id,
        };
        let s = self.stream(stream)?;
        let (writes, reads) = (self.find(dst, bytes)?, self.find(src, bytes)?);
        let work = WorkAccess { device: s.device, kernel: false, reads: Some(reads), writes };
        if bytes == 0 {
            return Some(StepEffect::default());
        }
        if overlap(&work) {
            return None;
        }
        let between_devices = reads.device.zip(writes.device).is_some_and(|(a, b)| a != b);
        let elsewhere = |r: &Region| r.device.is_some_and(|device| device != s.device);
        let elsewhere = elsewhere(&reads) || elsewhere(&writes);
        if (s.legacy && between_devices) || (self.gate.is_some() && elsewhere) {
            return None;
        }
        let between_hosts = reads.device.is_none() && writes.device.is_none();
        let waits =
            matches!(by, By::Device(_)) || writes.kind == MemoryKind::Pageable || between_hosts;
        let held = self.gate.is_some() && !self.behind_gate(&self.before(s));
        if s.capture.is_none() && waits && held {
            return None;
        }
        self.admit_work(s, work)
    }

    fn admit_work(&self, s: &StreamState, work: WorkAccess) -> Option<StepEffect> {
        let fine = match s.capture {
            Some(_) => self.capturable(&work),
            None => self.safe(&work, &self.before(s)),
        };
        fine.then(|| StepEffect { work: Some(work), ..StepEffect::default() })
    }

    /// Returns `true` if captured work can reach its memory, and a graph may keep the work.
    fn capturable(&self, work: &WorkAccess) -> bool {
        let mut regions = work.reads.iter().chain([&work.writes]);
        regions.all(|r| r.kind != MemoryKind::Pool && self.reachable(r, work.device, work.kernel))
    }

    /// Returns the work of the stream. For a default stream, includes the work of blocking streams.
    fn own_and_implicit(&self, s: &StreamState) -> crate::order::Clock {
        if s.legacy { self.before(s) } else { s.clock }
    }

    /// Returns `true` if the result of a query is determined: the work of `all` is done, or the
    /// work of `own` is held back.
    fn decided(&self, all: &crate::order::Clock, own: &crate::order::Clock) -> bool {
        self.host.covers(all) || self.behind_gate(own)
    }

    fn captured_now(&self, event: Id) -> bool {
        let capture = self.event(event).and_then(|e| e.captured.as_ref());
        capture.is_some_and(|&(id, _)| self.streams.values().any(|s| s.capture == Some(id)))
    }

    /// Returns `true` if all work on the memory mapped in a range is known to be done.
    fn mappings_idle(&self, range: Id) -> bool {
        let mappings = self.ranges[&range].mappings.values();
        mappings.flat_map(|m| &self.physical[&m.memory].contents).all(|&content| self.idle(content))
    }
}

fn overlap(work: &WorkAccess) -> bool {
    let Some(r) = work.reads else { return false };
    let w = work.writes;
    r.content == w.content && r.at < w.at + w.len && w.at < r.at + r.len
}
