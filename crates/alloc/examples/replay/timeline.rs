//! Memory over time, as a table.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use warpline_alloc::{Backend, CachingAllocator};

use super::run::Watch;

/// Writes a line after each event: its index from 0, and bytes requested, allocated and reserved.
#[derive(Debug)]
pub struct Timeline(BufWriter<File>);

impl Timeline {
    /// Creates the file, with a header.
    ///
    /// # Errors
    /// The system's error if the file cannot be created or written.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        writeln!(file, "event,requested,allocated,reserved")?;
        Ok(Self(file))
    }
}

impl<B: Backend> Watch<B> for Timeline {
    fn after(&mut self, at: usize, allocator: &CachingAllocator<B>) -> Result<(), String> {
        let stats = allocator.memory_stats();
        let [requested, allocated, reserved] =
            [stats.requested_bytes, stats.allocated_bytes, stats.reserved_bytes]
                .map(|stat| stat.all.current);
        writeln!(self.0, "{at},{requested},{allocated},{reserved}").map_err(not_written)
    }

    fn finish(&mut self) -> Result<(), String> {
        self.0.flush().map_err(not_written)
    }
}

fn not_written(error: io::Error) -> String {
    format!("the timeline cannot be written: {error}")
}
