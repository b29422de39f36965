//! Runs conditional nodes: tests the condition and runs the body.

use super::RunError;
use crate::sim::state::SimState;
use crate::sim::state::graph::{ConditionValues, ConditionalWork, RunningReplay};
use crate::{ConditionalKind, CudaCode};

/// Largest number of runs of a body in one run of its node. A loop that does not end fails with
/// `LAUNCH_TIMEOUT` instead of hanging.
const MAX_RUNS: usize = 100_000;

/// Time of a test of a condition, in microseconds.
const TEST_TIME: f64 = 1.5;

impl SimState {
    /// Runs a conditional node and returns its time. `conditions` has the values of the replay's
    /// conditions, which the body's kernels change.
    pub(super) fn run_conditional(
        &mut self,
        node: &ConditionalWork,
        conditions: &mut ConditionValues,
    ) -> Result<f64, RunError> {
        let mut time = TEST_TIME;
        let mut runs = 0;
        while conditions.get(&node.condition).is_some_and(|&value| value != 0) {
            if runs == MAX_RUNS {
                let why = format!("the loop did not end within {MAX_RUNS} runs of its body");
                return Err(RunError { code: CudaCode::LAUNCH_TIMEOUT, why });
            }
            runs += 1;
            // The body is missing if its capture failed.
            if let Some(body) = node.body.get() {
                let mut replay = RunningReplay::new(body);
                std::mem::swap(&mut replay.conditions, conditions);
                // A body has no collectives, so no other rank can block it.
                let ran = self.run_graph(body, 0.0, &mut replay);
                std::mem::swap(&mut replay.conditions, conditions);
                ran?;
                time += replay.time + TEST_TIME;
            }
            if node.kind == ConditionalKind::If {
                break;
            }
        }
        Ok(time)
    }
}
