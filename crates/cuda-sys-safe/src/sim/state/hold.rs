//! A place in a stream that holds back the work behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// A place in a stream that is not passed before [`Hold::open`], or before a call has to wait for
/// it: such a call opens it, which [`Hold::was_needed`] tells.
///
/// ```
/// use warpline_cuda_sys_safe::{Driver, StreamHandle, sim::SimConfig};
/// let sim = SimConfig::new(1).build();
/// let stream = StreamHandle::default_of(0);
/// let hold = sim.hold(stream)?;
/// // SAFETY: the default stream always exists.
/// assert!(!unsafe { sim.stream_query(stream) }?);
/// assert!(!hold.was_needed());
/// sim.synchronize(0)?;
/// assert!(hold.was_needed());
/// # Ok::<(), warpline_cuda_sys_safe::DriverError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Hold(Arc<AtomicU8>);

const CLOSED: u8 = 0;

const OPEN: u8 = 1;

const NEEDED: u8 = 2;

impl Hold {
    /// Creates a closed hold.
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU8::new(CLOSED)))
    }

    /// Lets the stream go on.
    pub fn open(&self) {
        self.leave_closed(OPEN);
    }

    /// Whether the stream may go on, whoever let it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire) != CLOSED
    }

    /// Whether a call that had to wait let the stream go on.
    #[must_use]
    pub fn was_needed(&self) -> bool {
        self.0.load(Ordering::Acquire) == NEEDED
    }

    pub(crate) fn need(&self) {
        self.leave_closed(NEEDED);
    }

    fn leave_closed(&self, to: u8) {
        // Whoever was first has opened it.
        let _ = self.0.compare_exchange(CLOSED, to, Ordering::AcqRel, Ordering::Acquire);
    }
}
