//! What is reported when two uses of the same memory are not ordered.

use std::fmt;

use warpline_stream::Stream;

use crate::storage::{Site, Use};

/// Two uses of a storage on different streams, at least one a write, that no event, stream order
/// or synchronisation orders.
#[derive(Clone, Debug)]
pub struct Race {
    /// The use that was enqueued first.
    pub first: Site,
    /// Its stream.
    pub first_stream: Stream,
    /// The use that should have waited.
    pub second: Site,
    /// Its stream.
    pub second_stream: Stream,
    /// Whether the second use writes.
    pub second_writes: bool,
}

impl Race {
    pub(crate) fn new(first: &Use, stream: &Stream, second: Site, second_writes: bool) -> Self {
        Self {
            first: first.site,
            first_stream: first.stream.clone(),
            second,
            second_stream: stream.clone(),
            second_writes,
        }
    }
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.second_writes { "writes" } else { "reads" };
        write!(
            f,
            "race: `{}` at {} on {} {verb} memory that `{}` at {} on {} may still be using; let \
             the second stream wait for the first (`wait_stream`) before that call",
            self.second.op,
            self.second.location,
            self.second_stream,
            self.first.op,
            self.first.location,
            self.first_stream,
        )
    }
}
