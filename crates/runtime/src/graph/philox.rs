//! Starting points of random ops on CUDA, in the sequence of the generator or of a replay.

use std::panic::Location;
use std::sync::{Arc, Weak};

use warpline_cuda_sys_safe::HostLaunch;
use warpline_sync::MutexGuard;

use super::GraphLog;
#[cfg(doc)]
use crate::ErrorKind;
use crate::generator::CudaGenerator;
use crate::host::SharedPtr;
use crate::launch::{Grid, Kernel};
use crate::module::{Program, Source};
use crate::{DType, Error, Layout, Operand, Result, SharedGenerator, Site, Storage, Target, View};
use crate::{cuda_struct, hosts};

/// Number of generators from which a graph can draw.
pub(super) const GENERATORS: usize = 32;

/// Size of a pool's memory for the states of generators, in bytes.
pub(super) const STATE_BYTES: usize = GENERATORS * size_of::<[u64; 2]>();

/// The kernel that writes the starting point of a replay's random ops.
pub(crate) static PHILOX: Program = Program::new("philox", &[""], &["set_state"], |_, _| {
    Source::new().with::<PhiloxState>().push(include_str!("philox.cu"))
})
.with_ptx(|_| Some(include_bytes!("../../ptx/philox.ptx.lzma")));

// SAFETY: the kernel and the CPU implementation write the two words of the operand. Only
// `set_state` launches it, with an operand of two words.
static SET_STATE: Kernel<PhiloxState, 1> =
    unsafe { Kernel::new(&PHILOX, "set_state", hosts!(any write_state)) };

cuda_struct! {
    /// A position in the sequence of a seed (PyTorch's `PhiloxCudaState`). In a graph the position
    /// is relative to the starting point of the replay, which the kernel reads from memory.
    pub struct PhiloxState {
        seed: u64,
        offset: u64,
        in_graph: u64,
    }
}

impl PhiloxState {
    /// Returns the seed and the offset.
    ///
    /// # Safety
    /// In a graph, operand `index` must be two words of state.
    pub unsafe fn get(&self, launch: &HostLaunch<'_>, index: usize) -> (u64, u64) {
        if self.in_graph == 0 {
            return (self.seed, self.offset);
        }
        let state = SharedPtr::<u64>::operand(launch, index);
        // SAFETY: the caller guarantees that the operand has two words, which the launch declares.
        unsafe { (state.read(0), state.read(1).wrapping_add(self.offset)) }
    }
}

/// The source of a random op's numbers on CUDA: a generator, or the draws from it in the graph being
/// captured. Hold it until the op is enqueued, so that the order of draws is the order of launches.
pub struct Sequence<'a>(SequenceSource<'a>);

enum SequenceSource<'a> {
    Generator(MutexGuard<'a, CudaGenerator>),
    /// A capture, and the index of the generator in its log.
    Graph(Arc<GraphLog>, usize),
}

/// A saved position of a [`Sequence`].
#[derive(Clone, Debug)]
pub struct Position(At);

#[derive(Clone, Debug)]
enum At {
    Generator(Vec<u8>),
    Graph(Weak<GraphLog>, u64),
}

impl std::fmt::Debug for Sequence<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of = if matches!(self.0, SequenceSource::Graph(..)) { "graph" } else { "generator" };
        f.debug_tuple("Sequence").field(&of).finish()
    }
}

impl<'a> Sequence<'a> {
    /// Returns the sequence for an op on `target` that draws from a generator of the target's device. In a capture
    /// this registers the generator with the graph (`CUDAGraph.register_generator_state`).
    ///
    /// # Errors
    /// [`ErrorKind::Capture`] if the capture draws from too many generators.
    #[track_caller]
    pub fn of(target: Target<'_>, generator: &'a SharedGenerator<CudaGenerator>) -> Result<Self> {
        let log = if let Target::Cuda(_, _, stream) = target { GraphLog::of(stream) } else { None };
        Ok(Self(match log {
            Some(log) => {
                let source = log.source(generator)?;
                SequenceSource::Graph(log, source)
            }
            None => SequenceSource::Generator(generator.lock()),
        }))
    }

