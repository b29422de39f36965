//! Makes the driver call of a step. The model ensures that the call is sound.

mod faults;

use std::collections::BTreeMap;
use std::ptr::NonNull;

use warpline_cuda_sys_safe::{self as cuda, *};

use crate::gate::Gate as Held;
use crate::model::PAGE;
use crate::step::{self, BadShape, By, DeviceQuery, Id, Image, Place, Step};
use crate::subject::{BufferMemory, Range, Subject, layout, ptx};

fn access(access: step::Access) -> MemAccess {
    match access {
        step::Access::None => MemAccess::None,
        step::Access::Read => MemAccess::Read,
        step::Access::ReadWrite => MemAccess::ReadWrite,
    }
}

fn mode(mode: step::Mode) -> CaptureMode {
    match mode {
        step::Mode::Global => CaptureMode::Global,
        step::Mode::ThreadLocal => CaptureMode::ThreadLocal,
        step::Mode::Relaxed => CaptureMode::Relaxed,
    }
}

const FINE: &str = "ok";

impl Subject {
    /// Makes the driver call of a step, and records created and released objects.
    #[allow(clippy::too_many_lines)]
    pub(crate) fn perform(
        &mut self,
        index: usize,
        step: &Step,
        seen: &mut Vec<u8>,
    ) -> Result<String> {
        use Step::*;
        let driver = self.driver.clone();
        let d = &*driver;
        // SAFETY: the model admits only steps whose objects are alive and belong to this driver,
        // and whose memory stays valid until the work is done.
        unsafe {
            match *step {
                StreamCreate { stream, device, non_blocking, priority } => {
                    let made = d.stream_create(device, StreamFlags { non_blocking, priority })?;
                    self.streams.insert(stream, made);
                }
                StreamDestroy { stream } => {
                    d.stream_destroy(self.streams[&stream])?;
                    self.streams.remove(&stream);
                }
                StreamSynchronize { stream } => d.stream_synchronize(self.streams[&stream])?,
                StreamQuery { stream } => {
                    return d.stream_query(self.streams[&stream]).map(|b| b.to_string());
                }
                StreamPriority { stream } => {
                    return d.stream_priority(self.streams[&stream]).map(|p| p.to_string());
                }
                EventCreate { event, device, timing, interprocess } => {
                    let flags = EventFlags { timing, interprocess, blocking: false };
                    self.events.insert(event, d.event_create(device, flags)?);
                }
                EventDestroy { event } => {
                    d.event_destroy(self.events[&event])?;
                    self.events.remove(&event);
                }
                EventRecord { event, stream } => {
                    d.event_record(self.events[&event], self.streams[&stream])?;
                }
                EventWait { stream, event } => {
                    d.stream_wait_event(self.streams[&stream], self.events[&event])?;
                }
                EventQuery { event } => {
                    return d.event_query(self.events[&event]).map(|b| b.to_string());
                }
                EventSynchronize { event } => d.event_synchronize(self.events[&event])?,
                EventElapsed { start, end } => {
                    d.event_elapsed(self.events[&start], self.events[&end])?;
                }
                Synchronize { device } => d.synchronize(device)?,
                MemAlloc { buf, device, bytes } => {
                    let ptr = d.mem_alloc(device, bytes)?;
                    self.bufs.insert(buf, BufferMemory::Device { device, ptr, pool: false });
                }
                MemFree { buf, device, at } => {
                    d.mem_free(device, self.address(Place::Buf { buf, at }))?;
                    self.bufs.remove(&buf);
                }
                HostAlloc { buf, device, bytes } => {
                    let ptr = d.host_alloc(device, bytes, HostFlags::default())?;
                    self.bufs.insert(buf, BufferMemory::Pinned { device, ptr, bytes });
                }
                HostFree { buf, device } => {
                    if let Some((ptr, _)) = self.host(buf) {
                        d.host_free(device, ptr)?;
                        self.bufs.remove(&buf);
                    }
                }
                Pageable { buf, bytes } => {
                    let memory = std::alloc::alloc_zeroed(layout(bytes));
                    let ptr = NonNull::new(memory).expect("a page of memory");
                    self.bufs.insert(buf, BufferMemory::Own { ptr, bytes, registered: false });
                }
                HostRegister { buf, device, bytes } => {
                    if let Some((ptr, _)) = self.host(buf) {
                        d.host_register(device, ptr, bytes, HostFlags::default())?;
                    }
                    self.set_registered(buf, true);
                }
                HostUnregister { buf, device } => {
                    if let Some((ptr, _)) = self.host(buf) {
                        d.host_unregister(device, ptr)?;
                    }
                    self.set_registered(buf, false);
                }
                HostWrite { buf, value } => {
                    if let Some((ptr, bytes)) = self.host(buf) {
                        (0..bytes).for_each(|i| ptr.add(i).write_volatile(value ^ i as u8));
                    }
                }
                HostRead { buf } => {
                    if let Some((ptr, bytes)) = self.host(buf) {
                        seen.extend((0..bytes).map(|i| ptr.add(i).read_volatile()));
                    }
                }
                step::Step::Copy { dst, src, bytes, by } => {
                    let copy = cuda::Copy { dst: self.end(dst), src: self.end(src), bytes };
                    match by {
                        By::Stream(stream) => d.memcpy_async(&copy, self.streams[&stream])?,
                        By::Device(device) => d.memcpy(device, &copy)?,
                    }
                }
                Memset { dst, width, value, count, stream } => {
                    let value = match width {
                        1 => MemsetValue::U8(value as u8),
                        2 => MemsetValue::U16(value as u16),
                        _ => MemsetValue::U32(value),
                    };
                    d.memset_async(self.address(dst), value, count, self.streams[&stream])?;
                }
                step::Step::Launch { stream, dst, src, words, addend } => {
                    let ends = [dst, src].map(|p| (self.owner(p), self.address(p)));
                    let block = [words as u32, 1, 1];
                    self.launch(stream, ends, ([1; 3], block, 0), [words as u32, addend], false)?;
                }
                LaunchRefused { stream, shape } => {
                    let shape = match shape {
                        BadShape::NoBlocks => ([0, 1, 1], [32, 1, 1], 0),
                        BadShape::NoThreads => ([1; 3], [1, 0, 1], 0),
                        BadShape::TooManyThreads => ([1; 3], [64, 32, 1], 0),
                        BadShape::TooDeep => ([1; 3], [1, 1, 65], 0),
                        BadShape::TooTall => ([1, 65_536, 1], [1; 3], 0),
                        BadShape::TooMuchShared => ([1; 3], [32, 1, 1], (48 << 10) + 4),
                    };
                    let nothing = [(0, DevicePtr::NULL); 2];
                    self.launch(stream, nothing, shape, [0, 0], false)?;
                }
                HostFunction { stream, panics } => {
                    let host_fn_log = self.host_fn_log.clone();
                    let f = move || {
                        host_fn_log.lock().expect("no panic under the lock").push(index);
                        if panics {
                            std::panic::resume_unwind(Box::new("as the program wants"));
                        }
                    };
                    d.launch_host_func(self.streams[&stream], Box::new(f))?;
                }
                step::Step::Gate { stream } => {
                    let stream = self.streams[&stream];
                    self.gate = Some(match &self.sim {
                        Some(sim) => Held::Simulated(sim.hold(stream)?),
                        None => {
                            let (gate, latch) = Held::real();
                            d.launch_host_func(stream, Box::new(move || latch.pass()))?;
                            gate
                        }
                    });
                }
                OpenGate => {
                    if let Some(gate) = self.gate.take() {
                        gate.open();
                    }
                }
                BeginCapture { stream, mode: m } => {
                    d.begin_capture(self.streams[&stream], mode(m))?;
                }
                EndCapture { stream, graph } => {
                    self.graphs.insert(graph, d.end_capture(self.streams[&stream])?);
                }
                step::Step::CaptureStatus { stream } => {
                    return Ok(match d.capture_status(self.streams[&stream])? {
                        cuda::CaptureStatus::None => "none",
                        cuda::CaptureStatus::Active(_) => "active",
                        cuda::CaptureStatus::Invalidated => "invalidated",
                    }
                    .to_owned());
                }
                ThreadMode { device, mode: m } => {
                    return d.exchange_capture_mode(device, mode(m)).map(|old| format!("{old:?}"));
                }
                Instantiate { graph, exec } => {
                    self.execs.insert(exec, d.graph_instantiate(self.graphs[&graph])?);
                }
                GraphLaunch { exec, stream } => {
                    d.graph_launch(self.execs[&exec], self.streams[&stream])?;
                }
                GraphDestroy { graph } => {
                    d.graph_destroy(self.graphs[&graph])?;
                    self.graphs.remove(&graph);
                }
                ExecDestroy { exec } => {
                    d.graph_exec_destroy(self.execs[&exec])?;
                    self.execs.remove(&exec);
                }
                Reserve { range, device, pages, odd } => {
                    let ptr = d.address_reserve(device, pages * PAGE + odd)?;
                    let mappings = BTreeMap::new();
                    self.ranges.insert(range, Range { device, ptr, pages, mappings });
                }
                AddressFree { range, device, pages } => {
                    d.address_free(device, self.ranges[&range].ptr, pages * PAGE)?;
                    self.ranges.remove(&range);
                }
                Create { memory, device, pages, odd } => {
                    self.physical.insert(memory, d.mem_create(device, pages * PAGE + odd)?);
                }
                Release { memory } => {
                    d.mem_release(self.physical[&memory])?;
                    self.physical.remove(&memory);
                }
                Map { range, page, at, pages, offset, memory } => {
                    let place = self.address(Place::Page { range, page, at });
                    let memory = self.physical[&memory];
                    d.mem_map(place, pages * PAGE, offset, memory)?;
                    if let Some(r) = self.ranges.get_mut(&range) {
                        r.mappings.insert(page, (pages, memory.device()));
                    }
                }
                SetAccess { range, page, pages, device, access: a } => {
                    let owner = self.ranges[&range].device;
                    let place = self.address(Place::Page { range, page, at: 0 });
                    d.mem_set_access(owner, place, pages * PAGE, &[(device, access(a))])?;
                }
                Unmap { range, device, page, pages } => {
                    let place = self.address(Place::Page { range, page, at: 0 });
                    d.mem_unmap(device, place, pages * PAGE)?;
                    if let Some(r) = self.ranges.get_mut(&range) {
                        r.mappings.retain(|&at, _| at < page || at >= page + pages);
                    }
                }
                PoolCreate { pool, device } => {
                    self.pools.insert(pool, d.mempool_create(device)?);
                }
                PoolDestroy { pool } => {
                    d.mempool_destroy(self.pools[&pool])?;
                    self.pools.remove(&pool);
                }
                PoolThreshold { pool, bytes } => {
                    d.mempool_release_threshold(self.pools[&pool], bytes)?;
                }
                PoolTrim { pool, bytes } => d.mempool_trim(self.pools[&pool], bytes)?,
                AllocAsync { buf, pool, bytes, stream } => {
                    let pool = self.pools[&pool];
                    let ptr = d.mem_alloc_async(pool, bytes, self.streams[&stream])?;
                    let device = pool.device();
                    self.bufs.insert(buf, BufferMemory::Device { device, ptr, pool: true });
                }
                FreeAsync { buf, stream } => {
                    let ptr = self.address(Place::Buf { buf, at: 0 });
                    d.mem_free_async(ptr, self.streams[&stream])?;
                    self.bufs.remove(&buf);
                }
                PeerCan { device, peer } => {
                    return d.can_access_peer(device, peer).map(|b| b.to_string());
                }
                PeerEnable { device, peer } => {
                    d.enable_peer_access(device, peer)?;
                    self.peers.push((device, peer));
                }
                PeerDisable { device, peer } => {
                    d.disable_peer_access(device, peer)?;
                    self.peers.retain(|&p| p != (device, peer));
                }
                step::Step::PointerKind { place } => {
                    let kind = d.pointer_kind(self.pointer(place))?;
                    return Ok(format!("{kind:?}"));
                }
                Module { device, image } => return self.module(device, image),
                IpcMemory { buf, device, at } => {
                    let ptr = self.address(Place::Buf { buf, at });
                    let handle = d.ipc_mem_handle(device, ptr)?;
                    let opened = d.ipc_open_mem(device, handle)?;
                    d.ipc_close_mem(device, opened)?;
                }
                IpcEvent { event } => {
                    let event = self.events[&event];
                    let handle = d.ipc_event_handle(event)?;
                    d.event_destroy(d.ipc_open_event(event.device(), handle)?)?;
                }
                Ask { device, what } => {
                    return match what {
                        DeviceQuery::Priorities => {
                            d.stream_priority_range(device).map(|r| format!("{r:?}"))
                        }
                        DeviceQuery::Granularity => {
                            d.mem_granularity(device).map(|g| g.to_string())
                        }
                        DeviceQuery::MemInfo => d.mem_info(device).map(|_| FINE.to_owned()),
                        DeviceQuery::Lost => Ok(d.lost(device).map_or("no", |_| "lost").to_owned()),
                        DeviceQuery::NoSuchDevice => d.synchronize(99).map(|()| FINE.to_owned()),
                    };
                }
                Fail { stream, how } => self.inject_fault(stream, how)?,
            }
        }
        Ok(FINE.to_owned())
    }

    fn set_registered(&mut self, buf: Id, now: bool) {
        if let Some(BufferMemory::Own { registered, .. }) = self.bufs.get_mut(&buf) {
            *registered = now;
        }
    }

    /// Returns the address of a place as a number.
    fn pointer(&self, place: Place) -> u64 {
        self.address(place).addr()
    }

    fn module(&self, device: usize, image: Image) -> Result<String> {
        let text = ptx();
        let text = match image {
            Image::CutShort => text[..text.rfind('}').unwrap_or(0)].to_owned(),
            Image::TooNew => text.replace(".version 6.3", ".version 99.0"),
            Image::Good | Image::NoSuchKernel => text,
        };
        // SAFETY: the image is PTX text.
        let module = unsafe { self.driver.module_load(device, text.as_bytes()) }?;
        let name = if image == Image::Good { c"stop" } else { c"start" };
        // SAFETY: the module is alive until the second call, and no kernel is kept.
        unsafe {
            let found = self.driver.module_function(module, name);
            self.driver.module_unload(module)?;
            found.map(|_| FINE.to_owned())
        }
    }
}
