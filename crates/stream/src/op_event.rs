//! Events that follow operations.

use std::sync::Arc;

use crate::clock::Point;
use crate::event_pool::PooledEvent;
use crate::stream::Stream;
use crate::{OpNumber, Result};

/// An event recorded after an operation, the one that waits for it use too. It is asked without the
/// stream's lock, which somebody may hold who enqueues, for long.
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
    point: Point,
}

impl Stream {
    /// The event recorded after operation `op`, or after a later one where there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Capturing`](crate::ErrorKind::Capturing) while the stream is captured, or the
    /// driver's own.
    #[track_caller]
    pub fn op_event(&self, op: OpNumber) -> Result<OpEvent> {
        let (event, point) = self.checkpoint(op)?;
        Ok(OpEvent { event, point })
    }
}

impl OpEvent {
    /// Whether the operation is done.
    ///
    /// # Errors
    /// The driver's own, those of earlier asynchronous work among them.
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

    /// [`OpEvent::query`] that counts as no order, and leaves errors of other work for others to report.
    ///
    /// # Errors
    /// The driver's own.
    #[track_caller]
    pub fn query_silently(&self) -> Result<bool> {
        Ok(self.event.query()?)
    }

    /// Makes later work on a stream wait, on the GPU, for the operation.
    ///
    /// # Errors
    /// As [`Stream::wait_for`].
    #[track_caller]
    pub fn wait(&self, stream: &Stream) -> Result<()> {
        stream.check_same_devices(self.event.core(), "wait_for")?;
        stream.enqueue_wait("wait_for", &self.event, &self.point)
    }
}
