//! Saves and resumes a training run. A resumed run has bit-identical results.

use std::path::Path;

use warpline::{Device, Tensor, cuda, get_rng_state, set_rng_state, tensor};
use warpline_nn::optim::{Optimizer, OptimizerState, Scheduler, SchedulerState};
use warpline_nn::{Forward, Module, StateDict, load_file, save_file};

use super::train::Training;

/// Writes the complete state of the training to one file.
pub(crate) fn save<M: Module>(training: &Training<M>, path: &Path) -> anyhow::Result<()> {
    let mut all = training.model.state_dict().with_prefix("model");
    all.extend(training.optimizer.state_dict()?.to_tensors()?.with_prefix("optimizer"));
    all.extend(training.scheduler.state_dict().to_tensors()?.with_prefix("scheduler"));
    all.extend(training.scaler.state_dict()?.with_prefix("scaler"));
    all.insert("generators.cpu", get_rng_state()?);
    if training.device.is_cuda() {
        all.insert("generators.cuda", cuda::get_rng_state(training.device)?);
    }
    all.insert("loader.epoch", training.epoch.clone());
    all.insert("loader.taken", tensor([training.taken as i64], Device::Cpu)?);
    all.insert("step", tensor([i64::from(training.step)], Device::Cpu)?);
    Ok(save_file(&all, path, ())?)
}

/// Restores the state from a file. `training` must have the sizes and settings of the saved run, on a device of the
/// same kind.
pub(crate) fn resume<M: Module + Forward<Tensor, Output = Tensor>>(
    training: &mut Training<M>,
    path: &Path,
) -> anyhow::Result<()> {
    let all = load_file(path, Device::Cpu)?;
    training.model.load_state_dict(&all.under_prefix("model"), true)?;
    let optimizer = OptimizerState::from_tensors(&all.under_prefix("optimizer"))?;
    training.optimizer.load_state_dict(&optimizer)?;
    let scheduler = SchedulerState::from_tensors(&all.under_prefix("scheduler"))?;
    training.scheduler.load_state_dict(&scheduler)?;
    training.scaler.load_state_dict(&all.under_prefix("scaler"))?;
    training.seek(named(&all, "loader.epoch")?, number(&all, "loader.taken")?.try_into()?)?;
    training.step = number(&all, "step")?.try_into()?;
    set_rng_state(&named(&all, "generators.cpu")?)?;
    if training.device.is_cuda() {
        cuda::set_rng_state(&named(&all, "generators.cuda")?, training.device)?;
    }
    Ok(())
}

fn named(all: &StateDict, name: &str) -> anyhow::Result<Tensor> {
    let missing = || anyhow::anyhow!("the file has no {name}, so this program did not save it");
    all.get(name).cloned().ok_or_else(missing)
}

fn number(all: &StateDict, name: &str) -> anyhow::Result<i64> {
    Ok(named(all, name)?.item()?)
}
