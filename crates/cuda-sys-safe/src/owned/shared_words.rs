//! Words through which streams of several processes wait for each other.

use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{SharedHostMemory, Stream, same_driver};
use crate::{Driver, DriverError, OsHandle, Result};

/// Words in host memory that several processes share, page-locked in each process. A stream writes
/// a word after its work, and streams of other processes wait on the GPU for the value, while their
/// host threads continue.
///
/// Any process that has opened the words may write to them at any time.
#[derive(Debug)]
pub struct SharedWords {
    memory: SharedHostMemory,
    driver: Arc<dyn Driver>,
}

impl SharedWords {
    /// Allocates one page of zeros.
    ///
    /// # Errors
    /// The same as [`SharedHostMemory::new`].
    #[track_caller]
    pub fn new(driver: &Arc<dyn Driver>, device: usize) -> Result<Self> {
        let memory = SharedHostMemory::new(Some((driver, device)), 1)?;
        Ok(Self { memory, driver: Arc::clone(driver) })
    }

    /// Opens words that another process exported.
    ///
    /// # Errors
    /// The same as [`SharedHostMemory::import`].
    #[track_caller]
    pub fn import(
        driver: &Arc<dyn Driver>,
        device: usize,
        bytes: usize,
        handle: OsHandle,
    ) -> Result<Self> {
        let memory = SharedHostMemory::import(Some((driver, device)), bytes, handle)?;
        Ok(Self { memory, driver: Arc::clone(driver) })
    }

    /// Returns a handle with which other processes open the words.
    ///
    /// # Errors
    /// The same as [`SharedHostMemory::export`].
    pub fn export(&self) -> Result<OsHandle> {
        self.memory.export()
    }

    /// Returns the size in bytes, a multiple of the page size.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Returns the number of words.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bytes() / size_of::<u32>()
    }

    fn word(&self, call: &'static str, at: usize) -> Result<&AtomicU32> {
        if at >= self.count() {
            let reason = format!("there is no word {at} among {}", self.count());
            return Err(DriverError::InvalidArgument { call, reason });
        }
        // SAFETY: the word lies inside the pages, which live as long as `self`, and is aligned.
        // This process accesses the pages only by atomics of this size, and its devices access
        // whole words.
        Ok(unsafe { self.memory.as_ptr().cast::<AtomicU32>().add(at).as_ref() })
    }

    /// Reads a word with acquire ordering.
    ///
    /// # Errors
    /// [`DriverError::InvalidArgument`] if `at` is not less than [`SharedWords::count`].
    pub fn load(&self, at: usize) -> Result<u32> {
        Ok(self.word("SharedWords::load", at)?.load(Ordering::Acquire))
    }

    /// Stores a word from the host, atomically and with release ordering.
    ///
    /// # Errors
    /// The same as [`SharedWords::load`].
    pub fn store(&self, at: usize, value: u32) -> Result<()> {
        self.word("SharedWords::store", at)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Makes the stream write `value` to a word when its earlier work is done.
    ///
    /// # Safety
    /// The words are not dropped before the stream has executed the write or wait.
    ///
    /// # Errors
    /// - [`DriverError::InvalidArgument`] if the stream is being captured or belongs to another
    ///   driver, or if `at` is not less than [`SharedWords::count`].
    /// - Errors of the [driver call](Driver#errors), with
    ///   [`CudaCode::NOT_SUPPORTED`](crate::CudaCode::NOT_SUPPORTED) if the driver's streams cannot
    ///   wait for words.
    #[track_caller]
    pub unsafe fn write_on(&self, stream: &Stream, at: usize, value: u32) -> Result<()> {
        const CALL: &str = "SharedWords::write_on";
        let location = Location::caller();
        same_driver(CALL, &self.driver, stream.driver()).map_err(|e| e.at(location))?;
        let word = NonNull::from(self.word(CALL, at)?).cast();
        // SAFETY: the stream is alive. The word lies in page-locked memory of this driver, which
        // the caller keeps until the write is done.
        let write = || unsafe { self.driver.stream_write_value32(stream.handle(), word, value) };
        stream.outside_captures(CALL, write).map_err(|e| e.at(location))
    }

    /// Makes later work on the stream wait until a word is at least `value`. The comparison is
    /// cyclic, as in [`Driver::stream_wait_value32`].
    ///
    /// # Safety
    /// The same as [`SharedWords::write_on`].
    ///
    /// # Errors
    /// The same as [`SharedWords::write_on`].
    #[track_caller]
    pub unsafe fn wait_on(&self, stream: &Stream, at: usize, value: u32) -> Result<()> {
        const CALL: &str = "SharedWords::wait_on";
        let location = Location::caller();
        same_driver(CALL, &self.driver, stream.driver()).map_err(|e| e.at(location))?;
        let word = NonNull::from(self.word(CALL, at)?).cast();
        // SAFETY: the stream is alive. The word lies in page-locked memory of this driver, which
        // the caller keeps until the wait is done.
        let wait = || unsafe { self.driver.stream_wait_value32(stream.handle(), word, value) };
        stream.outside_captures(CALL, wait).map_err(|e| e.at(location))
    }
}
