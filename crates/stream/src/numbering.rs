//! The numbering of a driver's stream. It outlives the `Stream` that wraps the driver's stream.

use std::any::Any;
use std::sync::{Arc, PoisonError, Weak};

use warpline_cuda_sys_safe::owned;
use warpline_sync::Mutex;

use crate::device::DeviceCore;
use crate::order::StreamProgress;
use crate::stream::StreamInner;
use crate::{ErrorKind, Result, Stream};

/// State attached to a driver's stream for the lifetime of the driver's stream.
#[derive(Debug)]
struct StreamNumbering {
    progress: Arc<StreamProgress>,
    /// The `Stream` that wraps the driver's stream. Dangling if there is none.
    stream: Mutex<Weak<StreamInner>>,
}

impl Stream {
    /// Creates the default stream of a device. Each [`Devices`](crate::Devices) has its own
    /// `Stream` for it. Default streams are never captured.
    pub(crate) fn default_of(core: &Arc<DeviceCore>) -> Self {
        let raw = owned::Stream::default_of(&core.driver, core.index);
        let progress = Arc::new(StreamProgress::new(raw.id(), core.index));
        Self::registered(core, raw, progress)
    }

    /// Returns the `Stream` that wraps a driver's stream, or creates it. At most one exists at a
    /// time. A new `Stream` continues the numbering of a dropped one, so that earlier numbers stay
    /// valid.
    ///
    /// # Errors
    /// [`ErrorKind::RuntimeMismatch`] while the driver's stream belongs to another
    /// [`Devices`](crate::Devices).
    #[track_caller]
    pub(crate) fn wrap(
        core: &Arc<DeviceCore>,
        raw: owned::Stream,
        call: &'static str,
    ) -> Result<Self> {
        let new = || -> Arc<dyn Any + Send + Sync> {
            let progress = Arc::new(StreamProgress::new(raw.id(), core.index));
            Arc::new(StreamNumbering { progress, stream: Mutex::default() })
        };
        let numbering = Arc::clone(raw.numbering().get_or_init(new));
        let Ok(numbering) = numbering.downcast::<StreamNumbering>() else {
            return Err(ErrorKind::RuntimeMismatch.of(call));
        };
        // Other code may have stored the numbering of another stream in `raw`. Work would then be
        // numbered on the wrong stream.
        if numbering.progress.stream != raw.id() {
            return Err(ErrorKind::RuntimeMismatch.of(call));
        }
        let mut wrapper = numbering.stream.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inner) = wrapper.upgrade() {
            let stream = Self::from_inner(inner);
            stream.check_same_devices(core, call)?;
            return Ok(stream);
        }
        let stream = Self::registered(core, raw, Arc::clone(&numbering.progress));
        *wrapper = stream.downgrade();
        Ok(stream)
    }
}
