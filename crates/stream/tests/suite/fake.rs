//! A fake driver with streams, events and captures only. A seeded schedule runs its work, and the
//! driver counts its calls.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError};

use warpline_cuda_sys_safe::*;
use warpline_sync::{Mutex, MutexGuard};

type HostFn = Box<dyn FnOnce() + Send>;

/// An operation in the queue of a stream.
enum QueuedOp {
    Host(HostFn),
    /// The event and the number of the record.
    Record(u64, u64),
    /// Number of the awaited record. Later records of the event do not matter.
    Wait(u64),
}

#[derive(Default)]
struct FakeEvent {
    timing: bool,
    /// Number of the latest record. 0: none.
    recorded: u64,
    /// The capture that the latest record is part of. 0: none.
    captured: u64,
    time: u64,
}

#[derive(Default)]
struct FakeState {
    random: u64,
    clock: u64,
    next: u64,
    queues: BTreeMap<StreamHandle, VecDeque<QueuedOp>>,
    priorities: BTreeMap<StreamHandle, i32>,
    events: BTreeMap<u64, FakeEvent>,
    /// Numbers of the records that are not complete.
    pending: BTreeSet<u64>,
    /// The capture of each captured stream. Captured operations are dropped.
    captures: BTreeMap<StreamHandle, u64>,
    calls: BTreeMap<&'static str, usize>,
    failing: Option<&'static str>,
    lost: Vec<Option<DriverError>>,
    context: Vec<bool>,
}

pub(crate) struct FakeDriver {
    devices: usize,
    state: Mutex<FakeState>,
    refused: warpline_cuda_sys_safe::owned::Refused,
}

impl std::fmt::Debug for FakeDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeDriver").field("devices", &self.devices).finish()
    }
}

impl FakeState {
    fn random(&mut self, below: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.random >> 33) as usize) % below.max(1)
    }

    fn runnable(&self, item: &QueuedOp) -> bool {
        match item {
            QueuedOp::Wait(record) => !self.pending.contains(record),
            _ => true,
        }
    }

    /// Runs an operation of a random stream. Returns `false` if no stream can run one.
    fn step(&mut self) -> bool {
        let ready: Vec<StreamHandle> = self
            .queues
            .iter()
            .filter(|(_, q)| q.front().is_some_and(|i| self.runnable(i)))
            .map(|(s, _)| *s)
            .collect();
        if ready.is_empty() {
            return false;
        }
        let stream = ready[self.random(ready.len())];
        self.clock += 1;
        match self.queues.get_mut(&stream).and_then(VecDeque::pop_front) {
            Some(QueuedOp::Host(f)) => f(),
            Some(QueuedOp::Record(event, record)) => {
                self.pending.remove(&record);
                if let Some(event) = self.events.get_mut(&event) {
                    event.time = self.clock;
                }
            }
            Some(QueuedOp::Wait(..)) | None => {}
        }
        true
    }

    fn is_empty(&self, stream: StreamHandle) -> bool {
        self.queues.get(&stream).is_none_or(VecDeque::is_empty)
    }

    fn event_done(&self, event: EventHandle) -> bool {
        self.events.get(&event.raw()).is_none_or(|e| !self.pending.contains(&e.recorded))
    }

    fn run_until(&mut self, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            assert!(self.step(), "deadlock: every stream waits for another stream");
        }
    }

    /// Polls a condition. Runs one to three operations first, until the condition holds.
    fn poll(&mut self, done: impl Fn(&Self) -> bool) -> bool {
        for _ in 0..=self.random(3) {
            if done(self) {
                break;
            }
            self.step();
        }
        done(self)
    }
}

impl FakeDriver {
    pub(crate) fn new(devices: usize, seed: u64) -> Arc<Self> {
        let state = FakeState {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed,
            lost: vec![None; devices],
            context: vec![false; devices],
            ..FakeState::default()
        };
        Arc::new(Self { devices, state: Mutex::new(state), refused: Default::default() })
    }