    /// Returns the current position.
    #[must_use]
    pub fn position(&self) -> Position {
        Position(match &self.0 {
            SequenceSource::Generator(generator) => At::Generator(generator.state()),
            SequenceSource::Graph(log, source) => {
                At::Graph(Arc::downgrade(log), log.drawn(*source))
            }
        })
    }

    /// Returns to a saved position.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if only one of the position and this sequence belongs to a
    /// capture, or if they belong to different captures.
    #[track_caller]
    pub fn go_to(&mut self, position: &Position) -> Result<()> {
        match (&mut self.0, &position.0) {
            (SequenceSource::Generator(generator), At::Generator(state)) => {
                generator.set_state(state)
            }
            (SequenceSource::Graph(log, source), At::Graph(of, drawn))
                if std::ptr::eq(of.as_ptr(), Arc::as_ptr(log)) =>
            {
                log.draw_from(*source, *drawn);
                Ok(())
            }
            _ => {
                let reason = "a random op can be computed again only where its numbers were drawn: \
                              in the same capture, or outside of captures";
                Err(Error::invalid("set_rng_state", reason))
            }
        }
    }

    /// Returns the starting point for a kernel whose threads take at most `values` values each, and
    /// advances past them.
    pub fn advance(&mut self, values: u64) -> PhiloxState {
        match &mut self.0 {
            SequenceSource::Generator(generator) => {
                let (seed, offset) = generator.advance(values);
                PhiloxState { seed, offset, in_graph: 0 }
            }
            SequenceSource::Graph(log, source) => {
                PhiloxState { seed: 0, offset: log.draw(*source, values), in_graph: 1 }
            }
        }
    }

    /// Returns the layout of the state: two words within a graph, empty otherwise.
    ///
    /// # Errors
    /// Never fails in practice: [`ErrorKind::SizeOverflow`](crate::ErrorKind::SizeOverflow) needs a
    /// larger size.
    #[track_caller]
    pub fn state_layout(&self) -> Result<Layout> {
        match &self.0 {
            SequenceSource::Generator(_) => Layout::contiguous(&[0]),
            SequenceSource::Graph(_, source) => state_layout(*source),
        }
    }

    /// Returns a kernel's operand for the state: the graph's state within a graph, otherwise no element
    /// of `other`. `layout` is the layout that [`Sequence::state_layout`] returns.
    #[must_use]
    pub fn state<'b>(&'b self, layout: &'b Layout, other: &'b Storage) -> Operand<'b> {
        let storage =
            if let SequenceSource::Graph(log, _) = &self.0 { log.philox_state() } else { other };
        View { storage, layout, dtype: DType::I64 }.read()
    }
}

/// Returns the layout of a generator's two words in a pool's state.
#[track_caller]
fn state_layout(index: usize) -> Result<Layout> {
    Layout::contiguous(&[GENERATORS, 2])?.select(0, index as isize)
}

/// Writes the starting point of the random ops of a replay that draw from `generator`, and advances the generator past
/// all of them. `index` is the index of the generator in the graph's log.
#[track_caller]
pub(super) fn set_state(
    target: Target<'_>,
    state: &Storage,
    index: usize,
    generator: &mut CudaGenerator,
    values: u64,
    location: &'static Location<'static>,
) -> Result<()> {
    let (seed, offset) = generator.advance(values);
    let position = PhiloxState { seed, offset, in_graph: 0 };
    let layout = state_layout(index)?;
    let operands = [View { storage: state, layout: &layout, dtype: DType::I64 }.write()];
    let site = Site { op: "replay", location };
    SET_STATE.launch_at(target, site, &operands, &position, Grid::new([1; 3], 1))
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operand has two words.
unsafe fn write_state(launch: &HostLaunch<'_>, position: &PhiloxState) {
    let state = SharedPtr::<u64>::operand(launch, 0);
    // SAFETY: the caller guarantees that the operand has two words and is declared as written.
    unsafe {
        state.write(0, position.seed);
        state.write(1, position.offset);
    }
}
