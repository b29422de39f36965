//! Errors of process groups.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use warpline::{Error, ErrorKind};

use super::StoreError;

/// The reason why a process group failed: the source of an error of
/// [`ErrorKind::ProcessGroup`](warpline::ErrorKind::ProcessGroup), or of
/// [`ErrorKind::Collective`](warpline::ErrorKind::Collective) for results that cannot be used.
///
/// ```
/// use warpline_parallel::distributed::{GroupError, InitOptions};
///
/// let options = InitOptions::from_env();
/// if let Err(error) = options
///     && let Some(GroupError::Environment { problems }) = error.find()
/// {
///     println!("{problems:?}");
/// }
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// Variables of the environment that give this process's rank are missing or invalid.
    #[error(
        "{}. A launcher sets these (`warpline-run`, `torchrun --no-python`, \
         `srun`, `mpirun`); or give them from code with `InitOptions::new`", problems.join("; ")
    )]
    Environment {
        /// Each variable that is missing or cannot be used, with why.
        problems: Vec<String>,
    },
    /// Not all ranks came together.
    #[error("rank {rank} of {world_size}: {reason}{}", Ranks(missing, "; not heard of: "))]
    Init {
        /// Who says so.
        rank: usize,
        /// How many ranks there should be.
        world_size: usize,
        /// What failed.
        reason: String,
        /// The ranks that have not come.
        missing: Vec<usize>,
    },
    /// A collective was not done in time, though all ranks are there.
    #[error("{0}")]
    CollectiveTimeout(Arc<Failure>),
    /// Another rank, or the store, is gone or has failed.
    #[error("{0}")]
    PeerFailed(Arc<Failure>),
    /// The ranks' calls do not match; found in debug mode, before anything was launched.
    #[error(
        "rank {rank}: collective {seq} is {call} here, but {}; nothing was launched",
        differing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    Mismatch {
        /// Who says so.
        rank: usize,
        /// Its number in the group.
        seq: u64,
        /// This rank's call.
        call: String,
        /// Those of the ranks that differ.
        differing: Vec<RankCall>,
    },
}

/// Its message: what `main` prints of the error that it returns, and `unwrap` of the one that it meets.
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
            // The message names the group's call.
            _ => return Self::unlocated(ErrorKind::ProcessGroup).with_source(Arc::new(error)),
        };
        ErrorKind::ProcessGroup.of(op).with_source(Arc::new(error))
    }
}

/// [`ErrorKind::ProcessGroup`] with this source.
impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::unlocated(ErrorKind::ProcessGroup).with_source(Arc::new(error))
    }
}

impl GroupError {
    /// The failure of the group that an error reports, if there is one.
    #[must_use]
    pub fn failure(error: &Error) -> Option<&Failure> {
        match error.find()? {
            Self::CollectiveTimeout(failure) | Self::PeerFailed(failure) => Some(failure),
            _ => None,
        }
    }
}

/// What another rank called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankCall {
    /// Which rank.
    pub rank: usize,
    /// Its call, with where it was made; or what it did instead.
    pub call: String,
}

impl fmt::Display for RankCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} {}", self.rank, self.call)
    }
}

/// Why a group's communicator was aborted. The group refuses all further calls with this; the process
/// may go on, and make a new one.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The group.
    pub group: String,
    /// Who says so: its rank in the group.
    pub rank: usize,
    /// This rank's oldest unfinished call, or its last where all are finished; empty if none.
    pub op: String,
    /// That call's number in the group.
    pub seq: u64,
    /// Where it was made.
    pub location: String,
    /// What was noticed.
    pub reason: String,
    /// The ranks that published no record of their calls: dead, or stuck outside the device's work.
    pub missing: Vec<usize>,
    /// The ranks whose calls are not the ones that this rank's unfinished call needs.
    pub differing: Vec<RankCall>,
    /// What was allowed.
    pub timeout: Duration,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of group {:?}: ", self.rank, self.group)?;
        if !self.op.is_empty() {
            write!(f, "{}, number {}, called at {}: ", self.op, self.seq, self.location)?;
        }
        write!(f, "{}{}", self.reason, Ranks(&self.missing, "; not heard of: "))?;
        for differing in &self.differing {
            write!(f, "; {differing}")?;
        }
        f.write_str(". The group was aborted; make a new one to go on")
    }
}

/// Comes before the ranks of which nothing is known, because the store failed.
pub(super) const UNKNOWN: &str = "; the store could not be asked about ";

/// A list of ranks after some text; nothing where there are none.
pub(super) struct Ranks<'a>(pub(super) &'a [usize], pub(super) &'static str);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, rank) in self.0.iter().enumerate() {
            write!(f, "{}rank {rank}", if i == 0 { self.1 } else { ", " })?;
        }
        Ok(())
    }
}