    fn state(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of calls with a name.
    pub(crate) fn calls(&self, call: &str) -> usize {
        self.state().calls.get(call).copied().unwrap_or(0)
    }

    /// Makes all calls with a name fail from now on. `None`: no calls.
    pub(crate) fn fail(&self, call: Option<&'static str>) {
        self.state().failing = call;
    }

    pub(crate) fn lose(&self, device: usize) {
        let cause = CudaError {
            call: "cuLaunchKernel",
            code: CudaCode::ILLEGAL_ADDRESS,
            device: Some(device),
            detail: None,
            location: None,
        };
        self.state().lost[device] =
            Some(DriverError::DeviceLost { device, cause: Arc::new(cause) });
    }

    #[allow(dead_code, reason = "only the shuttle tests call it")]
    pub(crate) fn is_capturing(&self, stream: StreamHandle) -> bool {
        self.state().captures.contains_key(&stream)
    }

    /// Runs operations until at most `left` are in the stream's queue.
    pub(crate) fn drain(&self, stream: StreamHandle, left: usize) {
        self.state().run_until(|s| s.queues.get(&stream).is_none_or(|q| q.len() <= left));
    }

    /// Runs operations of one stream until it is idle or waits for another stream.
    pub(crate) fn run_alone(&self, stream: StreamHandle) {
        let mut state = self.state();
        let others: Vec<_> = state.queues.keys().copied().filter(|s| *s != stream).collect();
        let parked: Vec<_> =
            others.iter().filter_map(|s| Some((*s, state.queues.remove(s)?))).collect();
        while state.step() {}
        state.queues.extend(parked);
    }

    fn call(&self, name: &'static str, device: usize) -> Result<MutexGuard<'_, FakeState>> {
        let mut state = self.state();
        *state.calls.entry(name).or_default() += 1;
        if let Some(lost) = &state.lost[device] {
            return Err(lost.clone());
        }
        if state.failing == Some(name) {
            return Err(DriverError::cuda(name, CudaCode::OUT_OF_MEMORY, Some(device)));
        }
        state.context[device] = true;
        Ok(state)
    }
}

fn unsupported<T>() -> Result<T> {
    Err(DriverError::cuda("fake", CudaCode::NOT_SUPPORTED, None))
}

macro_rules! unsupported {
    ($($([$safety:tt])? $name:ident($($t:ty),*) -> $r:ty;)*) => {
        $($($safety)? fn $name(&self, $(_: $t),*) -> Result<$r> { unsupported() })*
    };
}

// SAFETY: the driver allocates no memory, and a host wait returns only after the awaited work.
unsafe impl Driver for FakeDriver {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn version(&self) -> Result<u32> {
        Ok(12000)
    }

    fn device_count(&self) -> usize {
        self.devices
    }

    fn properties(&self, device: usize) -> Result<DeviceProperties> {
        Ok(DeviceProperties {
            name: format!("fake {device}"),
            uuid: [device as u8; 16],
            compute_capability: (9, 0),
            total_memory: 0,
            multiprocessor_count: 132,
            max_threads_per_multiprocessor: 2048,
            max_threads_per_block: 1024,
            max_block_dim: [1024, 1024, 64],
            max_grid_dim: [i32::MAX as u32, 65535, 65535],
            warp_size: 32,
            shared_memory_per_block: 49152,
            shared_memory_per_block_optin: 232_448,
            l2_cache_size: 0,
            memory_bus: (0, 0),
            pci: (0, 0, 0),
            virtual_memory_management: false,
            memory_pools: false,
            integrated: false,
        })
    }

    fn primary_context_active(&self, device: usize) -> Result<bool> {
        Ok(self.state().context[device])
    }

    fn refused(&self) -> &warpline_cuda_sys_safe::owned::Refused {
        &self.refused
    }

    fn lost(&self, device: usize) -> Option<DriverError> {
        self.state().lost[device].clone()
    }

    fn synchronize(&self, device: usize) -> Result<()> {
        let mut state = self.call("synchronize", device)?;
        state.run_until(|s| s.queues.iter().all(|(h, q)| h.device() != device || q.is_empty()));
        Ok(())
    }

    fn stream_priority_range(&self, _: usize) -> Result<(i32, i32)> {
        Ok((0, -5))
    }

    fn stream_create(&self, device: usize, flags: StreamFlags) -> Result<StreamHandle> {
        let mut state = self.call("stream_create", device)?;
        state.next += 1;
        // SAFETY: `state.next` is unique, and the handle stays valid as long as the driver.
        let handle = unsafe { StreamHandle::from_raw(device, state.next) };
        state.priorities.insert(handle, flags.priority.clamp(-5, 0));
        Ok(handle)
    }

    unsafe fn stream_destroy(&self, stream: StreamHandle) -> Result<()> {
        self.call("stream_destroy", stream.device()).map(drop)
    }

    unsafe fn stream_query(&self, stream: StreamHandle) -> Result<bool> {
        Ok(self.call("stream_query", stream.device())?.poll(|s| s.is_empty(stream)))
    }

    unsafe fn stream_synchronize(&self, stream: StreamHandle) -> Result<()> {
        self.call("stream_synchronize", stream.device())?.run_until(|s| s.is_empty(stream));
        Ok(())
    }

    unsafe fn stream_wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        let mut state = self.call("stream_wait_event", stream.device())?;
        let (record, captured) =
            state.events.get(&event.raw()).map_or((0, 0), |e| (e.recorded, e.captured));
        let own = state.captures.get(&stream).copied().unwrap_or(0);
        if own != captured {
            let code = match (own, captured) {
                (_, 0) => CudaCode::STREAM_CAPTURE_ISOLATION,
                _ if !state.captures.values().any(|c| *c == captured) => CudaCode::CAPTURED_EVENT,
                (0, _) => {
                    state.captures.insert(stream, captured);
                    return Ok(());
                }
                _ => CudaCode::STREAM_CAPTURE_MERGE,
            };
            return Err(DriverError::cuda("stream_wait_event", code, Some(stream.device())));
        }
        if own != 0 {
            return Ok(());
        }
        state.queues.entry(stream).or_default().push_back(QueuedOp::Wait(record));
        Ok(())
    }

    unsafe fn stream_priority(&self, stream: StreamHandle) -> Result<i32> {
        Ok(self.state().priorities.get(&stream).copied().unwrap_or(0))
    }

    unsafe fn launch_host_func(&self, stream: StreamHandle, f: HostFn) -> Result<()> {
        let mut state = self.call("launch_host_func", stream.device())?;
        if !state.captures.contains_key(&stream) {
            state.queues.entry(stream).or_default().push_back(QueuedOp::Host(f));
        }
        Ok(())
    }

    fn event_create(&self, device: usize, flags: EventFlags) -> Result<EventHandle> {
        let mut state = self.call("event_create", device)?;
        state.next += 1;
        let raw = state.next;
        state.events.insert(raw, FakeEvent { timing: flags.timing, ..FakeEvent::default() });
        // SAFETY: `raw` is unique, and the handle stays valid until `event_destroy`.
        Ok(unsafe { EventHandle::from_raw(device, raw) })
    }

    unsafe fn event_destroy(&self, event: EventHandle) -> Result<()> {
        self.call("event_destroy", event.device())?.events.remove(&event.raw());
        Ok(())
    }

    unsafe fn event_record(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        assert_eq!(event.device(), stream.device());
        let mut state = self.call("event_record", stream.device())?;
        state.next += 1;
        let record = state.next;
        let captured = state.captures.get(&stream).copied().unwrap_or(0);
        let entry = state.events.get_mut(&event.raw()).expect("a live event");
        (entry.recorded, entry.captured) = (record, captured);
        if captured != 0 {
            return Ok(());
        }
        state.pending.insert(record);
        state.queues.entry(stream).or_default().push_back(QueuedOp::Record(event.raw(), record));
        Ok(())
    }

    unsafe fn event_query(&self, event: EventHandle) -> Result<bool> {
        Ok(self.call("event_query", event.device())?.poll(|s| s.event_done(event)))
    }

    unsafe fn event_synchronize(&self, event: EventHandle) -> Result<()> {
        self.call("event_synchronize", event.device())?.run_until(|s| s.event_done(event));
        Ok(())
    }

    unsafe fn event_elapsed(&self, start: EventHandle, end: EventHandle) -> Result<f32> {
        let state = self.call("event_elapsed", start.device())?;
        let (start, end) = (&state.events[&start.raw()], &state.events[&end.raw()]);
        assert!(start.timing && end.timing);
        Ok(end.time as f32 - start.time as f32)
    }

    unsafe fn begin_capture(&self, stream: StreamHandle, _: CaptureMode) -> Result<()> {
        let mut state = self.call("begin_capture", stream.device())?;
        state.next += 1;
        let id = state.next;
        state.captures.insert(stream, id);
        Ok(())
    }

    unsafe fn end_capture(&self, stream: StreamHandle) -> Result<GraphHandle> {
        let mut state = self.call("end_capture", stream.device())?;
        let id = state.captures.get(&stream).copied();
        state.captures.retain(|_, c| Some(*c) != id);
        // SAFETY: the handle only returns to `graph_destroy`, which does nothing.
        Ok(unsafe { GraphHandle::from_raw(stream.device(), id.unwrap_or(0)) })
    }

    unsafe fn graph_destroy(&self, _: GraphHandle) -> Result<()> {
        Ok(())
    }

    unsupported! {
        mem_info(usize) -> MemInfo;
        mem_alloc(usize, usize) -> DevicePtr;
        [unsafe] mem_free(usize, DevicePtr) -> ();
        host_alloc(usize, usize, HostFlags) -> NonNull<u8>;
        [unsafe] host_free(usize, NonNull<u8>) -> ();
        [unsafe] host_register(usize, NonNull<u8>, usize, HostFlags) -> ();
        [unsafe] host_unregister(usize, NonNull<u8>) -> ();
        pointer_kind(u64) -> PointerKind;
        [unsafe] memcpy_async(&warpline_cuda_sys_safe::Copy, StreamHandle) -> ();
        [unsafe] memcpy(usize, &warpline_cuda_sys_safe::Copy) -> ();
        [unsafe] memset_async(DevicePtr, MemsetValue, usize, StreamHandle) -> ();
        [unsafe] module_load(usize, &[u8]) -> ModuleHandle;
        [unsafe] module_unload(ModuleHandle) -> ();
        [unsafe] module_function(ModuleHandle, &CStr) -> FunctionHandle;
        [unsafe] function_max_shared(FunctionHandle, u32) -> ();
        [unsafe] launch(StreamHandle, &Launch<'_>) -> ();
        can_access_peer(usize, usize) -> bool;
        enable_peer_access(usize, usize) -> ();
        [unsafe] disable_peer_access(usize, usize) -> ();
        mem_granularity(usize) -> usize;
        address_reserve(usize, usize) -> DevicePtr;
        [unsafe] address_free(usize, DevicePtr, usize) -> ();
        mem_create(usize, usize) -> PhysicalHandle;
        [unsafe] mem_release(PhysicalHandle) -> ();
        [unsafe] mem_map(DevicePtr, usize, usize, PhysicalHandle) -> ();
        [unsafe] mem_set_access(usize, DevicePtr, usize, &[(usize, MemAccess)]) -> ();
        [unsafe] mem_unmap(usize, DevicePtr, usize) -> ();
        mempool_create(usize) -> MemPoolHandle;
        [unsafe] mempool_destroy(MemPoolHandle) -> ();
        [unsafe] mempool_release_threshold(MemPoolHandle, u64) -> ();
        [unsafe] mempool_trim(MemPoolHandle, usize) -> ();
        [unsafe] mempool_set_access(MemPoolHandle, &[(usize, MemAccess)]) -> ();
        [unsafe] mem_alloc_async(MemPoolHandle, usize, StreamHandle) -> DevicePtr;
        [unsafe] mem_free_async(DevicePtr, StreamHandle) -> ();
        [unsafe] capture_status(StreamHandle) -> CaptureStatus;
        exchange_capture_mode(usize, CaptureMode) -> CaptureMode;
        [unsafe] graph_instantiate(GraphHandle) -> GraphExecHandle;
        [unsafe] graph_launch(GraphExecHandle, StreamHandle) -> ();
        [unsafe] graph_debug_dot_print(GraphHandle, &CStr) -> ();
        [unsafe] graph_exec_destroy(GraphExecHandle) -> ();
        [unsafe] ipc_mem_handle(usize, DevicePtr) -> IpcMemHandle;
        ipc_open_mem(usize, IpcMemHandle) -> DevicePtr;
        [unsafe] ipc_close_mem(usize, DevicePtr) -> ();
        [unsafe] ipc_event_handle(EventHandle) -> IpcEventHandle;
        ipc_open_event(usize, IpcEventHandle) -> EventHandle;
    }
}
