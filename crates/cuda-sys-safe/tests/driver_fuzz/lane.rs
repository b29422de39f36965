//! One driver, and the objects that a program has made of it.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use warpline_cuda_sys_safe::sim::{SimConfig, SimDriver};
use warpline_cuda_sys_safe::{self as cuda, Driver, DriverError, Result};

use crate::gate::{Gate, Porter};
use crate::model::PAGE;
use crate::step::*;

const ADD: &str = include_str!("../suite/driver_programs/kernels.ptx");
const STOP: &str = "\n.visible .entry stop(.param .u64 dst, .param .u64 src, \
    .param .align 4 .b8 params[8])\n{\n    trap;\n    ret;\n}\n";

pub(crate) fn ptx() -> String {
    format!("{ADD}{STOP}")
}

/// What a step came to on one driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// What it returned, or the name of its error.
    pub(crate) result: Result<String, String>,
    /// Whether it waited for the stream that was held back.
    pub(crate) waited: bool,
    /// A letter for each stream that may be in a capture: `-`, `A`ctive, `!` invalidated.
    pub(crate) status: String,
    /// Of a read: bytes that are determined, others 0.
    pub(crate) bytes: Vec<u8>,
}

/// The add kernel and the one that traps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernels {
    pub(crate) module: cuda::ModuleHandle,
    pub(crate) add: cuda::FunctionHandle,
    pub(crate) stop: cuda::FunctionHandle,
}

#[derive(Debug)]
pub(crate) enum Bytes {
    Device {
        device: usize,
        ptr: cuda::DevicePtr,
        pool: bool,
    },
    /// The driver's own page-locked memory.
    Pinned {
        device: usize,
        ptr: NonNull<u8>,
        bytes: usize,
    },
    /// Memory of the program, page-locked or not.
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
    /// Pages of each mapping, by where it begins; and the device whose memory it is.
    pub(crate) mappings: BTreeMap<usize, (usize, usize)>,
}

#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) name: String,
    pub(crate) driver: Arc<dyn Driver>,
    /// The same, where it is a simulator.
    pub(crate) sim: Option<Arc<SimDriver>>,
    pub(crate) devices: usize,
    /// Whether its driver serves many programs.
    pub(crate) lasting: bool,
    /// Whether a stream had to be destroyed while captured: what that leaves behind in a driver
    /// nobody knows.
    pub(crate) spoiled: bool,
    pub(crate) kernels: Vec<Kernels>,
    pub(crate) streams: BTreeMap<Id, cuda::StreamHandle>,
    pub(crate) events: BTreeMap<Id, cuda::EventHandle>,
    pub(crate) bufs: BTreeMap<Id, Bytes>,
    pub(crate) ranges: BTreeMap<Id, Range>,
    pub(crate) physical: BTreeMap<Id, cuda::PhysicalHandle>,
    pub(crate) pools: BTreeMap<Id, cuda::MemPoolHandle>,
    pub(crate) graphs: BTreeMap<Id, cuda::GraphHandle>,
    pub(crate) execs: BTreeMap<Id, cuda::GraphExecHandle>,
    pub(crate) peers: Vec<(usize, usize)>,
    pub(crate) gate: Option<Gate>,
    /// The steps whose host functions ran, in that order.
    pub(crate) heard: Arc<Mutex<Vec<usize>>>,
}

impl Lane {
    /// A lane over a new simulator.
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
            // SAFETY: text.
            let module = unsafe { driver.module_load(device, text.as_bytes()) }?;
            // SAFETY: the module was just loaded.
            let find = |name| unsafe { driver.module_function(module, name) };
            Ok(Kernels { module, add: find(c"add_scalar")?, stop: find(c"stop")? })
        };
        let kernels = (0..devices).map(load).collect::<Result<Vec<_>>>();
        let kernels = kernels.unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut lane = Self {
            name: name.to_owned(),
            driver,
            sim,
            devices,
            lasting: false,
            spoiled: false,
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
            heard: Arc::default(),
        };
        lane.add_default_streams();
        lane
    }

    pub(crate) fn add_default_streams(&mut self) {
        for device in 0..self.devices {
            self.streams.insert(device as Id, cuda::StreamHandle::default_of(device));
        }
    }

    /// Does a step that the model admits; `waits` is whether it should wait for the gate.
    pub(crate) fn run(
        &mut self,
        index: usize,
        step: &Step,
        mask: &[bool],
        ask_status: bool,
        (porter, waits): (&Porter, bool),
    ) -> Outcome {
        let gate = self.gate.clone();
        let mut bytes = Vec::new();
        let result = porter.watch(gate.as_ref(), waits, || self.perform(index, step, &mut bytes));
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

    /// What the captures of all streams of the program are like.
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

    /// The address of a place.
    pub(crate) fn address(&self, place: Place) -> cuda::DevicePtr {
        let nowhere = cuda::DevicePtr::NULL;
        match place {
            Place::Buf { buf, at } => match self.bufs.get(&buf) {
                // SAFETY: only what the model admits is done with it.
                Some(Bytes::Device { ptr, .. }) => unsafe { ptr.offset(at as i64) },
                // SAFETY: page-locked memory is addressed alike by host and device.
                Some(Bytes::Pinned { ptr, .. } | Bytes::Own { ptr, .. }) => unsafe {
                    cuda::DevicePtr::from_raw(ptr.as_ptr().expose_provenance() as u64 + at as u64)
                },
                None => nowhere,
            },
            Place::Page { range, page, at } => match self.ranges.get(&range) {
                // SAFETY: as above.
                Some(range) => unsafe { range.ptr.offset((page * PAGE + at) as i64) },
                None => nowhere,
            },
        }
    }

    /// The device that owns a place; the first for host memory.
    pub(crate) fn owner(&self, place: Place) -> usize {
        match place {
            Place::Buf { buf, .. } => match self.bufs.get(&buf) {
                Some(Bytes::Device { device, .. }) => *device,
                _ => 0,
            },
            Place::Page { range, page, .. } => self.ranges.get(&range).map_or(0, |r| {
                r.mappings.range(..=page).next_back().map_or(r.device, |(_, &(_, owner))| owner)
            }),
        }
    }

    /// A place as one end of a copy.
    pub(crate) fn end(&self, place: Place) -> cuda::CopyEnd {
        if let Place::Buf { buf, at } = place
            && let Some(Bytes::Pinned { ptr, .. } | Bytes::Own { ptr, .. }) = self.bufs.get(&buf)
        {
            let address = ptr.as_ptr().wrapping_add(at);
            return cuda::CopyEnd::Host(NonNull::new(address).unwrap_or(*ptr));
        }
        cuda::CopyEnd::Device { device: self.owner(place), ptr: self.address(place) }
    }

    /// The host memory of a buffer.
    pub(crate) fn host(&self, buf: Id) -> Option<(NonNull<u8>, usize)> {
        match self.bufs.get(&buf)? {
            Bytes::Pinned { ptr, bytes, .. } | Bytes::Own { ptr, bytes, .. } => {
                Some((*ptr, *bytes))
            }
            Bytes::Device { .. } => None,
        }
    }
}

/// Memory of the program's own, in whole pages so that it can be page-locked.
pub(crate) fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.next_multiple_of(4096).max(4096), 4096).expect("a small size")
}

/// An error as transcripts have it.
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
