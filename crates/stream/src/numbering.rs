//! The numbering of a driver's stream, which outlives the `Stream` that wraps it.

use std::any::Any;
use std::sync::{Arc, PoisonError, Weak};

use warpline_cuda_sys_safe::owned;
use warpline_sync::Mutex;

use crate::device::Core;
use crate::order::Progress;
use crate::stream::Inner;
use crate::{ErrorKind, Result, Stream};

/// State that is attached to a driver's stream as long as that exists.
#[derive(Debug)]
struct Numbering {
    progress: Arc<Progress>,
    /// The `Stream` that wraps the driver's stream now, if there is one.
    stream: Mutex<Weak<Inner>>,
}

impl Stream {
    /// Creates the default stream. Each [`Devices`](crate::Devices) has one of its own, which is
    /// never captured.
    pub(crate) fn default_of(core: &Arc<Core>) -> Self {
        let raw = owned::Stream::default_of(&core.driver, core.index);
        let progress = Arc::new(Progress::new(raw.id(), core.index));
        Self::registered(core, raw, progress)
    }

    /// Returns the stream that wraps a driver's stream. There is at most one at a time. If it was
    /// dropped, its numbering continues, so that recorded numbers stay valid.
    ///
    /// # Errors
    /// [`ErrorKind::RuntimeMismatch`] while the driver's stream belongs to another
    /// [`Devices`](crate::Devices).
    #[track_caller]
    pub(crate) fn wrap(core: &Arc<Core>, raw: owned::Stream, call: &'static str) -> Result<Self> {
        let new = || -> Arc<dyn Any + Send + Sync> {
            let progress = Arc::new(Progress::new(raw.id(), core.index));
            Arc::new(Numbering { progress, stream: Mutex::default() })
        };
        let numbering = Arc::clone(raw.numbering().get_or_init(new));
        let Ok(numbering) = numbering.downcast::<Numbering>() else {
            return Err(ErrorKind::RuntimeMismatch.of(call));
        };
        // Any code can store another stream's numbering there; work would then count for the wrong
        // stream.
        if numbering.progress.stream != raw.id() {
            return Err(ErrorKind::RuntimeMismatch.of(call));
        }
        let mut stands = numbering.stream.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inner) = stands.upgrade() {
            let stream = Self::from_inner(inner);
            stream.check_same_devices(core, call)?;
            return Ok(stream);
        }
        let stream = Self::registered(core, raw, Arc::clone(&numbering.progress));
        *stands = stream.downgrade();
        Ok(stream)
    }
}
