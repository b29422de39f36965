//! Saved state of optimizers.

use std::collections::BTreeMap;
use std::panic::Location;

use warpline::{DType, Error, Result, Tensor, full, tensor};

use super::optimizer::Optim;
use super::rule::{ParamState, Rule};
use crate::StateDict;

/// The state and settings of an optimizer (`torch.optim.Optimizer.state_dict`). Parameters are numbered from 0 in the
/// order of the groups.
#[derive(Clone, Debug, Default)]
pub struct OptimizerState {
    /// State tensors of each updated parameter, by PyTorch's names. The step count, `step`, is a tensor with one
    /// element.
    pub state: BTreeMap<usize, BTreeMap<String, Tensor>>,
    /// The groups.
    pub param_groups: Vec<GroupState>,
}

/// The settings and parameters of a group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupState {
    /// Settings by PyTorch's names. A flag is 0 or 1; `betas` are `betas.0` and `betas.1`.
    pub settings: BTreeMap<String, f64>,
    /// Indices of the group's parameters, as in [`OptimizerState::state`].
    pub params: Vec<usize>,
}

impl OptimizerState {
    /// Converts the state to named tensors for a file, with names such as `state.0.exp_avg` and `param_groups.0.lr`.
    ///
    /// # Errors
    /// Errors of [`full`].
    #[track_caller]
    pub fn to_tensors(&self) -> Result<StateDict> {
        let mut all = StateDict::new();
        for (index, tensors) in &self.state {
            for (name, tensor) in tensors {
                all.insert(format!("state.{index}.{name}"), tensor.clone());
            }
        }
        for (index, group) in self.param_groups.iter().enumerate() {
            for (name, &value) in &group.settings {
                let value = full([], value, (DType::F64, "cpu"))?;
                all.insert(format!("param_groups.{index}.{name}"), value);
            }
            let params: Vec<i64> = group.params.iter().map(|&param| param as i64).collect();
            all.insert(format!("param_groups.{index}.params"), tensor(params, "cpu")?);
        }
        Ok(all)
    }

    /// Converts back from the tensors of [`OptimizerState::to_tensors`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if a name is neither `state.N.…` nor
    /// `param_groups.N.…`; errors of [`Tensor::to_vec`] and [`Tensor::to_scalar`].
    #[track_caller]
    pub fn from_tensors(tensors: &StateDict) -> Result<Self> {
        let mut all = Self::default();
        for (name, tensor) in tensors.iter() {
            let parts: Vec<&str> = name.splitn(3, '.').collect();
            let (kind, index, field) = match parts[..] {
                [kind, index, field] => (kind, index.parse::<usize>().ok(), field),
                _ => ("", None, ""),
            };
            match (kind, index) {
                ("state", Some(index)) => {
                    all.state.entry(index).or_default().insert(field.into(), tensor.clone());
                }
                // The bound keeps a corrupt index from allocating many groups.
                ("param_groups", Some(index)) if index < tensors.len() => {
                    if all.param_groups.len() <= index {
                        all.param_groups.resize_with(index + 1, GroupState::default);
                    }
                    let group = &mut all.param_groups[index];
                    if field == "params" {
                        let params = tensor.to_vec::<i64>()?;
                        group.params = params.into_iter().map(|param| param as usize).collect();
                    } else {
                        group.settings.insert(field.into(), number(tensor)?);
                    }
                }
                _ => {
                    let reason = format!("`{name}` is neither `state.N.…` nor `param_groups.N.…`");
                    return Err(Error::invalid("OptimizerState", reason));
                }
            }
        }
        Ok(all)
    }
}

#[track_caller]
fn number(tensor: &Tensor) -> Result<f64> {
    tensor.to_scalar().map(|number| number.to_f64())
}

/// Returns the state of `optimizer`.
#[track_caller]
pub(super) fn save<R: Rule>(optimizer: &Optim<R>) -> Result<OptimizerState> {
    let mut all = OptimizerState::default();
    let mut index = 0;
    for (group, states) in optimizer.groups.iter().zip(&optimizer.states) {
        let first = index;
        for state in states {
            let mut tensors = BTreeMap::new();
            for (name, tensor) in R::TENSORS.iter().zip(&state.tensors) {
                if let Some(tensor) = tensor {
                    tensors.insert((*name).to_owned(), tensor.clone());
                }
            }
            if let Some(counter) = &state.counter {
                tensors.insert("step".into(), counter.clone());
            } else if state.step > 0 {
                let step = full([], state.step as f64, (DType::F64, "cpu"))?;
                tensors.insert("step".into(), step);
            }
            if !tensors.is_empty() {
                all.state.insert(index, tensors);
            }
            index += 1;
        }
        all.param_groups.push(group.save(first));
    }
    Ok(all)
}

