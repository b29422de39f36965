//! Parts of error messages that depend on a value.

use std::fmt;

use crate::Device;

/// Prints the length of a range of indices, unless the length is 1.
pub(super) struct RangeLength(pub(super) usize);

impl fmt::Display for RangeLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 1 { Ok(()) } else { write!(f, " with length {}", self.0) }
    }
}

/// Prints the reason why a shape with negative sizes is invalid.
pub(super) struct NegativeSizes<'a>(pub(super) &'a [isize]);

impl fmt::Display for NegativeSizes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.iter().find(|&&size| size < -1) {
            None if self.0.contains(&-1) && self.0.contains(&0) => {
                f.write_str(": -1 can be any size, because another size is 0; give the size")
            }
            None => Ok(()),
            Some(size) => {
                write!(f, ": a size cannot be {size}; only -1 is inferred from the other sizes")
            }
        }
    }
}

/// Prints the devices of two operands, or of a module's input and its parameter if the parameter's name is not empty.
pub(super) struct DevicePair<'a>(pub(super) Device, pub(super) Device, pub(super) &'a str);

impl fmt::Display for DevicePair<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(first, second, parameter) = self;
        if parameter.is_empty() {
            return write!(f, "{first} and {second}");
        }
        write!(f, "{first} (the input) and {second} (the parameter `{parameter}`)")
    }
}
