//! Kernel launches: rejected when called, checked against memory and run when their turn comes.

use std::panic::Location;

use smallvec::SmallVec;

use super::exec::{RunError, kernel_time};
use super::memory::User;
use super::state::{Label, State, error};
use super::streams::{OpKind, Point, Work};
use super::{CallKind, SimDriver};
use crate::*;

/// What a kernel may be given as parameters, in bytes.
const MAX_PARAMS: usize = 4096;

/// A launch that outlives its call.
pub(super) struct OwnedLaunch {
    pub(super) op: &'static str,
    pub(super) host: HostKernel,
    pub(super) operands: Vec<Operand>,
    pub(super) location: &'static Location<'static>,
    params: Vec<u128>,
    param_bytes: usize,
}

/// A footprint that outlives its call.
pub(super) struct Operand {
    pub(super) ptr: u64,
    pub(super) item_size: usize,
    pub(super) sizes: SmallVec<[usize; 6]>,
    pub(super) strides: SmallVec<[isize; 6]>,
    pub(super) access: Access,
    /// First byte and byte after the last, from `ptr`; equal when it covers nothing.
    pub(super) hull: (i64, i64),
}

impl Operand {
    pub(super) fn bytes(&self) -> usize {
        (self.hull.1 - self.hull.0) as usize
    }

    /// The address of its first byte.
    pub(super) fn low(&self) -> u64 {
        self.ptr.wrapping_add_signed(self.hull.0)
    }
}

impl OwnedLaunch {
    fn new(launch: &Launch<'_>) -> Self {
        let mut params = vec![0u128; launch.params.len().div_ceil(16)];
        bytemuck::cast_slice_mut(&mut params)[..launch.params.len()].copy_from_slice(launch.params);
        let operands = launch.footprints.iter().map(|f| Operand {
            ptr: f.ptr.addr(),
            item_size: f.item_size,
            sizes: f.sizes.into(),
            strides: f.strides.into(),
            access: f.access,
            hull: f.hull(),
        });
        Self {
            op: launch.op,
            host: launch.host,
            operands: operands.collect(),
            location: launch.location,
            params,
            param_bytes: launch.params.len(),
        }
    }

    /// Runs the CPU implementation.
    ///
    /// # Safety
    /// The pointers are valid for the operands, and nobody else touches them.
    pub(super) unsafe fn call(&self, pointers: &[*mut u8]) {
        let params = &bytemuck::cast_slice::<u128, u8>(&self.params)[..self.param_bytes];
        // SAFETY: as the caller promises; the parameters are those of the launch.
        unsafe { (self.host)(&HostLaunch { pointers, params, parallel: false }) }
    }
}

impl SimDriver {
    /// A launch that enqueues itself.
    pub(super) fn launch_collective(
        &self,
        stream: StreamHandle,
        launch: &Launch<'_>,
        enqueue: &dyn Fn(StreamHandle) -> Result<()>,
    ) -> Result<()> {
        let (call, device) = (CallKind::Launch, stream.device());
        let mut state = self.enter(call, device)?;
        let key = state.stream_key(call, stream)?;
        let checked = state.check_captures(key, call);
        checked
            .and_then(|()| state.check_launch(device, launch))
            .inspect_err(|_| state.spoil_capture_of(stream))?;
        self.settle(state);
        enqueue(stream).map_err(|e| e.at(launch.location))?;
        // Not in there: whoever enqueues holds the communicator, which others may have to abort.
        let state = self.lock();
        let captured = state.streams.get(&key).is_some_and(|s| s.capture.is_some());
        let point = (!captured).then(|| state.tail(key));
        self.enqueued(state, call, device, point)
    }
}

impl State {
    pub(super) fn launch(
        &mut self,
        stream: StreamHandle,
        launch: &Launch<'_>,
    ) -> Result<Option<Point>> {
        let call = CallKind::Launch;
        let key = self.stream_key(call, stream)?;
        self.check_captures(key, call)?;
        self.check_launch(stream.device(), launch)?;
        let label = Label { call, op: launch.op, location: Some(launch.location) };
        let work = Work::Kernel(OwnedLaunch::new(launch).into());
        self.enqueue(key, label, OpKind::Work(work), &[])
    }