/// Restores a saved state. Changes nothing unless the state fits `optimizer`.
#[track_caller]
pub(super) fn load<R: Rule>(optimizer: &mut Optim<R>, saved: &OptimizerState) -> Result<()> {
    let location = Location::caller();
    let invalid = |reason: String| Err(Error::invalid("load_state_dict", reason).at(location));
    let (own, given) = (optimizer.groups.len(), saved.param_groups.len());
    if own != given {
        return invalid(format!("the state has {given} groups of parameters, the optimizer {own}"));
    }
    let mut groups = Vec::new();
    let mut states = Vec::new();
    let mut known = 0;
    for (index, (group, of)) in optimizer.groups.iter().zip(&saved.param_groups).enumerate() {
        let new = group.load(index, of)?;
        for (place, number) in of.params.iter().enumerate() {
            let param = &group.params()[place];
            known += usize::from(saved.state.contains_key(number));
            states.push(load_param_state::<R>(param, *number, saved.state.get(number))?);
        }
        groups.push(new);
    }
    if known != saved.state.len() {
        return invalid("the state has parameters that are in none of its groups".into());
    }
    // Copy into the existing tensors, because captured steps read that memory. Of parameters that share a step counter,
    // the first keeps it, with those that have the same count in the loaded state. The others get a new counter in the
    // next step.
    let mut states = states.into_iter();
    let mut counted: Vec<(u64, u64)> = Vec::new();
    for former in optimizer.states.iter_mut().flatten() {
        let Some(new) = states.next() else { break };
        let mut state = reuse_tensors(former, new)?;
        if let Some(counter) = &former.counter {
            let (at, step) = (counter.data_ptr(), state.step);
            let earlier = counted.iter().find(|of| of.0 == at);
            if earlier.is_none_or(|of| of.1 == step) {
                counter.fill_(step as f64)?;
                counted.push((at, step));
                state.counter = Some(counter.clone());
            }
        }
        *former = state;
    }
    for group in &groups {
        if let Some(lr) = &group.lr_tensor {
            lr.fill_(group.setting("lr").unwrap_or(0.0))?;
        }
    }
    optimizer.groups = groups;
    Ok(())
}

/// Copies the saved state of a parameter.
#[track_caller]
fn load_param_state<R: Rule>(
    param: &Tensor,
    number: usize,
    saved: Option<&BTreeMap<String, Tensor>>,
) -> Result<ParamState> {
    let mut state = ParamState::default();
    for (name, tensor) in saved.into_iter().flatten() {
        if name == "step" {
            state.step = self::number(tensor)? as u64;
            continue;
        }
        let Some(which) = R::TENSORS.iter().position(|own| own == name) else {
            let reason = format!("{} keeps no {name} of a parameter", R::NAME);
            return Err(Error::invalid("load_state_dict", reason));
        };
        if tensor.size() != param.size() {
            let (given, own) = (tensor.size(), param.size());
            let reason = format!(
                "{name} of parameter {number} is of shape {given:?}, the parameter of {own:?}"
            );
            return Err(Error::invalid("load_state_dict", reason));
        }
        let copy = param.zeros_like(())?;
        copy.copy_(tensor, ())?;
        state.tensors[which] = Some(copy);
    }
    Ok(state)
}

/// Copies a new state into the tensors of the former state, if both have them.
#[track_caller]
fn reuse_tensors(former: &ParamState, new: ParamState) -> Result<ParamState> {
    let mut tensors = new.tensors;
    for (tensor, former) in tensors.iter_mut().zip(&former.tensors) {
        if let (Some(new), Some(former)) = (&*tensor, former) {
            former.copy_(new, ())?;
            *tensor = Some(former.clone());
        }
    }
    Ok(ParamState { step: new.step, counter: None, tensors })
}
