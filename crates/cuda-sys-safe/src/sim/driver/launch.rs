//! Kernel launches. A launch that CUDA rejects fails during the call.

use super::session::SimDriver;
use crate::sim::CallKind;
use crate::sim::state::launch::OwnedLaunch;
use crate::sim::state::streams::StreamOpKind;
use crate::sim::state::work::{DeviceWork, Label, Point};
use crate::sim::state::{SimState, error};
use crate::*;

/// Largest size of a kernel's parameters, in bytes.
const MAX_PARAMS: usize = 4096;

impl SimDriver {
    /// Makes a launch. `enqueue` enqueues its work, a group of collectives.
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
            .inspect_err(|_| state.invalidate_stream_capture(stream))?;
        self.unlock(state);
        enqueue(stream).map_err(|e| e.at(launch.location))?;
        // Wait for the work here, not in `enqueue`: `enqueue` holds the communicator's lock, and
        // another thread may have to abort the communicator meanwhile.
        let state = self.lock();
        let captured = state.streams.get(&key).is_some_and(|s| s.capture.is_some());
        let point = (!captured).then(|| state.tail(key));
        self.finish_enqueue(state, call, device, point)
    }
}

impl SimState {
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
        let work = DeviceWork::Kernel(OwnedLaunch::new(launch).into());
        self.enqueue(key, label, StreamOpKind::Work(work), &[])
    }

    fn check_launch(&self, device: usize, launch: &Launch<'_>) -> Result<()> {
        let refuse = |code, why: String| {
            let error = error(CallKind::Launch, code, device, &format!("`{}`: {why}", launch.op));
            Err(error.at(launch.location))
        };
        let invalid = |why: String| refuse(CudaCode::INVALID_VALUE, why);
        if launch.params.len() > MAX_PARAMS {
            return invalid(format!(
                "{} bytes of parameters; at most {MAX_PARAMS} are allowed",
                launch.params.len()
            ));
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
        let DeviceCode::Kernel { function, grid, block, shared_bytes, .. } = launch.code else {
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
            return invalid(format!("a grid of {grid:?} blocks is empty or too large"));
        }
        if !within(block, limits.max_block_dim) || threads > u64::from(limits.max_threads_per_block)
        {
            return invalid(format!("a block of {block:?} threads is empty or too large"));
        }
        if shared_bytes > known.max_shared {
            return invalid(format!(
                "{shared_bytes} bytes of shared memory; the function may have at most {}",
                known.max_shared
            ));
        }
        Ok(())
    }
}

/// Returns `true` if a footprint's hull can be computed without overflow.
fn representable(footprint: &Footprint<'_>) -> bool {
    let reach = footprint.sizes.iter().zip(footprint.strides).try_fold(1i128, |sum, (&n, &s)| {
        sum.checked_add((n as i128 - 1).checked_mul((s as i128).abs())?)
    });
    let bytes = reach.and_then(|r| r.checked_mul(footprint.item_size as i128));
    bytes.is_some_and(|bytes| bytes < i128::from(i64::MAX / 2))
}

/// Returns the lowest address of a footprint.
fn lowest(footprint: &Footprint<'_>) -> u64 {
    footprint.ptr.addr().wrapping_add_signed(footprint.hull().0)
}
