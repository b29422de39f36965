//! A driver with the objects that a program has created on it.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use warpline_cuda_sys_safe::sim::{SimConfig, SimDriver};
use warpline_cuda_sys_safe::{self as cuda, Driver, DriverError, Result};

use crate::gate::{Gate, Watchdog};
use crate::model::PAGE;
use crate::step::*;

const ADD: &str = include_str!("../suite/driver_programs/kernels.ptx");
const STOP: &str = "\n.visible .entry stop(.param .u64 dst, .param .u64 src, \
    .param .align 4 .b8 params[8])\n{\n    trap;\n    ret;\n}\n";

pub(crate) fn ptx() -> String {
    format!("{ADD}{STOP}")
}

/// The outcome of a step on one driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The returned value, or the name of the error.
    pub(crate) result: Result<String, String>,
    /// Whether the call waited for the stream that was held back.
    pub(crate) waited: bool,
    /// A letter for each stream that the program created: `-` for no capture, `A` for an active
    /// one, `!` for an invalidated one, `?` if the query failed. Empty if not queried.
    pub(crate) status: String,
    /// Bytes of a read. Undetermined bytes are 0.
    pub(crate) bytes: Vec<u8>,
}

/// The kernel that adds a number, and the kernel that traps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernels {
    pub(crate) module: cuda::ModuleHandle,
    pub(crate) add: cuda::FunctionHandle,
    pub(crate) stop: cuda::FunctionHandle,
}

#[derive(Debug)]
pub(crate) enum BufferMemory {
    Device {
        device: usize,
        ptr: cuda::DevicePtr,
        pool: bool,
    },
    /// Page-locked memory that the driver allocated.
    Pinned {
        device: usize,
        ptr: NonNull<u8>,
        bytes: usize,
    },
    /// Memory that the program allocated, registered or not.
    Own {
        ptr: NonNull<u8>,
        bytes: usize,
        registered: bool,
    },
}

#[derive(Debug)]
pub(crate) struct Range {
    pub(crate) device: usize,
    pub(crate) ptr: cuda::DevicePtr,
    pub(crate) pages: usize,
    /// Number of pages and owning device of each mapping, by first page.
    pub(crate) mappings: BTreeMap<usize, (usize, usize)>,
}

#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) driver: Arc<dyn Driver>,
    /// The driver, if it is a simulator.
    pub(crate) sim: Option<Arc<SimDriver>>,
    pub(crate) devices: usize,
    /// Whether the driver serves several programs.
    pub(crate) reused: bool,
    /// Whether a captured stream was destroyed. The state of the driver is unknown then.
    pub(crate) undefined_state: bool,
    pub(crate) kernels: Vec<Kernels>,
    pub(crate) streams: BTreeMap<Id, cuda::StreamHandle>,
    pub(crate) events: BTreeMap<Id, cuda::EventHandle>,
    pub(crate) bufs: BTreeMap<Id, BufferMemory>,
    pub(crate) ranges: BTreeMap<Id, Range>,
    pub(crate) physical: BTreeMap<Id, cuda::PhysicalHandle>,
    pub(crate) pools: BTreeMap<Id, cuda::MemPoolHandle>,
    pub(crate) graphs: BTreeMap<Id, cuda::GraphHandle>,
    pub(crate) execs: BTreeMap<Id, cuda::GraphExecHandle>,
    pub(crate) peers: Vec<(usize, usize)>,
    pub(crate) gate: Option<Gate>,
    /// The steps whose host functions ran, in order.
    pub(crate) host_fn_log: Arc<Mutex<Vec<usize>>>,
}

impl Subject {
    /// Creates a simulator without objects.
    pub(crate) fn simulated(name: &str, config: SimConfig) -> Self {
        let devices = config.devices;
        let sim = config.build();
        Self::over(name, sim.clone(), Some(sim), devices)
    }

    pub(crate) fn over(
        name: &str,
        driver: Arc<dyn Driver>,
        sim: Option<Arc<SimDriver>>,
        devices: usize,
    ) -> Self {
        let text = ptx();
        let load = |device: usize| -> Result<Kernels> {
            // SAFETY: the image is PTX text.
            let module = unsafe { driver.module_load(device, text.as_bytes()) }?;
            // SAFETY: the module was just loaded.
            let find = |name| unsafe { driver.module_function(module, name) };
            Ok(Kernels { module, add: find(c"add_scalar")?, stop: find(c"stop")? })
        };
        let kernels = (0..devices).map(load).collect::<Result<Vec<_>>>();
        let kernels = kernels.unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut subject = Self {
            name: name.to_owned(),
            driver,
            sim,
            devices,
            reused: false,
            undefined_state: false,
            kernels,
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            bufs: BTreeMap::new(),
            ranges: BTreeMap::new(),
            physical: BTreeMap::new(),
            pools: BTreeMap::new(),
            graphs: BTreeMap::new(),
            execs: BTreeMap::new(),
            peers: Vec::new(),
            gate: None,
            host_fn_log: Arc::default(),
        };
        subject.add_default_streams();
        subject
    }

