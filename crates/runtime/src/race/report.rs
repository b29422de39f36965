//! Races as text.

use std::fmt;
use std::sync::Arc;

use warpline_stream::Stream;

use super::{Race, RacingUse};
use crate::{Error, ErrorKind, Site};

impl RacingUse {
    fn kind(&self) -> &'static str {
        match (self.access.reads(), self.access.writes()) {
            (true, true) => "input and output",
            (false, true) => "output",
            _ => "input",
        }
    }

    fn stream_name(&self) -> String {
        self.stream.as_ref().map_or_else(|| "the host".into(), Stream::to_string)
    }
}

impl fmt::Display for RacingUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, location, argument, .. } = self;
        match &self.printed_at {
            Some(line) => write!(f, "`{op}` at {line}")?,
            None => write!(f, "`{op}` at {location}")?,
        }
        write!(f, " (argument {argument}, {}) on {}", self.kind(), self.stream_name())
    }
}

impl Race {
    /// Returns whether the memory was freed and allocated again between the two accesses.
    #[must_use]
    pub fn is_reuse(&self) -> bool {
        self.freed.is_some()
    }

    /// Returns the remedy: the wait or call that would order the two accesses, and where to put it
    /// in the program.
    #[must_use]
    pub fn mend(&self) -> String {
        let (first, second) = (&self.first, &self.second);
        let Some(late) = &first.stream else {
            return format!("call `{}` after `{}`", second.op, first.op);
        };
        let Some(stream) = &second.stream else {
            return format!(
                "synchronise {late}, or an event recorded on it after `{}`, before `{}`",
                first.op, second.op
            );
        };
        match &self.freed {
            // The allocator orders the reuse of memory only with the stream of the allocation.
            Some((allocated, alloc_stream)) if alloc_stream.as_ref() != Some(late) => format!(
                "call `record_stream` for {late} on the tensor that was allocated at {allocated}, \
                 before it is dropped"
            ),
            _ => format!(
                "let {stream} wait for {late} (`wait_stream`, or `wait_event` for an event \
                 recorded after `{}`) before `{}`",
                first.op, second.op
            ),
        }
    }

    /// Returns a drawing of the two streams, one above the other, with time from left to right.
    #[must_use]
    pub fn picture(&self) -> String {
        let (above, below) = (self.first.stream_name(), self.second.stream_name());
        let width = above.chars().count().max(below.chars().count());
        let (first, second) = (format!("[{}]", self.first.op), format!("[{}]", self.second.op));
        let gap = first.chars().count() + 2;
        let line = |n: usize| "─".repeat(n);
        let (tail, lead) = (line(second.chars().count() + 2), line(gap + 2));
        format!(
            "{above:width$}  ──{first}──{tail}▶\n\
             {:width$}  {:gap$}╳ nothing orders them\n\
             {below:width$}  {lead}{second}──▶",
            "", ""
        )
    }
}

impl std::error::Error for Race {}

/// Converts a race to the error of its second access.
impl From<Race> for Error {
    fn from(race: Race) -> Self {
        let site = Site { op: race.second.op, location: race.second.location };
        Self::new(ErrorKind::Race, site).with_source(Arc::new(race))
    }
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.second.access.writes() { "writes" } else { "reads" };
        let kind = if self.certain { "race" } else { "possible race" };
        let may = if self.certain { "memory" } else { "memory of a view that may overlap memory" };
        write!(f, "{kind}: {} {verb} {may} that {} may still be using; ", self.second, self.first)?;
        write!(
            f,
            "bytes {} to {} of the {} allocated at {}",
            self.bytes.start, self.bytes.end, self.storage_bytes, self.allocated
        )?;
        if let Some((before, alloc_stream)) = &self.freed {
            let early = if *alloc_stream == self.first.stream { "" } else { " too early" };
            write!(f, ", given out again{early} after those allocated at {before} were freed")?;
        }
        write!(f, ". To order them, {}", self.mend())?;
        if f.alternate() {
            write!(f, "\n{}", self.picture())?;
        }
        Ok(())
    }
}
