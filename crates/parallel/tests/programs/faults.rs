//! Runs programs with injected failures of driver calls.

use warpline::{Result, cuda, with_runtime};
use warpline_cuda_sys_safe::sim::{CallKind, Fault, Schedule};

use crate::ops;
use crate::plan::Plan;
use crate::random::Random;
use crate::row::Effect;
use crate::run::{Machine, World, describe, eventually};

/// Driver calls that may be made to fail. Repeated kinds are chosen more often.
const FAULTS: [CallKind; 20] = [
    CallKind::Launch,
    CallKind::Launch,
    CallKind::MemAlloc,
    CallKind::MemCreate,
    CallKind::MemMap,
    CallKind::MemSetAccess,
    CallKind::MemFree,
    CallKind::HostAlloc,
    CallKind::MemcpyAsync,
    CallKind::Memcpy,
    CallKind::MemsetAsync,
    CallKind::EventCreate,
    CallKind::EventRecord,
    CallKind::EventQuery,
    CallKind::EventSynchronize,
    CallKind::StreamCreate,
    CallKind::StreamWaitEvent,
    CallKind::StreamSynchronize,
    CallKind::ModuleLoad,
    CallKind::ModuleFunction,
];

/// Runs a program in which a driver call fails, once or every time from then on. Any later step may
/// fail, but nothing may panic, no memory may remain in use, and later ops must work.
pub(crate) fn run(plan: &Plan, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed ^ 0xFA17);
    let call = random.pick(&FAULTS);
    let code = random.pick(call.errors());
    let times = random.pick(&[1, usize::MAX]);
    let fault = Fault::new(call, code).after(random.below(24)).times(times);
    let world = World::simulated(Schedule::Seeded(seed));
    let runtime = world.runtime.clone();
    let named = |reason: String| format!("with {fault:?}: {reason}");
    with_runtime(&runtime, || {
        let sim = world.sim.as_ref().expect("a simulated world");
        let mut machine = Machine::new(&world);
        sim.inject(fault);
        for planned in &plan.steps {
            let row = &ops::table()[planned.step.row];
            // Skip rows whose text asserts or unwraps, because they would panic after a failed call.
            let expects = row.text.contains("assert") || row.text.contains("unwrap");
            if expects || planned.step.tensors.iter().any(|at| !machine.slots.contains_key(at)) {
                continue;
            }
            let answer =
                machine.call(planned).map_err(|e| named(format!("{}: {e}", describe(planned))))?;
            for (k, result) in answer.into_iter().flatten().enumerate() {
                machine.slots.insert((planned.step.id, k), result);
            }
            if row.effect == Effect::Drop {
                machine.slots.remove(&planned.step.tensors[0]);
            }
        }
        machine.slots.clear();
        sim.clear_faults();
        let works = || -> Result<Vec<f32>> {
            (0..2).try_for_each(cuda::synchronize)?;
            warpline::ones([2], 0)?.add(1)?.to_vec()
        };
        let values = works().map_err(|e| named(format!("afterwards, {e}")))?;
        if values != [2.0, 2.0] {
            return Err(named(format!("afterwards, 1 + 1 is {values:?}")));
        }
        for device in 0..2 {
            eventually(|| cuda::memory_allocated(device).is_ok_and(|bytes| bytes == 0));
            let bytes = cuda::memory_allocated(device).map_err(|e| e.to_string())?;
            if bytes > 0 {
                return Err(named(format!("{bytes} bytes of cuda:{device} remain in use")));
            }
        }
        Ok(())
    })?;
    let sim = world.sim;
    drop((world.runtime, runtime));
    let sim = sim.expect("a simulated world");
    eventually(|| sim.usage().all_released());
    let usage = sim.usage();
    if usage.all_released() {
        Ok(())
    } else {
        Err(named(format!("driver objects remain: {usage:?}")))
    }
}
