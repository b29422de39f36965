//! Words by which streams of several processes wait for each other.

use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{SharedHostMemory, Stream, same_driver};
use crate::{Driver, DriverError, OsHandle, Result};

/// Words in host memory that several processes have, page-locked in each: streams write them behind
/// their work, and streams of others wait for that, without a host in between.
///
/// Anybody who has them may write them at any time.
#[derive(Debug)]
pub struct SharedWords {
    memory: SharedHostMemory,
    driver: Arc<dyn Driver>,
}

impl SharedWords {
    /// A page of zeros.
    ///
    /// # Errors
    /// As [`SharedHostMemory::new`].
    #[track_caller]
    pub fn new(driver: &Arc<dyn Driver>, device: usize) -> Result<Self> {
        let memory = SharedHostMemory::new(Some((driver, device)), 1)?;
        Ok(Self { memory, driver: Arc::clone(driver) })
    }

    /// Those that another process exported.
    ///
    /// # Errors
    /// As [`SharedHostMemory::import`].
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

    /// What another process opens them with.
    ///
    /// # Errors
    /// As [`SharedHostMemory::export`].
    pub fn export(&self) -> Result<OsHandle> {
        self.memory.export()
    }

    /// Their size in bytes, whole pages.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bytes() / size_of::<u32>()
    }

    fn word(&self, call: &'static str, at: usize) -> Result<&AtomicU32> {
        if at >= self.count() {
            let reason = format!("there is no word {at} among {}", self.count());
            return Err(DriverError::InvalidArgument { call, reason });
        }
        // SAFETY: inside the pages, which live as long as `self` and are aligned; this process touches
        // them by atomics of this size alone, and its devices by whole words.
        Ok(unsafe { self.memory.as_ptr().cast::<AtomicU32>().add(at).as_ref() })
    }

    /// What a word holds, and with it what was written before that.
    ///
    /// # Errors
    /// [`DriverError::InvalidArgument`] if there is no such word.
    pub fn load(&self, at: usize) -> Result<u32> {
        Ok(self.word("SharedWords::load", at)?.load(Ordering::Acquire))
    }

    /// Changes a word, at once.
    ///
    /// # Errors
    /// As [`SharedWords::load`].
    pub fn store(&self, at: usize, value: u32) -> Result<()> {
        self.word("SharedWords::store", at)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Has a stream write a word once its earlier work is done.
    ///
    /// # Safety
    /// The words are not dropped before the stream has done so.
    ///
    /// # Errors
    /// [`DriverError::InvalidArgument`] for a captured stream, one of another driver, and where there
    /// is no such word; the driver's own, among them that its streams cannot do so.
    #[track_caller]
    pub unsafe fn write_on(&self, stream: &Stream, at: usize, value: u32) -> Result<()> {
        const CALL: &str = "SharedWords::write_on";
        let location = Location::caller();
        same_driver(CALL, &self.driver, stream.driver()).map_err(|e| e.at(location))?;
        let word = NonNull::from(self.word(CALL, at)?).cast();
        // SAFETY: a live stream, and a word in page-locked memory of its driver, which the caller keeps.
        let write = || unsafe { self.driver.stream_write_value32(stream.handle(), word, value) };
        stream.outside_captures(CALL, write).map_err(|e| e.at(location))
    }

    /// Has a stream's later work wait until a word is at least `value`, numbers going round.
    ///
    /// # Safety
    /// As of [`SharedWords::write_on`].
    ///
    /// # Errors
    /// As [`SharedWords::write_on`].
    #[track_caller]
    pub unsafe fn wait_on(&self, stream: &Stream, at: usize, value: u32) -> Result<()> {
        const CALL: &str = "SharedWords::wait_on";
        let location = Location::caller();
        same_driver(CALL, &self.driver, stream.driver()).map_err(|e| e.at(location))?;
        let word = NonNull::from(self.word(CALL, at)?).cast();
        // SAFETY: as above.
        let wait = || unsafe { self.driver.stream_wait_value32(stream.handle(), word, value) };
        stream.outside_captures(CALL, wait).map_err(|e| e.at(location))
    }
}
