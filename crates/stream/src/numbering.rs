//! One numbering for a driver's stream, whoever wraps it, whenever.

use std::any::Any;
use std::sync::{Arc, PoisonError, Weak};

use warpline_cuda_sys_safe::owned;
use warpline_sync::Mutex;

use crate::device::Core;
use crate::order::Progress;
use crate::stream::Inner;
use crate::{ErrorKind, Result, Stream};

/// What stays with a driver's stream as long as it exists.
#[derive(Debug)]
struct Numbering {
    progress: Arc<Progress>,
    /// What stands for it now, if anything does.
    stream: Mutex<Weak<Inner>>,
}

impl Stream {
    /// A default stream, of which each [`Devices`](crate::Devices) has its own: it is never captured.
    pub(crate) fn default_of(core: &Arc<Core>) -> Self {
        let raw = owned::Stream::default_of(&core.driver, core.index);
        let progress = Arc::new(Progress::new(raw.id(), core.index));
        Self::registered(core, raw, progress)
    }

    /// The stream that stands for a driver's stream. There is only ever one, and if it is gone its
    /// numbers go on: what others know of them stays true.
    ///
    /// # Errors
    /// [`ErrorKind::RuntimeMismatch`] while it is another [`Devices`](crate::Devices)' stream.
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
        // Anybody can put there what another stream has: one's work would count as the other's.
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
