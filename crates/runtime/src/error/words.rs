//! Parts of the errors' sentences.

use std::fmt;
use std::panic::Location;

/// How many indices there are from one on, where it is not that one alone.
pub(super) struct Long(pub(super) usize);

impl fmt::Display for Long {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 1 { Ok(()) } else { write!(f, " with length {}", self.0) }
    }
}

/// An op's name before a sentence that does without.
pub(super) struct Named(pub(super) &'static str);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "{}: ", self.0) }
    }
}

/// The size that none can be, or that anything could be, where that is what is wrong.
pub(super) struct Negative<'a>(pub(super) &'a [isize]);

impl fmt::Display for Negative<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.iter().find(|&&size| size < -1) {
            None if self.0.contains(&-1) && self.0.contains(&0) => {
                f.write_str(": next to a 0, -1 can be any size; name it")
            }
            None => Ok(()),
            Some(size) => {
                write!(f, ": a size cannot be {size}; -1 is what follows from the others")
            }
        }
    }
}

/// Where the op was called, if that is known.
pub(super) struct At(pub(super) Option<&'static Location<'static>>);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |location| write!(f, " (called at {location})"))
    }
}
