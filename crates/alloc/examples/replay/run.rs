//! Replays a trace on an allocator.

use std::fmt::Display;
use std::ops::Range;
use std::time::{Duration, Instant};

use warpline_alloc::{Backend, Block, CachingAllocator, MemoryStats};

use super::trace::{Op, Origin, Trace};

/// Callbacks of a replay. `at` is an index into [`Trace::ops`]. For blocks that outlive the trace,
/// it is the length of `ops`.
pub trait Watch<B: Backend> {
    /// Called before an event.
    ///
    /// # Errors
    /// The place and the reason ([`failure`]), if the replay must end.
    fn before(&mut self, at: usize) -> Result<(), String> {
        let _ = at;
        Ok(())
    }

    /// Called after an allocation into a slot.
    ///
    /// # Errors
    /// The place and the reason ([`failure`]), if the replay must end.
    fn allocated(&mut self, at: usize, slot: u32, block: &Block<B>) -> Result<(), String> {
        let _ = (at, slot, block);
        Ok(())
    }

    /// Called before the block of a slot is freed.
    ///
    /// # Errors
    /// The place and the reason ([`failure`]), if the replay must end.
    fn freeing(&mut self, at: usize, slot: u32, block: &Block<B>) -> Result<(), String> {
        let _ = (at, slot, block);
        Ok(())
    }

    /// Called after an event.
    ///
    /// # Errors
    /// The place and the reason ([`failure`]), if the replay must end.
    fn after(&mut self, at: usize, allocator: &CachingAllocator<B>) -> Result<(), String> {
        let _ = (at, allocator);
        Ok(())
    }

    /// Called after all blocks are freed.
    ///
    /// # Errors
    /// The place and the reason ([`failure`]), if the replay has failed.
    fn finish(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// No callbacks.
impl<B: Backend> Watch<B> for () {}

/// Calls the callbacks of the first element, then those of the second.
impl<B: Backend, V: Watch<B>, W: Watch<B>> Watch<B> for (V, W) {
    fn before(&mut self, at: usize) -> Result<(), String> {
        self.0.before(at)?;
        self.1.before(at)
    }

    fn allocated(&mut self, at: usize, slot: u32, block: &Block<B>) -> Result<(), String> {
        self.0.allocated(at, slot, block)?;
        self.1.allocated(at, slot, block)
    }

    fn freeing(&mut self, at: usize, slot: u32, block: &Block<B>) -> Result<(), String> {
        self.0.freeing(at, slot, block)?;
        self.1.freeing(at, slot, block)
    }

    fn after(&mut self, at: usize, allocator: &CachingAllocator<B>) -> Result<(), String> {
        self.0.after(at, allocator)?;
        self.1.after(at, allocator)
    }

    fn finish(&mut self) -> Result<(), String> {
        self.0.finish()?;
        self.1.finish()
    }
}

/// Times and statistics of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Time in the loop over the events.
    pub time: Duration,
    /// The part of `time` after the first quarter of the events.
    pub late: Duration,
    /// Statistics after the first quarter of the events.
    pub quarter: MemoryStats,
    /// Statistics after the last event, before the remaining blocks are freed.
    pub end: MemoryStats,
}

/// Maximum number of events between two reports of progress.
const CHUNK: usize = 1 << 16;

/// Replays a trace once. `streams` has one stream for each of [`Trace::streams`]. `progress`
/// receives the number of events finished since its last call; its time is not counted.
///
/// # Errors
/// The place and the reason ([`failure`]), if an allocation or a callback fails.
pub fn replay<B: Backend>(
    allocator: &CachingAllocator<B>,
    trace: &Trace,
    streams: &[B::Stream],
    watch: &mut impl Watch<B>,
    progress: &mut dyn FnMut(usize),
) -> Result<Outcome, String> {
    let mut live: Vec<Option<Block<B>>> = Vec::new();
    live.resize_with(trace.slots, || None);
    let (mut time, mut early, mut at) = (Duration::ZERO, Duration::ZERO, 0);
    let mut quarter = allocator.memory_stats();
    for part in [trace.ops.len() / 4, trace.ops.len()] {
        while at < part {
            let end = part.min(at + CHUNK);
            let start = Instant::now();
            walk(allocator, trace, at..end, streams, &mut live, watch)?;
            time += start.elapsed();
            progress(end - at);
            at = end;
        }
        if part < trace.ops.len() {
            quarter = allocator.memory_stats();
            early = time;
        }
    }
    let end = allocator.memory_stats();
    for (slot, block) in live.into_iter().enumerate() {
        if let Some(block) = block {
            watch.freeing(at, slot as u32, &block)?;
        }
    }
    watch.finish()?;
    Ok(Outcome { time, late: time - early, quarter, end })
}

/// Replays the events `part`; this loop is timed.
fn walk<B: Backend>(
    allocator: &CachingAllocator<B>,
    trace: &Trace,
    part: Range<usize>,
    streams: &[B::Stream],
    live: &mut [Option<Block<B>>],
    watch: &mut impl Watch<B>,
) -> Result<(), String> {
    for (at, &op) in part.clone().zip(&trace.ops[part]) {
        watch.before(at)?;
        match op {
            Op::Malloc { slot, stream, bytes } => {
                let block = allocator
                    .malloc(bytes, &streams[stream as usize])
                    .map_err(|error| failure(trace, at, error))?;
                watch.allocated(at, slot, &block)?;
                live[slot as usize] = Some(block);
            }
            Op::Free { slot } => {
                if let Some(block) = live[slot as usize].take() {
                    watch.freeing(at, slot, &block)?;
                }
            }
        }
        watch.after(at, allocator)?;
    }
    Ok(())
}

/// Formats an error with its place in the trace.
pub fn failure(trace: &Trace, at: usize, reason: impl Display) -> String {
    let name = &trace.name;
    match trace.origins.get(at) {
        Some(Origin { line, id }) => format!("{name}: line {line}: id {id}: {reason}"),
        None => format!("{name}: at its end: {reason}"),
    }
}
