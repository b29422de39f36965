//! Reports of kernels that violated their footprints.

use std::fmt;
use std::panic::Location;

/// A violation of a kernel's declared footprints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FootprintViolation {
    /// Name of the op.
    pub op: &'static str,
    /// Source line of the launch.
    pub location: &'static Location<'static>,
    /// Kind of violation.
    pub kind: ViolationKind,
    /// Index of the operand whose hull contains the byte or is next to it.
    pub operand: usize,
    /// Offset of the byte from the operand's pointer, in bytes. For an undeclared read, the byte is
    /// the first written byte whose value depends on the read.
    pub offset: i64,
}

/// The kind of a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViolationKind {
    /// The kernel changed a byte without a declared write.
    UndeclaredWrite,
    /// The kernel did not write an element that it declared to write.
    MissingWrite,
    /// The kernel's output depends on bytes without a declared read.
    UndeclaredRead,
}

impl fmt::Display for FootprintViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            ViolationKind::UndeclaredWrite => "wrote a byte that it did not declare to write",
            ViolationKind::MissingWrite => "did not write an element that it declared to write",
            ViolationKind::UndeclaredRead => "read something that it did not declare to read",
        };
        let Self { op, location, operand, offset, .. } = self;
        write!(f, "`{op}` at {location} {what}: operand {operand}, byte {offset}")
    }
}
