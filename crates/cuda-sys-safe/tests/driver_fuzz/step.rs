//! The steps of programs: plain data with numbered objects. `Debug` prints a step as Rust code that
//! creates it.

/// Id of an object. The step that creates an object assigns the id. Stream `d` below
/// [`FIRST_STREAM`] is the legacy default stream of device `d`.
pub(crate) type Id = u16;

pub(crate) const FIRST_STREAM: Id = 8;

/// An address in a buffer, or in a page of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Buf { buf: Id, at: usize },
    Page { range: Id, page: usize, at: usize },
}

/// Selects `cuMemcpyAsync` on a stream, or `cuMemcpy` on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Stream(Id),
    Device(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

/// A query that needs no object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceQuery {
    Priorities,
    Granularity,
    MemInfo,
    Lost,
    NoSuchDevice,
}

/// A launch configuration that must be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadShape {
    NoBlocks,
    NoThreads,
    TooManyThreads,
    TooDeep,
    TooTall,
    TooMuchShared,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Image {
    Good,
    CutShort,
    TooNew,
    NoSuchKernel,
}

/// Work that loses the process's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A kernel writes to an unmapped address.
    Nowhere,
    /// A kernel writes to a misaligned address.
    Misaligned,
    /// A kernel traps.
    Trap,
    /// A kernel writes to addresses that are reserved but not mapped.
    Unmapped,
    /// A graph contains a kernel that writes to an unmapped address.
    InGraph,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    StreamCreate { stream: Id, device: usize, non_blocking: bool, priority: i32 },
    StreamDestroy { stream: Id },
    StreamSynchronize { stream: Id },
    StreamQuery { stream: Id },
    StreamPriority { stream: Id },
    EventCreate { event: Id, device: usize, timing: bool, interprocess: bool },
    EventDestroy { event: Id },
    EventRecord { event: Id, stream: Id },
    EventWait { stream: Id, event: Id },
    EventQuery { event: Id },
    EventSynchronize { event: Id },
    EventElapsed { start: Id, end: Id },
    Synchronize { device: usize },
    MemAlloc { buf: Id, device: usize, bytes: usize },
    MemFree { buf: Id, device: usize, at: usize },
    HostAlloc { buf: Id, device: usize, bytes: usize },
    HostFree { buf: Id, device: usize },
    Pageable { buf: Id, bytes: usize },
    HostRegister { buf: Id, device: usize, bytes: usize },
    HostUnregister { buf: Id, device: usize },
    HostWrite { buf: Id, value: u8 },
    HostRead { buf: Id },
    Copy { dst: Place, src: Place, bytes: usize, by: By },
    Memset { dst: Place, width: usize, value: u32, count: usize, stream: Id },
    Launch { stream: Id, dst: Place, src: Place, words: usize, addend: u32 },
    LaunchRefused { stream: Id, shape: BadShape },
    HostFunction { stream: Id, panics: bool },
    Gate { stream: Id },
    OpenGate,
    BeginCapture { stream: Id, mode: Mode },
    EndCapture { stream: Id, graph: Id },
    CaptureStatus { stream: Id },
    ThreadMode { device: usize, mode: Mode },
    Instantiate { graph: Id, exec: Id },
    GraphLaunch { exec: Id, stream: Id },
    GraphDestroy { graph: Id },
    ExecDestroy { exec: Id },
    Reserve { range: Id, device: usize, pages: usize, odd: usize },
    AddressFree { range: Id, device: usize, pages: usize },
    Create { memory: Id, device: usize, pages: usize, odd: usize },
    Release { memory: Id },
    Map { range: Id, page: usize, at: usize, pages: usize, offset: usize, memory: Id },
    SetAccess { range: Id, page: usize, pages: usize, device: usize, access: Access },
    Unmap { range: Id, device: usize, page: usize, pages: usize },
    PoolCreate { pool: Id, device: usize },
    PoolDestroy { pool: Id },
    PoolThreshold { pool: Id, bytes: u64 },
    PoolTrim { pool: Id, bytes: usize },
    AllocAsync { buf: Id, pool: Id, bytes: usize, stream: Id },
    FreeAsync { buf: Id, stream: Id },
    PeerCan { device: usize, peer: usize },
    PeerEnable { device: usize, peer: usize },
    PeerDisable { device: usize, peer: usize },
    PointerKind { place: Place },
    Module { device: usize, image: Image },
    IpcMemory { buf: Id, device: usize, at: usize },
    IpcEvent { event: Id },
    Ask { device: usize, what: DeviceQuery },
    Fail { stream: Id, how: Fault },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    None,
    Read,
    ReadWrite,
}

