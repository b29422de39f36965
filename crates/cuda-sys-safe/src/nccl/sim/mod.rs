//! The simulated NCCL: communicators of simulated devices.
//!
//! Ranks are threads, with one [`SimDriver`] or several, or processes. The process that creates a
//! [`UniqueId`](super::UniqueId) owns its [`Hub`]. The hub knows the calls of all ranks, holds
//! their inputs and combines them. Each rank has a [`Participant`] in its own process.
//!
//! # Behaviour
//!
//! **Communicators.** A communicator is `Ready` when all ranks have joined. No call blocks.
//! Operations of a rank on one communicator run in the order in which they were enqueued, on any
//! streams and in any graphs. Calls with zero elements do nothing, except sends and receives. After
//! an error, no operation can be enqueued.
//!
//! **Calls.** Operations run in stream order, like other work. A group reads its inputs when it
//! begins. Its stream then stops until all other ranks that the group needs have begun their
//! groups, and the outputs are written. Sends and receives are matched in their order between two
//! ranks, and other calls in their order among all ranks. Elements are combined in the order of
//! ranks, with `f16` and `bf16` summed in `f32`. Integers wrap, and their mean is truncated.
//!
//! **Progress.** As on hardware, other ranks' work continues while a thread waits. A thread that
//! waits for an operation, or queries it, makes the other ranks' drivers run the work that the
//! operation needs, and no other work. In other processes, a thread of those processes runs this
//! work.
//!
//! **Time.** In virtual time, a group begins when the last rank that it needs begins. It ends after the time of its calls on
//! the links of [`Topology`](crate::sim::Topology). Ranks of several drivers or processes must have the same topology:
//! devices of the same machine number are on the same machine.
//!
//! **Departed ranks.** If a rank is aborted or dead and another rank waits for it, the state of all
//! remaining ranks is `ncclRemoteError`. Their blocked operations stay blocked until these ranks
//! abort, and then end without a result. A host wait without progress that takes longer than
//! [`SimConfig::collective_timeout`](crate::sim::SimConfig::collective_timeout) loses the device
//! with `LAUNCH_TIMEOUT`.
//!
//! # Additional checks
//!
//! If ranks make different calls, or pass different counts, dtypes, reductions or roots, the state
//! of all ranks is [`CollectiveMismatch`](crate::CollectiveMismatch), which names two ranks and
//! their calls. The NCCL library hangs or mixes up data in this case.
//!
//! # Differences from NCCL
//!
//! NCCL may complete a small send before the data is received, and may round sums of `f16` and
//! `bf16` in these types.

mod call;
mod codec;
mod driver;
mod hub;
mod matching;
mod participant;
mod process;
mod progress;

pub(crate) use call::{CallDesc, CollectiveKind};
pub(crate) use participant::{Advance, GroupOutcome, Participant};
pub(crate) use progress::{change_count, drive, notify_change, wait_for_change};
