//! Events recorded after operations.

use std::sync::Arc;

use crate::clock::StreamPoint;
use crate::event_pool::PooledEvent;
use crate::stream::Stream;
use crate::{OpNumber, Result};

/// An event recorded after an operation. Waits for the operation use the same event. Queries do not
/// take the stream's lock, which an enqueuing thread may hold for long.
///
/// ```
/// # use std::sync::Arc;
/// # use warpline_cuda_sys_safe::null::NullDriver;
/// # use warpline_stream::Devices;
/// let devices = Devices::new(Arc::new(NullDriver::new(1)))?;
/// let stream = devices.get(0)?.stream_from_pool(0)?;
/// let event = stream.op_event(stream.last_op())?;
/// assert!(event.query()?);
/// # Ok::<(), warpline_stream::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct OpEvent {
    event: Arc<PooledEvent>,
    point: StreamPoint,
}

impl Stream {
    /// Returns the event recorded after operation `op`, or after a later operation if `op` has none.
    /// If there is no such event, records one after the stream's last operation.
    ///
    /// # Errors
    /// [`ErrorKind::Capturing`](crate::ErrorKind::Capturing) if the stream is captured and has no
    /// event at or after `op`, and [`ErrorKind::Driver`](crate::ErrorKind::Driver) if a driver call
    /// fails.
    #[track_caller]
    pub fn op_event(&self, op: OpNumber) -> Result<OpEvent> {
        let (event, point) = self.event_at_or_after(op)?;
        Ok(OpEvent { event, point })
    }
}

impl OpEvent {
    /// Returns whether the operation is complete.
    ///
    /// # Errors
    /// [`ErrorKind::Surfaced`](crate::ErrorKind::Surfaced) or
    /// [`ErrorKind::Driver`](crate::ErrorKind::Driver) if the driver reports a failure, including
    /// one of earlier asynchronous work.
    #[track_caller]
    pub fn query(&self) -> Result<bool> {
        let core = self.event.core();
        let done = self.query_silently().map_err(|e| match (e.kind(), e.driver_error()) {
            (crate::ErrorKind::Driver, Some(source)) => core.surfaced(None, source.clone()),
            _ => e,
        })?;
        if done {
            self.point.settle(core);
        }
        Ok(done)
    }

    /// Queries as [`OpEvent::query`] does, but records neither that the operation is complete nor
    /// outcomes of index checks. Errors do not list launches.
    ///
    /// # Errors
    /// [`ErrorKind::Driver`](crate::ErrorKind::Driver) if the driver reports a failure.
    #[track_caller]
    pub fn query_silently(&self) -> Result<bool> {
        Ok(self.event.query()?)
    }

    /// Makes later work on a stream wait, on the GPU, for the operation.
    ///
    /// # Errors
    /// The same as [`Stream::wait_for`], except [`ErrorKind::Capturing`](crate::ErrorKind::Capturing).
    #[track_caller]
    pub fn wait(&self, stream: &Stream) -> Result<()> {
        stream.check_same_devices(self.event.core(), "wait_for")?;
        stream.enqueue_wait("wait_for", &self.event, &self.point)
    }
}