impl Step {
    /// Returns the name of the step's variant.
    pub(crate) fn kind(&self) -> String {
        let text = format!("{self:?}");
        text.split([' ', '{']).next().unwrap_or_default().to_owned()
    }

    /// Returns the stream of the step.
    pub(crate) fn stream(&self) -> Option<Id> {
        use Step::*;
        match *self {
            StreamDestroy { stream } | StreamSynchronize { stream } | StreamQuery { stream } => {
                Some(stream)
            }
            EventRecord { stream, .. } | EventWait { stream, .. } | Memset { stream, .. } => {
                Some(stream)
            }
            Launch { stream, .. } | LaunchRefused { stream, .. } | Gate { stream } => Some(stream),
            HostFunction { stream, .. } | BeginCapture { stream, .. } => Some(stream),
            EndCapture { stream, .. } | CaptureStatus { stream } => Some(stream),
            GraphLaunch { stream, .. } | AllocAsync { stream, .. } => Some(stream),
            FreeAsync { stream, .. } | Fail { stream, .. } => Some(stream),
            Copy { by: By::Stream(stream), .. } => Some(stream),
            Copy { by: By::Device(device), .. } => Some(device as Id),
            _ => None,
        }
    }

    /// Returns the group of the step. The setting `without` can exclude groups.
    pub(crate) fn group(&self) -> &'static str {
        use Step::*;
        match self {
            StreamCreate { .. } | StreamDestroy { .. } | StreamSynchronize { .. } => "streams",
            StreamPriority { .. } | Ask { .. } | PointerKind { .. } => "questions",
            StreamQuery { .. } | EventQuery { .. } => "queries",
            EventCreate { .. } | EventDestroy { .. } | EventRecord { .. } => "events",
            EventWait { .. } | EventSynchronize { .. } | EventElapsed { .. } => "events",
            Synchronize { .. } => "streams",
            MemAlloc { .. } | MemFree { .. } => "memory",
            HostAlloc { .. } | HostFree { .. } | Pageable { .. } => "host-memory",
            HostRegister { .. } | HostUnregister { .. } => "registered",
            HostWrite { .. } | HostRead { .. } => "host-memory",
            Copy { .. } => "copies",
            Memset { .. } => "memsets",
            Launch { .. } | LaunchRefused { .. } => "kernels",
            HostFunction { .. } => "host-functions",
            Gate { .. } | OpenGate => "gates",
            BeginCapture { .. } | EndCapture { .. } | CaptureStatus { .. } => "captures",
            ThreadMode { .. } | Instantiate { .. } | GraphLaunch { .. } => "captures",
            GraphDestroy { .. } | ExecDestroy { .. } => "captures",
            Reserve { .. } | AddressFree { .. } | Create { .. } | Release { .. } => "mapping",
            Map { .. } | SetAccess { .. } | Unmap { .. } => "mapping",
            PoolCreate { .. } | PoolDestroy { .. } | PoolThreshold { .. } => "pools",
            PoolTrim { .. } | AllocAsync { .. } | FreeAsync { .. } => "pools",
            PeerCan { .. } | PeerEnable { .. } | PeerDisable { .. } => "peers",
            Module { .. } => "modules",
            IpcMemory { .. } | IpcEvent { .. } => "ipc",
            Fail { .. } => "strikes",
        }
    }
}
