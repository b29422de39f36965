//! Execution of collectives: a group begins, waits for other ranks, and ends.

use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use super::{COLLECTIVE_TIME, RunError};
use crate::DevicePtr;
use crate::nccl::Collective;
use crate::nccl::sim::{CallDesc, GroupOutcome};
use crate::sim::state::SimState;
use crate::sim::state::vmm::MemoryUser;
use crate::sim::state::work::CallGroup;

impl SimState {
    /// Begins a group at a virtual time: reads its inputs. Returns `None` if the communicator has
    /// ended.
    pub(super) fn begin_group(
        &mut self,
        device: usize,
        group: &CallGroup,
        begin: f64,
    ) -> Result<Option<u64>, RunError> {
        let mut given = Vec::with_capacity(group.calls.len());
        for call in &group.calls {
            let input = match CallDesc::memory(call, group.rank, group.ranks).read {
                Some((ptr, bytes)) => {
                    let at = self.locate_operand(device, call, ptr, bytes, false)?;
                    // SAFETY: the range was just checked to lie in live memory. Only the executor
                    // accesses device memory, and the caller of the collective keeps other code
                    // from page-locked memory.
                    unsafe { std::slice::from_raw_parts(with_exposed_provenance::<u8>(at), bytes) }
                        .to_vec()
                }
                None => Vec::new(),
            };
            given.push((CallDesc::of(call), input));
        }
        Ok(group.participant.begin(begin, given))
    }

    /// Ends a group: writes its outputs, and returns the time since its begin at `begin`. Returns
    /// `None` while other ranks have not begun their groups.
    pub(super) fn end_group(
        &mut self,
        device: usize,
        group: &CallGroup,
        begin: f64,
        number: u64,
    ) -> Result<Option<f64>, RunError> {
        let outputs = match group.participant.end(number) {
            GroupOutcome::Blocked => return Ok(None),
            GroupOutcome::Aborted => return Ok(Some(0.0)),
            GroupOutcome::Done(outputs) => outputs,
        };
        let (topology, machines) = (self.config.topology, group.participant.machines());
        let (mut all_began, mut time) = (begin, COLLECTIVE_TIME);
        for (call, (output, began)) in group.calls.iter().zip(outputs) {
            all_began = all_began.max(began);
            time += topology.call_time(&CallDesc::of(call), &machines, group.rank);
            let Some((ptr, bytes)) = CallDesc::memory(call, group.rank, group.ranks).write else {
                continue;
            };
            let at = self.locate_operand(device, call, ptr, bytes, true)?;
            let memory =
                // SAFETY: as in `begin_group`, the range was just checked to lie in live memory,
                // which no other code accesses now.
                unsafe { std::slice::from_raw_parts_mut(with_exposed_provenance_mut::<u8>(at), bytes) };
            let bytes = bytes.min(output.len());
            memory[..bytes].copy_from_slice(&output[..bytes]);
        }
        Ok(Some(all_began - begin + time))
    }

    fn locate_operand(
        &mut self,
        device: usize,
        call: &Collective,
        ptr: DevicePtr,
        bytes: usize,
        write: bool,
    ) -> Result<usize, RunError> {
        self.locate(ptr.addr(), bytes, MemoryUser::Kernel(device), write)
            .map_err(|why| RunError::illegal(format!("{}: {why}", CallDesc::of(call))))
    }
}
