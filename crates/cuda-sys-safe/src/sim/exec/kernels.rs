//! Running kernels.

use smallvec::SmallVec;

use super::RunError;
use crate::CudaCode;
use crate::sim::state::SimState;
use crate::sim::state::launch::OwnedLaunch;
use crate::sim::state::vmm::MemoryUser;

impl SimState {
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
                let user = MemoryUser::Kernel(device);
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
            // SAFETY: each operand's hull was just checked to lie in live memory. Only the executor
            // accesses device memory, and the caller of the launch keeps other code from
            // page-locked memory. The parameters are those of the launch.
            unsafe { launch.call(&pointers) };
        }
        Ok(self.kernel_time(touched))
    }
}

/// Address of an operand without elements: aligned, never null, never accessed.
pub(super) const NOWHERE: usize = 64;
