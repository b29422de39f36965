//! Checks that each block keeps its bytes until it is freed.
//!
//! A block is filled on its stream after the allocation. Before the free, samples of the block are
//! copied out on the same stream, and later compared with the pattern. The host does not wait
//! between fill and copy, so a premature reuse of memory by any stream shows as wrong bytes.

use warpline_alloc::{Block, CudaBackend};
use warpline_cuda_sys_safe::owned::Stream;

use super::bytes::Bytes;
use super::device::Device;
use super::run::{Watch, failure};
use super::trace::{Op, Trace};

/// A block is divided into pieces at multiples of this size, in bytes. Each piece has its own pattern, so that a page
/// that is mapped twice in one block shows as wrong bytes.
const PAGE: usize = 2 << 20;
/// Largest piece that is read as a whole, in bytes.
const WHOLE: usize = 64 << 10;
/// Bytes that are read at each end of a larger piece.
const EDGE: usize = 256;
/// Bytes that are filled at each end of a larger piece on a simulated device, where all touched
/// memory takes host memory.
const SIM_EDGE: usize = 4 << 10;
/// Host memory for samples that are not compared yet, in bytes.
const STAGING: usize = 16 << 20;

/// Fills, reads and compares the blocks of a trace.
#[derive(Debug)]
pub struct Check<'a> {
    trace: &'a Trace,
    streams: Vec<Stream>,
    bytes: Bytes,
    /// The event that filled each slot, and the index of its stream.
    filled: Vec<(usize, u32)>,
    /// Copies in flight, in the order of their places in the staging memory.
    samples: Vec<Sample>,
    used: usize,
    edge: usize,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    /// The event that allocated the block.
    at: usize,
    /// Offset in the block, in bytes.
    offset: usize,
    bytes: usize,
    word: u32,
}

impl<'a> Check<'a> {
    /// Creates the check of one replay on this device.
    ///
    /// # Errors
    /// The driver's message if the staging memory cannot be allocated.
    pub fn new(device: &Device, trace: &'a Trace) -> Result<Self, String> {
        let bytes = Bytes::new(&device.driver, STAGING).map_err(|error| error.to_string())?;
        let filled = vec![(0, 0); trace.slots];
        let edge = if device.driver.name() == "sim" { SIM_EDGE } else { PAGE };
        let streams = device.streams.clone();
        Ok(Self { trace, streams, bytes, filled, samples: Vec::new(), used: 0, edge })
    }

    /// Waits for all copies and compares the samples.
    fn compare(&mut self) -> Result<(), String> {
        for stream in &self.streams {
            stream.synchronize().map_err(|error| format!("{}: {error}", self.trace.name))?;
        }
        let mut place = 0;
        for sample in self.samples.drain(..) {
            let found = self.bytes.staged(place, sample.bytes);
            place += sample.bytes;
            let word = sample.word.to_ne_bytes();
            if let Some(wrong) = found.iter().zip(word.iter().cycle()).position(|(a, b)| a != b) {
                let offset = sample.offset + wrong;
                let reason = format!(
                    "byte {offset} of its block holds {:#04x} instead of {:#04x} when it is freed",
                    found[wrong],
                    word[wrong % word.len()]
                );
                return Err(failure(self.trace, sample.at, reason));
            }
        }
        self.used = 0;
        Ok(())
    }

    fn word(&self, at: usize, piece: usize) -> u32 {
        pattern(self.trace.origins[at].id, piece)
    }
}

impl Watch<CudaBackend> for Check<'_> {
    fn allocated(
        &mut self,
        at: usize,
        slot: u32,
        block: &Block<CudaBackend>,
    ) -> Result<(), String> {
        let Op::Malloc { stream, .. } = self.trace.ops[at] else { return Ok(()) };
        self.filled[slot as usize] = (at, stream);
        for (piece, (offset, bytes)) in pieces(block.address(), block.size()).enumerate() {
            let word = self.word(at, piece);
            for (skip, bytes) in ends(bytes, self.edge) {
                self.bytes
                    .fill(block, offset + skip, bytes, word, &self.streams[stream as usize])
                    .map_err(|error| failure(self.trace, at, error))?;
            }
        }
        Ok(())
    }

    fn freeing(&mut self, _: usize, slot: u32, block: &Block<CudaBackend>) -> Result<(), String> {
        let (at, stream) = self.filled[slot as usize];
        for (piece, (offset, bytes)) in pieces(block.address(), block.size()).enumerate() {
            for (skip, bytes) in ends(bytes, EDGE) {
                if self.used + bytes > STAGING {
                    self.compare()?;
                }
                let offset = offset + skip;
                self.bytes
                    .stage(block, offset, bytes, self.used, &self.streams[stream as usize])
                    .map_err(|error| failure(self.trace, at, error))?;
                self.used += bytes;
                let word = self.word(at, piece);
                self.samples.push(Sample { at, offset, bytes, word });
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        self.compare()
    }
}

/// Returns the offsets and sizes of the pieces of a block between page boundaries.
fn pieces(address: u64, size: usize) -> impl Iterator<Item = (usize, usize)> {
    let first = PAGE - address as usize % PAGE;
    let starts = std::iter::once(0).chain((first..size).step_by(PAGE));
    starts.map(move |start| {
        let next = if start == 0 { first } else { start + PAGE };
        (start, next.min(size) - start)
    })
}

/// Returns the offsets and sizes of the parts of a piece that are filled or sampled: the whole
/// piece, or both ends.
fn ends(bytes: usize, edge: usize) -> impl Iterator<Item = (usize, usize)> {
    let whole = bytes <= WHOLE.max(2 * edge);
    let parts = if whole { [(0, bytes), (0, 0)] } else { [(0, edge), (bytes - edge, edge)] };
    parts.into_iter().filter(|&(_, bytes)| bytes > 0)
}

/// Returns four bytes that differ between blocks and between the pieces of a block (splitmix64).
fn pattern(id: u64, piece: usize) -> u32 {
    let mut x = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (piece as u64).rotate_left(32);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)) as u32
}
