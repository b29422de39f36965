//! A device and its streams.

use std::fmt;
use std::sync::{Arc, PoisonError, Weak};

use warpline_cuda_sys_safe::{
    DeviceProperties, Driver, DriverError, StreamFlags, StreamHandle, owned,
};
use warpline_sync::Mutex;
use warpline_sync::atomic::{AtomicUsize, Ordering};

use crate::devices::SharedState;
use crate::event_pool::EventPool;
use crate::stream::{Stream, StreamInner};
use crate::{Error, ErrorKind, Result};

/// Number of streams in the pool of one priority of one device. After the last stream has been
/// handed out, the next request returns the first stream again.
pub const STREAMS_PER_POOL: usize = 32;

/// Number of priority levels with a pool: 0, the lowest, to -3.
const PRIORITIES: usize = 4;

/// Device state that streams and events share.
#[derive(Debug)]
pub(crate) struct DeviceCore {
    pub(crate) index: usize,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) properties: DeviceProperties,
    pub(crate) shared: Arc<SharedState>,
    pub(crate) events: EventPool,
    /// All streams of the device. `synchronize` records that their work is complete.
    streams: Mutex<Vec<Weak<StreamInner>>>,
    /// Number of captures in progress.
    pub(crate) captures: AtomicUsize,
}

impl DeviceCore {
    /// Adds a new stream.
    pub(crate) fn register(&self, stream: Weak<StreamInner>) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if streams.len() == streams.capacity() {
            streams.retain(|s| s.strong_count() > 0);
        }
        streams.push(stream);
    }

    /// Returns the device's streams that still exist.
    fn streams(&self) -> Vec<Stream> {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner).clone();
        streams.iter().filter_map(Weak::upgrade).map(Stream::from_inner).collect()
    }

    /// Extends a driver's error with the list of launches that may have caused it. If `stream` is a
    /// stream's id, lists the launches of that stream first, and those of the other streams only if
    /// the device is lost. If `stream` is `None`, lists the launches of all streams.
    #[cold]
    pub(crate) fn surfaced(&self, stream: Option<u64>, source: DriverError) -> Error {
        let lost = source.loses_device();
        let mut streams = self.streams();
        streams.retain(|s| lost || stream.is_none_or(|id| id == s.id()));
        streams.sort_by_key(|s| (Some(s.id()) != stream, s.id()));
        let pending: Arc<[_]> = streams.iter().filter_map(Stream::pending).collect();
        if pending.is_empty() {
            return source.into();
        }
        Error::from(source).with_kind(ErrorKind::Surfaced { pending })
    }
}

/// The pool of one priority's streams.
#[derive(Debug, Default)]
struct StreamPool {
    streams: Vec<Stream>,
    /// Index of the stream that the next request receives.
    next: usize,
}

/// One device. Clones share the device.
///
/// Creating a `Device` and requesting its default stream create no driver context. The first call
/// that needs the GPU does.
#[derive(Clone)]
pub struct Device(Arc<DeviceInner>);

struct DeviceInner {
    core: Arc<DeviceCore>,
    default: Stream,
    pools: [Mutex<StreamPool>; PRIORITIES],
}

impl Device {
    pub(crate) fn new(
        driver: &Arc<dyn Driver>,
        index: usize,
        shared: &Arc<SharedState>,
    ) -> Result<Self> {
        let core = Arc::new(DeviceCore {
            index,
            driver: Arc::clone(driver),
            properties: driver.properties(index)?,
            shared: Arc::clone(shared),
            events: EventPool::default(),
            streams: Mutex::default(),
            captures: AtomicUsize::new(0),
        });
        let default = Stream::default_of(&core);
        Ok(Self(Arc::new(DeviceInner { core, default, pools: Default::default() })))
    }

    /// Returns the index of the device.
    #[must_use]
    pub fn index(&self) -> usize {
        self.0.core.index
    }

    /// Returns the [`Devices::id`](crate::Devices::id) of the devices that this device belongs to.
    #[must_use]
    pub fn devices_id(&self) -> u64 {
        self.0.core.shared.id()
    }

