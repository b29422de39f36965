//! The token with which the launch path vouches for the work that it enqueues.

/// Lets its holder tell safe code what it has enqueued. It takes no space, and cannot be made without
/// `unsafe`.
///
/// The layer that numbers the work of streams forbids `unsafe`, and so cannot see whether work was
/// really enqueued or is really done: it takes the word of whoever enqueues it, and frees memory, or
/// lets the host read it, on that word.
#[derive(Clone, Copy, Debug)]
pub struct LaunchToken(());

impl LaunchToken {
    /// Makes one.
    ///
    /// # Safety
    /// The holder vouches for each call that it gives the token to:
    /// - what it says to be done is done, and with it all that was enqueued on that stream before;
    /// - it begins a capture only if it sees to it that whatever is captured may use its memory at
    ///   every replay ([`GraphExec::launch`](super::GraphExec::launch));
    /// - it lets a stream join a capture only where all who enqueue on that stream are told.
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self(())
    }
}
