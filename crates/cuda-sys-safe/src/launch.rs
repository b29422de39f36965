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

use std::cell::Cell;
use std::fmt;
use std::panic::Location;

use crate::{DevicePtr, FunctionHandle, Result, StreamHandle};

/// The access of work to an operand.
// `usize` is as wide as the adjacent fields of `Footprint`, so copies move whole words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Access {
    /// Read access.
    Read,
    /// Write access. The work writes every declared element, and old values do not matter.
    Write,
    /// Read and write access.
    ReadWrite,
}

impl Access {
    /// Returns `true` if old values matter.
    #[must_use]
    pub const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::ReadWrite)
    }

    /// Returns `true` if values may change.
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::ReadWrite)
    }
}

/// The elements of device memory that work may touch: those at
/// `ptr + item_size * Σ index[d] * strides[d]` with `0 <= index[d] < sizes[d]`.
#[derive(Clone, Copy, Debug)]
pub struct Footprint<'a> {
    /// Address of the element at index zero. The kernel receives it as its pointer argument.
    pub ptr: DevicePtr,
    /// Index of the device that owns the memory.
    pub device: usize,
    /// Size of an element, in bytes.
    pub item_size: usize,
    /// Number of indices per dimension. Empty sizes declare one element; a zero anywhere declares
    /// none.
    pub sizes: &'a [usize],
    /// Distance from one index to the next per dimension, in elements.
    pub strides: &'a [isize],
    /// Access to these elements.
    pub access: Access,
}

impl Footprint<'_> {
    /// Returns `true` if the footprint has no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sizes.contains(&0)
    }

    /// Returns the first byte and the byte after the last, as offsets from `ptr`. The offsets are
    /// equal if the footprint is empty, and saturate on overflow.
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

/// The arguments of a kernel's CPU implementation: the same operands and parameters as the
/// kernel's.
#[derive(Debug)]
pub struct HostLaunch<'a> {
    /// One pointer into host memory per footprint, to the element at index zero.
    pub pointers: &'a [*mut u8],
    /// The kernel's plain-data parameter block.
    pub params: &'a [u8],
    /// Whether the implementation may use several threads. False on simulated devices, and on the
    /// CPU inside a parallel job.
    pub parallel: bool,
}

/// The CPU implementation of a kernel.
///
/// # Safety
/// Each pointer is valid for the declared elements of its footprint, with the declared access.
/// No other code accesses the elements meanwhile. `params` holds the parameter block that the kernel
/// expects. Operands may alias each other.
pub type HostKernel = unsafe fn(&HostLaunch<'_>);

thread_local! {
    /// The condition that this thread's CPU implementation set last, with its value.
    static SET_CONDITION: Cell<Option<(u64, u32)>> = const { Cell::new(None) };
}

/// Sets the value of a graph's condition, as `cudaGraphSetConditional` does on a GPU. For CPU
/// implementations of kernels that are captured on a simulated device; the last call of a launch
/// counts. Has no effect elsewhere.
pub fn set_graph_condition(condition: u64, value: u32) {
    let _ = SET_CONDITION.try_with(|set| set.set(Some((condition, value))));
}

/// Returns the condition that this thread's CPU implementations have set since the last call of
/// this function.
pub(crate) fn take_set_condition() -> Option<(u64, u32)> {
    SET_CONDITION.try_with(Cell::take).ok().flatten()
}

/// The GPU code of a launch.
#[derive(Clone, Copy)]
pub enum DeviceCode<'a> {
    /// A kernel. Its arguments are one pointer per footprint, then `params` by value.
    Kernel {
        /// The kernel.
        function: FunctionHandle,
        /// Number of blocks in x, y and z.
        grid: [u32; 3],
        /// Number of threads per block in x, y and z.
        block: [u32; 3],
        /// Dynamic shared memory, in bytes.
        shared_bytes: u32,
        /// Whether the kernel waits for earlier work of the stream itself
        /// (`griddepcontrol.wait`), before it accesses memory. The driver may then launch it
        /// before that work completes.
        waits: bool,
    },
    /// A call of a library that enqueues its own kernels on the stream, such as cuBLAS. The
    /// arguments are the stream and the footprints' pointers. Only a real driver makes the call; a
    /// simulated driver runs the CPU implementation.
    Library(&'a dyn Fn(StreamHandle, &[DevicePtr]) -> Result<()>),
    /// A call that enqueues collectives on the stream. Real and simulated drivers make the call,
    /// and do not run the CPU implementation.
    Collective(&'a dyn Fn(StreamHandle) -> Result<()>),
}

impl fmt::Debug for DeviceCode<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel { function, grid, block, shared_bytes, waits } => f
                .debug_struct("Kernel")
                .field("function", function)
                .field("grid", grid)
                .field("block", block)
                .field("shared_bytes", shared_bytes)
                .field("waits", waits)
                .finish(),
            Self::Library(_) => f.write_str("Library"),
            Self::Collective(_) => f.write_str("Collective"),
        }
    }
}

/// A launch. All parts are borrowed, so a launch needs no heap memory.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Name of the op.
    pub op: &'static str,
    /// Code for a GPU.
    pub code: DeviceCode<'a>,
    /// Code for a simulated GPU.
    pub host: HostKernel,
    /// The operands, in the order of the kernel's pointer arguments.
    pub footprints: &'a [Footprint<'a>],
    /// The kernel's plain-data parameter block. If empty, the kernel takes no parameters.
    pub params: &'a [u8],
    /// Source line of the op's call.
    pub location: &'static Location<'static>,
}
