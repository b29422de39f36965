//! The token with which the launch path vouches for work that it enqueues.

/// Proof that the holder may report enqueued work to safe code. A token takes no space, and cannot
/// be made without `unsafe`.
///
/// The layer that numbers the work of streams forbids `unsafe`, so it cannot check whether work was
/// enqueued or is done. It trusts the holder of the token, and frees memory, or lets the host read
/// memory, on that basis.
#[derive(Clone, Copy, Debug)]
pub struct LaunchToken(());

impl LaunchToken {
    /// Creates a token.
    ///
    /// # Safety
    /// The holder guarantees for each call that takes the token:
    /// - Work that is reported as done is done, and so is all earlier work on that stream.
    /// - A capture is begun only if the captured work may use its memory at every replay
    ///   ([`GraphExec::launch`](super::GraphExec::launch)).
    /// - A condition is used in the graph in which it was created. The capture of a body ends before
    ///   the capture of the graph that the body belongs to.
    /// - A stream joins a capture only if all code that enqueues work on the stream knows of it.
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self(())
    }
}
