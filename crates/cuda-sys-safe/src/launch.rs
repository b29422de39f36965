//! The description of device work that every driver takes.
//!
//! A [`Launch`] holds the op's name, the GPU code, the CPU implementation, the footprints of the
//! operands, the parameters and the line of the call. A [`Footprint`] says which elements of an
//! operand the work may touch. Its pointer is the kernel's argument, so the declaration and the
//! kernel cannot disagree about the address.
//!
//! The simulated driver runs the CPU implementation on the same operands. With `check_footprints`
//! it also runs the CPU implementation on poisoned copies, and reports each element that was
//! touched without being declared.

use std::fmt;
use std::panic::Location;

use crate::{DevicePtr, FunctionHandle, Result, StreamHandle};

/// What work does with an operand.
//
// As wide as what lies beside it, so that copies are whole words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Access {
    /// Only reads.
    Read,
    /// Only writes: no declared element's old value matters, and every one is written.
    Write,
    /// Reads and writes.
    ReadWrite,
}

impl Access {
    /// Whether old values matter.
    #[must_use]
    pub const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::ReadWrite)
    }

    /// Whether values change.
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::ReadWrite)
    }
}

/// The elements of device memory that work may touch: those at
/// `ptr + item_size * Σ index[d] * strides[d]` with `0 <= index[d] < sizes[d]`.
#[derive(Clone, Copy, Debug)]
pub struct Footprint<'a> {
    /// The element at index zero. Handed to the kernel as its pointer argument.
    pub ptr: DevicePtr,
    /// The device that owns the memory.
    pub device: usize,
    /// Bytes per element.
    pub item_size: usize,
    /// Elements per dimension; empty is one element, a zero anywhere is none.
    pub sizes: &'a [usize],
    /// Elements from one index to the next, per dimension.
    pub strides: &'a [isize],
    /// What is done there.
    pub access: Access,
}

impl Footprint<'_> {
    /// Whether it covers nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sizes.contains(&0)
    }

    /// The first byte and the byte after the last, as offsets from `ptr`; equal when empty. Where
    /// these are beyond all addresses, as far as they go.
    #[must_use]
    pub fn hull(&self) -> (i64, i64) {
        if self.is_empty() {
            return (0, 0);
        }
        let (mut low, mut high) = (0i64, 0i64);
        for (&size, &stride) in self.sizes.iter().zip(self.strides) {
            let last = i64::try_from(size - 1).unwrap_or(i64::MAX);
            let reach = last.saturating_mul(stride as i64);
            let end = if reach < 0 { &mut low } else { &mut high };
            *end = end.saturating_add(reach);
        }
        let item = i64::try_from(self.item_size).unwrap_or(i64::MAX);
        (low.saturating_mul(item), high.saturating_add(1).saturating_mul(item))
    }
}

/// What a kernel's CPU implementation is given: the same operands and parameters as the kernel.
#[derive(Debug)]
pub struct HostLaunch<'a> {
    /// One pointer per footprint, to its element at index zero, in host memory.
    pub pointers: &'a [*mut u8],
    /// The kernel's plain-data parameter block.
    pub params: &'a [u8],
    /// Whether it may spread over threads. Off where an executor runs it under a lock.
    pub parallel: bool,
}

/// The CPU implementation of a kernel.
///
/// # Safety
/// Each pointer is valid for its footprint's declared elements with the declared access, nobody
/// else touches them meanwhile, and `params` holds the parameter block that the kernel expects.
/// Operands may alias each other.
pub type HostKernel = unsafe fn(&HostLaunch<'_>);

/// The code a launch runs on a GPU.
#[derive(Clone, Copy)]
pub enum DeviceCode<'a> {
    /// A kernel: its arguments are one pointer per footprint, then `params` by value.
    Kernel {
        /// The kernel.
        function: FunctionHandle,
        /// Blocks in x, y, z.
        grid: [u32; 3],
        /// Threads in x, y, z.
        block: [u32; 3],
        /// Dynamic shared memory, in bytes.
        shared_bytes: u32,
    },
    /// A library that enqueues its own kernels on the stream, such as cuBLAS. Only a real
    /// driver calls it, with the footprints' pointers; a simulated one runs the CPU implementation.
    Library(&'a dyn Fn(StreamHandle, &[DevicePtr]) -> Result<()>),
    /// Collectives, which enqueue themselves on every driver's streams: real and simulated ones
    /// alike call it, and run no CPU implementation.
    Collective(&'a dyn Fn(StreamHandle) -> Result<()>),
}

impl fmt::Debug for DeviceCode<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel { function, grid, block, shared_bytes } => f
                .debug_struct("Kernel")
                .field("function", function)
                .field("grid", grid)
                .field("block", block)
                .field("shared_bytes", shared_bytes)
                .finish(),
            Self::Library(_) => f.write_str("Library"),
            Self::Collective(_) => f.write_str("Collective"),
        }
    }
}

/// One launch. Everything is borrowed: describing a launch needs no heap.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The op, as its users know it.
    pub op: &'static str,
    /// What a GPU runs.
    pub code: DeviceCode<'a>,
    /// What a simulated GPU runs.
    pub host: HostKernel,
    /// What it touches, in the order of the kernel's pointer arguments.
    pub footprints: &'a [Footprint<'a>],
    /// The kernel's plain-data parameter block; may be empty, in which case the kernel takes none.
    pub params: &'a [u8],
    /// Where the op was called.
    pub location: &'static Location<'static>,
}
