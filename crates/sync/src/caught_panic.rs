//! Panics of the program's functions.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A caught panic. Its payload is leaked unless the panic is resumed: the payload belongs to the program, so its `Drop`
/// may panic, which would abort the process during another panic.
#[derive(Debug)]
pub struct CaughtPanic(ManuallyDrop<Box<dyn Any + Send>>);

impl CaughtPanic {
    /// Wraps the payload of a panic, as [`JoinHandle::join`](std::thread::JoinHandle::join) returns it.
    #[must_use]
    pub fn new(payload: Box<dyn Any + Send>) -> Self {
        Self(ManuallyDrop::new(payload))
    }

    /// Calls a function and catches its panic. The caller makes sure that values that the function leaves in an
    /// inconsistent state are not used.
    ///
    /// # Errors
    /// The panic, if `function` panics.
    pub fn catch<R>(function: impl FnOnce() -> R) -> Result<R, Self> {
        catch_unwind(AssertUnwindSafe(function)).map_err(Self::new)
    }

    /// Continues the panic.
    pub fn resume(self) -> ! {
        resume_unwind(ManuallyDrop::into_inner(self.0))
    }

    /// Returns the message of `panic!`, or `None` if the payload is not a text.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        let text = self.0.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| self.0.downcast_ref::<&str>().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_whose_drop_panics_is_leaked_or_resumed() {
        struct Payload;
        impl Drop for Payload {
            fn drop(&mut self) {
                panic!("the payload's drop");
            }
        }
        let caught = CaughtPanic::catch(|| std::panic::panic_any(Payload));
        assert_eq!(caught.unwrap_err().message(), None);
        let resumed = CaughtPanic::catch(|| {
            CaughtPanic::catch(|| panic!("{} text", "a")).unwrap_or_else(|panic| panic.resume())
        });
        assert_eq!(resumed.unwrap_err().message(), Some("a text"));
        assert_eq!(CaughtPanic::catch(|| 1).unwrap(), 1);
    }
}
