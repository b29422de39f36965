//! Replacements for types of the standard library that shuttle lacks.

use std::sync::PoisonError;

use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicBool, Ordering};

/// Marks a point where the checker may switch to another thread. Does nothing in builds without the checker.
pub fn let_others_run() {
    // The checker may switch threads at any access to an atomic. A yield would tell the checker that this thread has to
    // wait.
    AtomicBool::new(false).load(Ordering::SeqCst);
}

/// A [`std::sync::OnceLock`] for the checker, which may switch threads at each use and inside the closure of
/// [`get_or_init`](OnceLock::get_or_init).
#[derive(Debug)]
pub struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    /// Held during initialization.
    making: Mutex<()>,
}

impl<T> OnceLock<T> {
    /// Creates an empty cell.
    #[must_use]
    pub const fn new() -> Self {
        Self { value: std::sync::OnceLock::new(), making: Mutex::new(()) }
    }

    /// Returns the value, or `None` if the cell is empty.
    pub fn get(&self) -> Option<&T> {
        let_others_run();
        self.value.get()
    }

    /// Returns the value for modification, or `None` if the cell is empty.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.value.get_mut()
    }

    /// Consumes the cell and returns its value.
    pub fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }

    /// Takes the value and leaves the cell empty.
    pub fn take(&mut self) -> Option<T> {
        self.value.take()
    }

    /// Stores a value in an empty cell.
    ///
    /// # Errors
    /// The unchanged `value`, if the cell already has a value.
    pub fn set(&self, value: T) -> Result<(), T> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        self.value.set(value)
    }

    /// Returns the value, after initializing an empty cell with `make`.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        // Threads block on `making`, never inside the standard library's `OnceLock`, where the checker cannot switch
        // threads.
        self.value.get_or_init(make)
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// A [`std::sync::LazyLock`] for statics. Each execution of a test computes its own value, because executions cannot
/// share the checker's locks.
#[derive(Debug)]
pub struct LazyLock<T: Sync>(shuttle::lazy_static::Lazy<T>);

impl<T: Sync> LazyLock<T> {
    /// Creates a lazy value that `make` computes on first use.
    #[must_use]
    pub const fn new(make: fn() -> T) -> Self {
        Self(shuttle::lazy_static::Lazy::new(make))
    }

    /// Returns the value of this execution, after computing it on first use.
    pub fn force(this: &'static Self) -> &'static T {
        this.0.get()
    }
}
