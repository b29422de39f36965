//! What can go wrong with process groups.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::StoreError;

/// The result of an operation on a process group.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a process group could not do what was asked.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The environment does not say who this process is, or says nonsense.
    #[error(
        "init_process_group: {}. A launcher sets these (`warpline-run`, `torchrun --no-python`, \
         `srun`, `mpirun`); or give them from code with `InitOptions::new`", problems.join("; ")
    )]
    Environment {
        /// Each variable that is missing or cannot be used, with why.
        problems: Vec<String>,
    },
    /// Not all ranks came together.
    #[error(
        "init_process_group: rank {rank} of {world_size}: {reason}{}",
        Ranks(missing, "; not heard of: ")
    )]
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
    /// An argument that cannot be accepted.
    #[error("{op} on rank {rank}: {reason}")]
    InvalidArgument {
        /// The operation.
        op: &'static str,
        /// Whose call it was.
        rank: usize,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// The tensors or the launch.
    #[error(transparent)]
    Op(#[from] warpline::Error),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Its message: what `main` prints of the error that it returns, and `unwrap` of the one that it meets.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<warpline_stream::StreamError> for Error {
    fn from(error: warpline_stream::StreamError) -> Self {
        Self::Op(error.into())
    }
}

/// For closures that return the tensors' own errors, such as that of a graph's capture: what is not
/// one is kept as text.
impl From<Error> for warpline::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Op(error) => error,
            other => Self::invalid("process group", other.to_string()),
        }
    }
}

impl Error {
    /// The failure of the group behind this error, if it is one.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::CollectiveTimeout(failure) | Self::PeerFailed(failure) => Some(failure),
            // Of what was to be written.
            Self::Op(warpline::Error::Collective { cause, .. }) => {
                cause.downcast_ref::<Self>()?.failure()
            }
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
