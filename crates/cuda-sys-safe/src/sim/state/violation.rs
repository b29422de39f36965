//! Reports of kernels that did not keep to their footprints.

use std::fmt;
use std::panic::Location;

/// A kernel did not keep to its declared footprints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FootprintViolation {
    /// The op.
    pub op: &'static str,
    /// Where it was launched.
    pub location: &'static Location<'static>,
    /// What it did.
    pub kind: ViolationKind,
    /// The operand whose hull the byte lies in or next to.
    pub operand: usize,
    /// The byte's offset from that operand's pointer. An undeclared read shows in what was written:
    /// it is the first written byte whose value depends on it.
    pub offset: i64,
}

/// What a kernel did against its declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViolationKind {
    /// It changed a byte that it had not declared to write.
    UndeclaredWrite,
    /// It left alone an element that it had declared to write.
    MissingWrite,
    /// What it wrote depends on bytes that it had not declared to read.
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