    fn check_launch(&self, device: usize, launch: &Launch<'_>) -> Result<()> {
        let refuse = |code, why: String| {
            let error = error(CallKind::Launch, code, device, &format!("`{}`: {why}", launch.op));
            Err(error.at(launch.location))
        };
        let invalid = |why: String| refuse(CudaCode::INVALID_VALUE, why);
        if launch.params.len() > MAX_PARAMS {
            return invalid(format!("{} bytes of parameters", launch.params.len()));
        }
        for footprint in launch.footprints {
            if footprint.sizes.len() != footprint.strides.len() {
                return invalid("a footprint's sizes and strides differ in number".into());
            }
            if footprint.is_empty() {
                continue;
            }
            if !representable(footprint) {
                return invalid("a footprint overflows the address space".into());
            }
            let first = lowest(footprint);
            if let Some(owner) = self.owner(first, 1)
                && owner != footprint.device
            {
                return invalid(format!(
                    "a footprint names cuda:{} for memory of cuda:{owner}",
                    footprint.device
                ));
            }
        }
        let DeviceCode::Kernel { function, grid, block, shared_bytes } = launch.code else {
            return Ok(());
        };
        let limits = &self.devices[device].properties;
        let Some(known) = self.functions.get(&function.raw()).filter(|f| f.device == device) else {
            return refuse(CudaCode::INVALID_HANDLE, "no such function on this device".into());
        };
        if let Err(why) = known.check_params(launch) {
            return invalid(why);
        }
        let within = |sizes: [u32; 3], most: [u32; 3]| {
            sizes.iter().zip(most).all(|(&size, most)| (1..=most).contains(&size))
        };
        let threads: u64 = block.iter().map(|&n| u64::from(n)).product();
        if !within(grid, limits.max_grid_dim) {
            return invalid(format!("a grid of {grid:?} blocks"));
        }
        if !within(block, limits.max_block_dim) || threads > u64::from(limits.max_threads_per_block)
        {
            return invalid(format!("a block of {block:?} threads"));
        }
        if shared_bytes > known.max_shared {
            return invalid(format!(
                "{shared_bytes} bytes of shared memory; the function may have {}",
                known.max_shared
            ));
        }
        Ok(())
    }

    pub(super) fn run_kernel(
        &mut self,
        device: usize,
        launch: &OwnedLaunch,
    ) -> Result<f64, RunError> {
        let mut pointers: SmallVec<[*mut u8; 8]> = SmallVec::new();
        let mut touched = 0;
        for (index, operand) in launch.operands.iter().enumerate() {
            let item = operand.item_size as u64;
            if item.is_power_of_two()
                && item <= 16
                && !operand.ptr.is_multiple_of(item)
                && operand.bytes() > 0
            {
                return Err(RunError {
                    code: CudaCode::MISALIGNED_ADDRESS,
                    why: format!("operand {index} at {:#x}", operand.ptr),
                });
            }
            let pointer = if operand.bytes() == 0 {
                NOWHERE
            } else {
                let user = User::Kernel(device);
                let low = self
                    .locate(operand.low(), operand.bytes(), user, operand.access.writes())
                    .map_err(|why| RunError::illegal(format!("operand {index}: {why}")))?;
                low.wrapping_add_signed(-operand.hull.0 as isize)
            };
            touched += operand.bytes();
            pointers.push(std::ptr::with_exposed_provenance_mut(pointer));
        }
        if self.config.check_footprints {
            self.run_checked(launch, &pointers)?;
        } else {
            // SAFETY: each operand's hull was just checked to lie in live backing memory, which
            // only the executor touches; the parameters are those of the launch.
            unsafe { launch.call(&pointers) };
        }
        Ok(kernel_time(touched))
    }
}

/// What an operand without elements points at: aligned, never null, never touched.
pub(super) const NOWHERE: usize = 64;

/// Whether a footprint's hull can be computed without overflow.
fn representable(footprint: &Footprint<'_>) -> bool {
    let reach = footprint.sizes.iter().zip(footprint.strides).try_fold(1i128, |sum, (&n, &s)| {
        sum.checked_add((n as i128 - 1).checked_mul((s as i128).abs())?)
    });
    let bytes = reach.and_then(|r| r.checked_mul(footprint.item_size as i128));
    bytes.is_some_and(|bytes| bytes < i128::from(i64::MAX / 2))
}

/// The lowest address that a footprint covers.
fn lowest(footprint: &Footprint<'_>) -> u64 {
    footprint.ptr.addr().wrapping_add_signed(footprint.hull().0)
}
