//! What the checker does not have.

use std::sync::PoisonError;

use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicBool, Ordering};

/// Where the checker may go on with another thread. Nothing without it.
pub fn let_others_run() {
    // Any access of an atomic is such a place. To yield would say that nothing is to be done here.
    AtomicBool::new(false).load(Ordering::SeqCst);
}

/// [`std::sync::OnceLock`], whose every use lets other threads run, and whose closure may too.
#[derive(Debug)]
pub struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    /// Held while a value is made.
    making: Mutex<()>,
}

impl<T> OnceLock<T> {
    /// An empty one.
    #[must_use]
    pub const fn new() -> Self {
        Self { value: std::sync::OnceLock::new(), making: Mutex::new(()) }
    }

    /// What is in it.
    pub fn get(&self) -> Option<&T> {
        let_others_run();
        self.value.get()
    }

    /// What is in it, to be changed.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.value.get_mut()
    }

    /// What is in it, which is gone then.
    pub fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }

    /// Takes out what is in it.
    pub fn take(&mut self) -> Option<T> {
        self.value.take()
    }

    /// Puts something in.
    ///
    /// # Errors
    /// Gives it back where there is something already.
    pub fn set(&self, value: T) -> Result<(), T> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        self.value.set(value)
    }

    /// What is in it, made now if need be.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        // The others wait for the lock, so that none is stopped inside the standard library's.
        self.value.get_or_init(make)
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// [`std::sync::LazyLock`] for a static. Each execution makes a value of its own, because the checker's
/// locks cannot be shared by executions.
#[derive(Debug)]
pub struct LazyLock<T: Sync>(shuttle::lazy_static::Lazy<T>);

impl<T: Sync> LazyLock<T> {
    /// Creates a lazy value that `make` computes on first use.
    #[must_use]
    pub const fn new(make: fn() -> T) -> Self {
        Self(shuttle::lazy_static::Lazy::new(make))
    }

    /// Returns this execution's value.
    pub fn force(this: &'static Self) -> &'static T {
        this.0.get()
    }
}
