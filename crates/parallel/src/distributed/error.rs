//! Errors of process groups.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use warpline::{Error, ErrorKind};

use super::StoreError;

/// The reason why a process group failed: the source of an error of the kind [`ErrorKind::ProcessGroup`], or of the
/// kind [`ErrorKind::Collective`] for results that cannot be used.
///
/// ```
/// use warpline_parallel::distributed::{GroupError, InitOptions};
///
/// let options = InitOptions::from_env(());
/// if let Err(error) = options
///     && let Some(GroupError::Environment { problems }) = error.find()
/// {
///     println!("{problems:?}");
/// }
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// Environment variables that describe this process's rank are missing or invalid.
    #[error(
        "{}. A launcher sets these variables (`warpline-run`, `torchrun --no-python`, \
         `srun`, `mpirun`); or pass the values to `InitOptions::new`", problems.join("; ")
    )]
    Environment {
        /// A sentence for each missing or invalid variable.
        problems: Vec<String>,
    },
    /// The group could not be formed, for example because not all ranks arrived in time.
    #[error("rank {rank} of {world_size}: {reason}{}", RankList(missing, "; missing: "))]
    Init {
        /// The rank that reports the error.
        rank: usize,
        /// Number of ranks of the group.
        world_size: usize,
        /// Description of the cause.
        reason: String,
        /// The ranks that did not arrive.
        missing: Vec<usize>,
    },
    /// A collective did not complete within the timeout, although all ranks responded.
    #[error("{0}")]
    CollectiveTimeout(Arc<Failure>),
    /// Another rank or the store is gone or has failed, NCCL has reported an error, or the calls of CPU ranks differ.
    #[error("{0}")]
    PeerFailed(Arc<Failure>),
    /// The closure of a rank failed ([`spawn`](super::spawn)).
    #[error("rank {rank}: {source}")]
    Rank {
        /// Number of the rank.
        rank: usize,
        /// Error of the closure.
        source: Error,
    },
    /// The ranks made different calls. Detected in debug mode, before anything was launched.
    #[error(
        "rank {rank}: collective {seq} is {call} here, but {}; nothing was launched",
        differing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    Mismatch {
        /// The rank that reports the error.
        rank: usize,
        /// Sequence number of the collective in the group.
        seq: u64,
        /// Call of this rank.
        call: String,
        /// Calls of the ranks that differ.
        differing: Vec<RankCall>,
    },
}

/// Writes the same message as `Display`, because `unwrap`, and a `main` that returns an error, print the `Debug` form.
impl fmt::Debug for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<GroupError> for Error {
    #[track_caller]
    fn from(error: GroupError) -> Self {
        let op = match &error {
            GroupError::Environment { .. } | GroupError::Init { .. } => "init_process_group",
            // The message already names the call and its location.
            _ => return Self::unlocated(ErrorKind::ProcessGroup).with_source(Arc::new(error)),
        };
        ErrorKind::ProcessGroup.of(op).with_source(Arc::new(error))
    }
}

/// Converts to [`ErrorKind::ProcessGroup`] with the `StoreError` as its source.
impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::unlocated(ErrorKind::ProcessGroup).with_source(Arc::new(error))
    }
}

impl GroupError {
    /// Returns the group's failure that `error` reports: the content of [`GroupError::CollectiveTimeout`] or
    /// [`GroupError::PeerFailed`] among its sources.
    #[must_use]
    pub fn failure(error: &Error) -> Option<&Failure> {
        match error.find()? {
            Self::CollectiveTimeout(failure) | Self::PeerFailed(failure) => Some(failure),
            _ => None,
        }
    }
}

/// A call of another rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankCall {
    /// Number of the rank.
    pub rank: usize,
    /// Description of the call that differs. If the rank has not made its call, the text says so and describes the
    /// rank's last call.
    pub call: String,
}

impl fmt::Display for RankCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} {}", self.rank, self.call)
    }
}

/// The failure for which a group's communicator was aborted. All further calls on the group return this failure. The
/// process can continue and form a new group.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Name of the group.
    pub group: String,
    /// The rank that reports the failure.
    pub rank: usize,
    /// The oldest unfinished call of this rank, or its last call if all are finished. Empty if there is no call.
    pub op: String,
    /// Sequence number of that call in the group.
    pub seq: u64,
    /// Source location of that call.
    pub location: String,
    /// The event that revealed the failure.
    pub reason: String,
    /// Ranks that published no record of their calls, because they are dead or have dropped the group. If the store is
    /// lost, also the rank that hosts it.
    pub missing: Vec<usize>,
    /// Ranks whose calls do not match this rank's calls up to the unfinished one.
    pub differing: Vec<RankCall>,
    /// Timeout of the group.
    pub timeout: Duration,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of group {:?}: ", self.rank, self.group)?;
        if !self.op.is_empty() {
            write!(f, "{}, number {}, called at {}: ", self.op, self.seq, self.location)?;
        }
        write!(f, "{}{}", self.reason, RankList(&self.missing, "; missing: "))?;
        for differing in &self.differing {
            write!(f, "; {differing}")?;
        }
        f.write_str(". The group was aborted; create a new group to continue")
    }
}

/// Text before a list of ranks whose state is unknown because the store failed.
pub(super) const UNKNOWN_RANKS: &str = "; the store could not be asked about ";

/// Prints a text and a list of ranks. Prints nothing if the list is empty.
pub(super) struct RankList<'a>(pub(super) &'a [usize], pub(super) &'static str);

impl fmt::Display for RankList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, rank) in self.0.iter().enumerate() {
            write!(f, "{}rank {rank}", if i == 0 { self.1 } else { ", " })?;
        }
        Ok(())
    }
}
