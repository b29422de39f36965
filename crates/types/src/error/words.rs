//! Parts of error messages that depend on a value.

use std::fmt;

use crate::Device;

/// Prints the length of a range of indices, unless the length is 1.
pub(super) struct Length(pub(super) usize);

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 1 { Ok(()) } else { write!(f, " with length {}", self.0) }
    }
}

/// Prints why a shape with negative sizes is invalid.
pub(super) struct Negative<'a>(pub(super) &'a [isize]);

impl fmt::Display for Negative<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.iter().find(|&&size| size < -1) {
            None if self.0.contains(&-1) && self.0.contains(&0) => {
                f.write_str(": next to a 0, -1 can be any size; name it")
            }
            None => Ok(()),
            Some(size) => {
                write!(f, ": a size cannot be {size}; -1 is inferred from the other sizes")
            }
        }
    }
}

/// Two devices; with the name of a parameter, those of a module's input and of this parameter.
pub(super) struct Devices<'a>(pub(super) Device, pub(super) Device, pub(super) &'a str);

impl fmt::Display for Devices<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(first, second, parameter) = self;
        if parameter.is_empty() {
            return write!(f, "{first} and {second}");
        }
        write!(f, "{first} (the input) and {second} (the parameter `{parameter}`)")
    }
}
