//! Errors of `DistributedDataParallel`.

use std::fmt;
use std::sync::Arc;

use warpline::{Device, Error, ErrorKind};

/// The reason why [`DistributedDataParallel`](super::DistributedDataParallel) failed: the source of an error of the
/// kind [`ErrorKind::ProcessGroup`]. A failed all-reduce is a [`GroupError`](crate::distributed::GroupError), whose
/// call names the bucket and its parameters.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DdpError {
    /// The module has no parameter that requires a gradient.
    #[error(
        "the module has no parameter that requires a gradient, so there is nothing to reduce; call it directly"
    )]
    NoParameters,
    /// A parameter or buffer is not on the group's device.
    #[error("{name} is on {found}, but the group's tensors are on {expected}; call `to` first")]
    WrongDevice {
        /// Name of the parameter or buffer.
        name: String,
        /// Device of the parameter or buffer.
        found: Device,
        /// Device of the group.
        expected: Device,
    },
    /// The ranks have different models or options.
    #[error("rank {rank}: the ranks have different models: {}", differing.join("; "))]
    Differs {
        /// The rank that reports the error.
        rank: usize,
        /// The first difference from each other rank, with the names of the parameters.
        differing: Vec<String>,
    },
    /// Parameters got no gradient in the previous iteration, so their buckets were not reduced.
    #[error(
        "rank {rank}: the reduction of the previous iteration has not finished, because these parameters got no \
         gradient: {}. Set find_unused_parameters if a backward pass may leave out parameters, and make sure that all \
         outputs of the forward pass take part in the loss", parameters.join(", ")
    )]
    NotReduced {
        /// The rank that reports the error.
        rank: usize,
        /// Names of the parameters.
        parameters: Vec<String>,
    },
    /// A parameter got a second gradient in one iteration.
    #[error(
        "rank {rank}: the gradient of {parameter} was ready twice in one iteration. The parameter is used in several \
         backward passes of the iteration, such as in a checkpoint; set static_graph if all iterations do the same"
    )]
    ReadyTwice {
        /// The rank that reports the error.
        rank: usize,
        /// Name of the parameter.
        parameter: String,
    },
    /// A parameter got more gradients than in the first iteration, although the graph was declared static.
    #[error(
        "rank {rank}: {parameter} got a gradient that the first iteration did not have, but static_graph declares that \
         all iterations are the same"
    )]
    GraphChanged {
        /// The rank that reports the error.
        rank: usize,
        /// Name of the parameter.
        parameter: String,
    },
    /// A communication hook returned a tensor of a different size than the bucket.
    #[error(
        "rank {rank}: the communication hook returned {found} elements for {bucket}, which has {expected}"
    )]
    HookResult {
        /// The rank that reports the error.
        rank: usize,
        /// Description of the bucket.
        bucket: String,
        /// Number of elements of the bucket.
        expected: usize,
        /// Number of returned elements.
        found: usize,
    },
    /// A rank has no more inputs, and [`JoinOptions`](super::JoinOptions) request an error in this case.
    #[error("rank {rank}: a rank has no more inputs, and throw_on_early_termination is set")]
    EarlyTermination {
        /// The rank that reports the error.
        rank: usize,
    },
}

/// Writes the same message as `Display`, because `unwrap`, and a `main` that returns an error, print the `Debug` form.
impl fmt::Debug for DdpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<DdpError> for Error {
    #[track_caller]
    fn from(error: DdpError) -> Self {
        ErrorKind::ProcessGroup.of("DistributedDataParallel").with_source(Arc::new(error))
    }
}
