//! Descriptions of launches for error reports.

use std::fmt;
use std::panic::Location;

use crate::Site;

/// Maximum number of operands recorded per launch.
const OPERANDS: usize = 4;
/// Maximum number of sizes recorded per operand.
const DIMS: usize = 4;

/// The dtype and the shape of an operand, without the sizes beyond [`DIMS`].
#[derive(Clone, Copy, Debug, Default)]
struct OperandShape {
    dtype: &'static str,
    ndim: usize,
    sizes: [usize; DIMS],
}

impl fmt::Display for OperandShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, size) in self.sizes.iter().take(self.ndim).enumerate() {
            write!(f, "{}{size}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str(if self.ndim > DIMS { ", ..]" } else { "]" })
    }
}

/// An op that was enqueued on a stream, with the shapes of its first operands.
#[derive(Clone, Copy, Debug)]
pub struct LaunchRecord {
    /// Name of the op.
    pub op: &'static str,
    /// Sequence number of the operation on its stream.
    pub number: u64,
    /// Source location of the call.
    pub location: &'static Location<'static>,
    /// Number of operands, including those beyond [`OPERANDS`].
    count: usize,
    operands: [OperandShape; OPERANDS],
}

impl LaunchRecord {
    /// Creates the record of a launch without operands.
    #[must_use]
    pub fn new(number: u64, Site { op, location }: Site) -> Self {
        Self { op, number, location, count: 0, operands: [OperandShape::default(); OPERANDS] }
    }

    /// Overwrites this record with another launch. `operands` yields a dtype name and a shape per operand. Does not
    /// allocate.
    #[inline]
    pub fn replace<'a>(
        &mut self,
        number: u64,
        site: Site,
        operands: impl Iterator<Item = (&'static str, &'a [usize])>,
    ) {
        (self.op, self.number, self.location, self.count) = (site.op, number, site.location, 0);
        for (dtype, sizes) in operands {
            if let Some(operand) = self.operands.get_mut(self.count) {
                (operand.dtype, operand.ndim) = (dtype, sizes.len());
                for (kept, size) in operand.sizes.iter_mut().zip(sizes) {
                    *kept = *size;
                }
            }
            self.count += 1;
        }
    }
}

impl fmt::Display for LaunchRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.op)?;
        for (i, operand) in self.operands.iter().take(self.count).enumerate() {
            write!(f, "{}{operand}", if i == 0 { "" } else { ", " })?;
        }
        let more = if self.count > OPERANDS { ", .." } else { "" };
        write!(f, "{more}) at {}", self.location)
    }
}

/// Launches on one stream that are not known to be complete.
#[derive(Clone, Debug)]
pub struct PendingLaunches {
    /// Display name of the stream.
    pub stream: String,
    /// The most recent launches, oldest first.
    pub launches: Vec<LaunchRecord>,
    /// Number of earlier operations without a record that are not known to be complete.
    pub older: u64,
}

impl fmt::Display for PendingLaunches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "launches on {} that are not known to be complete, oldest first:", self.stream)?;
        if self.older > 0 {
            write!(f, "\n  {} older operation(s) without a record", self.older)?;
        }
        self.launches.iter().try_for_each(|launch| write!(f, "\n  {launch}"))
    }
}