    pub(crate) fn add_default_streams(&mut self) {
        for device in 0..self.devices {
            self.streams.insert(device as Id, cuda::StreamHandle::default_of(device));
        }
    }

    /// Runs a step that the model admits. `waits` tells whether the step should wait for the gate.
    pub(crate) fn run(
        &mut self,
        index: usize,
        step: &Step,
        mask: &[bool],
        ask_status: bool,
        (watchdog, waits): (&Watchdog, bool),
    ) -> Outcome {
        let gate = self.gate.clone();
        let mut bytes = Vec::new();
        let result = watchdog.watch(gate.as_ref(), waits, || self.perform(index, step, &mut bytes));
        for (byte, known) in bytes.iter_mut().zip(mask) {
            *byte *= u8::from(*known);
        }
        let waited = gate.as_ref().is_some_and(Gate::was_needed);
        if waited {
            self.gate = None;
        }
        let status = if ask_status { self.status() } else { String::new() };
        Outcome { result: result.map_err(|e| name(&e)), waited, status, bytes }
    }

    /// Returns the capture status of all streams of the program.
    fn status(&self) -> String {
        let own = self.streams.iter().filter(|(id, _)| **id >= FIRST_STREAM);
        // SAFETY: the streams are alive.
        own.map(|(_, &stream)| match unsafe { self.driver.capture_status(stream) } {
            Ok(cuda::CaptureStatus::None) => '-',
            Ok(cuda::CaptureStatus::Active(_)) => 'A',
            Ok(cuda::CaptureStatus::Invalidated) => '!',
            Err(_) => '?',
        })
        .collect()
    }

    /// Returns the address of a place.
    pub(crate) fn address(&self, place: Place) -> cuda::DevicePtr {
        let nowhere = cuda::DevicePtr::NULL;
        match place {
            Place::Buf { buf, at } => match self.bufs.get(&buf) {
                // SAFETY: the model admits only accesses inside the buffer.
                Some(BufferMemory::Device { ptr, .. }) => unsafe { ptr.offset(at as i64) },
                // SAFETY: unified addressing gives page-locked memory the same address on host and
                // device. Addresses of pageable memory are only queried.
                Some(BufferMemory::Pinned { ptr, .. } | BufferMemory::Own { ptr, .. }) => unsafe {
                    cuda::DevicePtr::from_raw(ptr.as_ptr().expose_provenance() as u64 + at as u64)
                },
                None => nowhere,
            },
            Place::Page { range, page, at } => match self.ranges.get(&range) {
                // SAFETY: the model admits only accesses inside the reservation.
                Some(range) => unsafe { range.ptr.offset((page * PAGE + at) as i64) },
                None => nowhere,
            },
        }
    }

    /// Returns the device that owns a place, or the first device for host memory.
    pub(crate) fn owner(&self, place: Place) -> usize {
        match place {
            Place::Buf { buf, .. } => match self.bufs.get(&buf) {
                Some(BufferMemory::Device { device, .. }) => *device,
                _ => 0,
            },
            Place::Page { range, page, .. } => self.ranges.get(&range).map_or(0, |r| {
                r.mappings.range(..=page).next_back().map_or(r.device, |(_, &(_, owner))| owner)
            }),
        }
    }

    /// Returns the end of a copy at a place.
    pub(crate) fn end(&self, place: Place) -> cuda::CopyEnd {
        if let Place::Buf { buf, at } = place
            && let Some(BufferMemory::Pinned { ptr, .. } | BufferMemory::Own { ptr, .. }) =
                self.bufs.get(&buf)
        {
            let address = ptr.as_ptr().wrapping_add(at);
            return cuda::CopyEnd::Host(NonNull::new(address).unwrap_or(*ptr));
        }
        cuda::CopyEnd::Device { device: self.owner(place), ptr: self.address(place) }
    }

    /// Returns the host memory of a buffer.
    pub(crate) fn host(&self, buf: Id) -> Option<(NonNull<u8>, usize)> {
        match self.bufs.get(&buf)? {
            BufferMemory::Pinned { ptr, bytes, .. } | BufferMemory::Own { ptr, bytes, .. } => {
                Some((*ptr, *bytes))
            }
            BufferMemory::Device { .. } => None,
        }
    }
}

/// Layout of memory that the program allocates: whole pages, so that it can be page-locked.
pub(crate) fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.next_multiple_of(4096).max(4096), 4096).expect("a small size")
}

/// Returns the name of an error in transcripts.
pub(crate) fn name(error: &DriverError) -> String {
    let code = || error.code().map_or("", |c| c.name().trim_start_matches("CUDA_ERROR_"));
    match error {
        DriverError::InvalidDevice { .. } => "no such device".to_owned(),
        DriverError::DeviceLost { .. } => format!("lost: {}", code()),
        DriverError::Cuda(e) if code().contains("without a name") => e.code.0.to_string(),
        DriverError::Cuda(_) => code().to_owned(),
        other => other.to_string(),
    }
}