    /// Returns the driver.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.0.core.driver
    }

    /// Returns the device's name, capabilities and limits.
    #[must_use]
    pub fn properties(&self) -> &DeviceProperties {
        &self.0.core.properties
    }

    /// Returns the legacy default stream (`torch.cuda.default_stream`).
    #[must_use]
    pub fn default_stream(&self) -> &Stream {
        &self.0.default
    }

    /// Returns a stream that does not synchronize with the legacy default stream
    /// (`torch.cuda.Stream`). Each priority has a pool of [`STREAMS_PER_POOL`] streams, which are
    /// handed out in turn.
    ///
    /// `priority` goes from 0, the lowest, to -3; other values are clamped to this range.
    ///
    /// # Errors
    /// [`ErrorKind::Driver`] if the driver cannot create the stream.
    #[track_caller]
    pub fn stream_from_pool(&self, priority: i32) -> Result<Stream> {
        let level = priority.clamp(1 - PRIORITIES as i32, 0).unsigned_abs() as usize;
        let mut pool = self.0.pools[level].lock().unwrap_or_else(PoisonError::into_inner);
        let next = pool.next;
        let stream = match pool.streams.get(next) {
            Some(stream) => stream.clone(),
            None => {
                let stream = self.exclusive_stream(-(level as i32))?;
                pool.streams.push(stream.clone());
                stream
            }
        };
        pool.next = (next + 1) % STREAMS_PER_POOL;
        Ok(stream)
    }

    /// Creates a stream that does not synchronize with the legacy default stream and is in no pool.
    /// Dropping the last clone releases the stream; work enqueued on it still runs.
    ///
    /// Streams with a lower `priority` run first. The driver clamps `priority` to its range.
    ///
    /// # Errors
    /// [`ErrorKind::Driver`] if the driver cannot create the stream.
    #[track_caller]
    pub fn exclusive_stream(&self, priority: i32) -> Result<Stream> {
        let core = &self.0.core;
        let flags = StreamFlags { non_blocking: true, priority };
        let raw = owned::Stream::new(&core.driver, core.index, flags)?;
        Stream::wrap(core, raw, "exclusive_stream")
    }

    /// Returns whether a stream with this [`Stream::id`] still exists. The default stream and the streams of the pools
    /// always do.
    #[must_use]
    pub fn has_stream(&self, id: u64) -> bool {
        id == self.0.default.id() || self.0.core.streams().iter().any(|stream| stream.id() == id)
    }

    /// Wraps a stream made outside this crate (`torch.cuda.ExternalStream`). Returns the existing
    /// [`Stream`] if the driver's stream is wrapped already, because a driver's stream has one
    /// numbering.
    ///
    /// Work that other code enqueues on the driver's stream is not numbered: a wait for a numbered
    /// operation may leave it out. [`Stream::wait_stream`], [`Stream::wait_for_all`], events and
    /// `synchronize` cover it.
    ///
    /// # Errors
    /// - [`ErrorKind::WrongDevice`] if the stream is on another device.
    /// - [`ErrorKind::RuntimeMismatch`] if the stream belongs to another driver, or while other
    ///   [`Devices`](crate::Devices) of the same driver use it.
    #[track_caller]
    pub fn external_stream(&self, stream: owned::Stream) -> Result<Stream> {
        const CALL: &str = "external_stream";
        let core = &self.0.core;
        if !Arc::ptr_eq(stream.driver(), &core.driver) {
            return Err(ErrorKind::RuntimeMismatch.of(CALL));
        }
        if stream.device() != core.index {
            let (expected, found) = (core.index, stream.device());
            return Err(ErrorKind::WrongDevice { object: "the stream", expected, found }.of(CALL));
        }
        if stream.handle() == StreamHandle::default_of(core.index) {
            return Ok(self.0.default.clone());
        }
        Stream::wrap(core, stream, CALL)
    }

    /// Blocks the host until all work on the device is complete (`torch.cuda.synchronize`).
    ///
    /// # Errors
    /// - [`ErrorKind::Capturing`] while a stream of the device is captured.
    /// - [`ErrorKind::IndexCheck`], once, if an index was out of range in a launch of this thread,
    ///   or of a thread that has ended.
    /// - [`ErrorKind::Surfaced`] or [`ErrorKind::Driver`] if the driver reports a failure,
    ///   including one of earlier asynchronous work.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        let core = &self.0.core;
        if core.captures.load(Ordering::SeqCst) > 0 {
            return Err(ErrorKind::Capturing.of("synchronize"));
        }
        let mut before: Vec<_> = core.streams().iter().map(Stream::now).collect();
        before.extend(core.shared.checks.points(core.index));
        core.driver.synchronize(core.index).map_err(|e| core.surfaced(None, e))?;
        before.iter().for_each(|point| point.mark_done(core));
        core.shared.checks.settle(&before);
        core.shared.checks.report(&before)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("index", &self.index())
            .field("name", &self.properties().name)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuda:{}", self.index())
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Device {}
