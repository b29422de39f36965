//! The simulated NCCL: communicators of simulated devices.
//!
//! Ranks are threads with one [`SimDriver`] or several, or processes. Whoever asks for a
//! [`UniqueId`](super::UniqueId) has a [`Hub`] from then on, which knows what each rank has called,
//! has what they gave, and combines it; a rank's own end is a [`Seat`].
//!
//! # What it imitates
//!
//! **Communicators.** One is `Ready` once all ranks have joined. No call blocks. What a rank enqueues on
//! one communicator runs in that order, whatever the streams and graphs. Calls without elements do
//! nothing, but sends and receives. After an error nothing more can be enqueued.
//!
//! **Calls.** They run in stream order as any work does. A group reads its inputs when it begins; then
//! its stream stands until all other ranks that it needs have begun theirs, and then outputs are
//! written. Sends and receives are matched in their order between two ranks, other calls in their
//! order among all ranks. Elements are combined in the order of ranks, halves in `f32`; integers wrap,
//! and their mean is truncated.
//!
//! **Progress.** As on hardware, other ranks' work goes on while a thread waits: whoever waits for a
//! call, or asks whether it is done, has the other ranks' drivers run what it needs and no more, and in
//! other processes a thread does that for it.
//!
//! **Ends.** When a rank that others wait for is gone, aborted or dead, their state is
//! `ncclRemoteError`. What they have enqueued stands until they abort, and then ends without a result.
//! A wait on the host that lasts longer than
//! [`SimConfig::collective_timeout`](crate::sim::SimConfig::collective_timeout) loses the device with
//! `LAUNCH_TIMEOUT`.
//!
//! # What it finds besides
//!
//! Ranks that call different things, or with another count, dtype, reduction or root: the state of all
//! of them is [`CollectiveMismatch`](crate::CollectiveMismatch), which names two ranks and what they
//! called. Real ones hang there, or mix up data.
//!
//! # What it does not imitate
//!
//! Sends of little data that are done before they are received. The rounding of sums of halves in
//! halves.

mod call;
mod codec;
mod driver;
mod hub;
mod matching;
mod process;
mod progress;
mod reduce;
mod seat;

pub(crate) use call::CallDesc;
pub(crate) use progress::{bump, help, version, wait};
pub(crate) use seat::{Advance, Outcome, Seat};
