//! Where a random op on CUDA starts: in the generator's sequence, or in that of a replay.

use std::panic::Location;
use std::sync::{Arc, PoisonError};

use bytemuck::{Pod, Zeroable};
use warpline_cuda_sys_safe::{HostKernel, HostLaunch};
use warpline_sync::MutexGuard;

use super::CudaGenerator;
use super::cuda::KERNELS;
use crate::graph::Log;
use crate::host::{self, Shared};
use crate::launch::{self, Call, Code};
use crate::{CudaDevice, DType, Layout, Operand, Result, Storage, Target, View};

/// The number of the kernel that sets the state.
pub(super) const SET_STATE: usize = 16;

/// A place in the sequence of a seed. In a graph it counts from the replay's, which the kernel
/// finds in memory: PyTorch's `PhiloxCudaState`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Place {
    seed: u64,
    offset: u64,
    in_graph: u64,
}

impl Place {
    /// The seed and the offset.
    ///
    /// # Safety
    /// In a graph, operand `index` is two words of state.
    pub(super) unsafe fn get(&self, launch: &HostLaunch<'_>, index: usize) -> (u64, u64) {
        if self.in_graph == 0 {
            return (self.seed, self.offset);
        }
        let state = Shared::<u64>::operand(launch, index);
        // SAFETY: the caller's promise.
        unsafe { (state.read(0), state.read(1).wrapping_add(self.offset)) }
    }
}

/// What an op draws from: the device's generator, or a graph that is captured.
pub(super) enum Sequence<'a> {
    Generator(MutexGuard<'a, CudaGenerator>),
    Graph(Arc<Log>),
}

impl<'a> Sequence<'a> {
    pub(super) fn of(target: Target<'_>, device: &'a CudaDevice) -> Self {
        let log = if let Target::Cuda(_, _, stream) = target { Log::of(stream) } else { None };
        match log {
            Some(log) => Self::Graph(log),
            None => {
                Self::Generator(device.generator().lock().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }

    /// The place for a kernel of which no thread takes more than `values` values.
    pub(super) fn advance(&mut self, values: u64) -> Place {
        match self {
            Self::Generator(generator) => {
                let (seed, offset) = generator.advance(values);
                Place { seed, offset, in_graph: 0 }
            }
            Self::Graph(log) => Place { seed: 0, offset: log.draw(values), in_graph: 1 },
        }
    }

    /// How the state lies: outside a graph there is none.
    pub(super) fn state_layout(&self) -> Result<Layout> {
        Layout::contiguous(&[if matches!(self, Self::Graph(_)) { 2 } else { 0 }])
    }

    /// The kernel's second operand; `other` stands for the state where there is none.
    pub(super) fn state<'b>(&'b self, layout: &'b Layout, other: &'b Storage) -> Operand<'b> {
        let storage = if let Self::Graph(log) = self { log.state() } else { other };
        View { storage, layout, dtype: DType::I64 }.read()
    }
}

/// Writes where the random ops of a replay start, and advances the generator by all of them.
pub(crate) fn set_state(
    target: Target<'_>,
    state: &Storage,
    generator: &mut CudaGenerator,
    values: u64,
    location: &'static Location<'static>,
) -> Result<()> {
    let (seed, offset) = generator.advance(values);
    let place = Place { seed, offset, in_graph: 0 };
    let layout = Layout::contiguous(&[2])?;
    let call = Call {
        op: "replay",
        operands: &[View { storage: state, layout: &layout, dtype: DType::I64 }.write()],
        params: bytemuck::bytes_of(&place),
        host: write_state as HostKernel,
        code: Code::Kernel {
            set: &KERNELS,
            index: SET_STATE,
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
        },
        location,
    };
    // SAFETY: kernel and host code write the two words, and take a `Place`.
    unsafe { launch::run(target, &call) }
}

/// # Safety
/// As [`HostKernel`]: two words of state, and a [`Place`].
unsafe fn write_state(launch: &HostLaunch<'_>) {
    let place: Place = host::params(launch);
    let state = Shared::<u64>::operand(launch, 0);
    // SAFETY: there are two words.
    unsafe {
        state.write(0, place.seed);
        state.write(1, place.offset);
    }
}
