//! A marker in a stream that holds back later work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// A marker in a stream that holds back later work. [`Hold::open`] lets the work run. A call that
/// must wait for the work also lets it run. [`Hold::was_needed`] returns `true` after such a call.
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

    /// Lets the stream continue.
    pub fn open(&self) {
        self.leave_closed(OPEN);
    }

    /// Returns `true` if the stream may continue, by [`Hold::open`] or because a call had to wait.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire) != CLOSED
    }

    /// Returns `true` if the stream may continue because a call had to wait.
    #[must_use]
    pub fn was_needed(&self) -> bool {
        self.0.load(Ordering::Acquire) == NEEDED
    }

    pub(crate) fn need(&self) {
        self.leave_closed(NEEDED);
    }

    fn leave_closed(&self, to: u8) {
        // The first opener wins.
        let _ = self.0.compare_exchange(CLOSED, to, Ordering::AcqRel, Ordering::Acquire);
    }
}
