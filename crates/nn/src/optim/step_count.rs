//! Counts of steps, on the host or in device memory.

use warpline::{DType, Device, Error, Result, Tensor};

use super::fused_step::GradScaling;
use super::optimizer::{check_not_capturing, is_capturing};
use super::rule::{ParamState, Slot};

/// Counts a step of each parameter on the device, unless the scaling skips the step. Parameters that have always
/// stepped together share a counter.
#[track_caller]
pub(super) fn count_steps_on_device(
    slots: &mut [Slot<'_>],
    scaling: Option<&GradScaling>,
) -> Result<()> {
    let mut counted: Vec<(Option<u64>, Device, u64, Tensor)> = Vec::new();
    for slot in slots {
        let former = slot.state.counter.take();
        let (at, device) = (former.as_ref().map(Tensor::data_ptr), slot.param.device());
        let step = slot.state.step;
        let known = counted.iter().find(|of| (of.0, of.1, of.2) == (at, device, step));
        let new = match known {
            Some((.., new)) => new.clone(),
            None => {
                let new = match former {
                    Some(former) => former,
                    None => counter(slot.param, step as f64)?,
                };
                counted.push((at, device, step, new.clone()));
                new
            }
        };
        slot.state.counter = Some(new);
    }
    for (_, device, _, counter) in &counted {
        match scaling {
            None => counter.add_(1.0)?,
            Some(scaling) => counter.add_(&(1.0 - &scaling.found_inf.to(*device)?)?)?,
        };
    }
    Ok(())
}

/// Moves the step counts to the host.
#[track_caller]
pub(super) fn move_counts_to_host(slots: &mut [Slot<'_>]) -> Result<()> {
    for slot in slots {
        if let Some(counter) = slot.state.counter.take() {
            slot.state.step = counter.item::<f32>()? as u64;
        }
    }
    Ok(())
}

/// Fails in a capture, because a replay would neither count on the host nor read a count there.
#[track_caller]
pub(super) fn check_no_capture(slots: &[Slot<'_>]) -> Result<()> {
    for slot in slots {
        if is_capturing(slot.param)? {
            let reason =
                "a step can be captured only if the device counts the steps: set `capturable`";
            return Err(Error::invalid("step", reason));
        }
    }
    Ok(())
}

/// Gives parameters without a gradient a separate counter if they shared a counter with parameters that now step.
/// Parameters that have always stepped together share a counter.
#[track_caller]
pub(super) fn separate_counters(params: &[Tensor], states: &mut [ParamState]) -> Result<()> {
    if states.iter().all(|state| state.counter.is_none()) {
        return Ok(());
    }
    let steps: Vec<bool> = params.iter().map(|param| param.grad().is_some()).collect();
    let stepping = states.iter().zip(&steps).filter(|(_, steps)| **steps);
    let stepping: Vec<u64> =
        stepping.filter_map(|(state, _)| state.counter.as_ref().map(Tensor::data_ptr)).collect();
    let mut parted: Vec<(u64, Tensor)> = Vec::new();
    for (state, steps) in states.iter_mut().zip(steps) {
        let Some(counter) = state.counter.as_mut().filter(|_| !steps) else { continue };
        let at = counter.data_ptr();
        if !stepping.contains(&at) {
            continue;
        }
        let known = parted.iter().find(|of| of.0 == at).map(|of| of.1.clone());
        let own = match known {
            Some(own) => own,
            None => {
                check_not_capturing(counter)?;
                let own = counter.copy()?;
                parted.push((at, own.clone()));
                own
            }
        };
        *counter = own;
    }
    Ok(())
}

/// Creates a step counter on the device of a parameter.
#[track_caller]
fn counter(param: &Tensor, value: f64) -> Result<Tensor> {
    check_not_capturing(param)?;
    warpline::full([], value, (DType::F32, param.device()))
}
