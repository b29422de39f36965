//! Saved state of L-BFGS. As in PyTorch, the first parameter has the whole state. The entries of a list have the list's
//! name and their index, as in `old_dirs.0`.

use std::collections::{BTreeMap, VecDeque};

use warpline::__Called as _;
use warpline::{DType, Error, Result, Tensor, full};

use super::{LBFGS, LBFGSMemory};
use crate::optim::OptimizerState;

/// Returns the state of `optimizer`.
#[track_caller]
pub(super) fn save(optimizer: &LBFGS) -> Result<OptimizerState> {
    let mut tensors = BTreeMap::new();
    let mut numbers = Vec::new();
    if optimizer.func_evals > 0 {
        numbers.push(("func_evals".to_owned(), optimizer.func_evals as f64));
        numbers.push(("n_iter".to_owned(), optimizer.n_iter as f64));
    }
    if let Some(memory) = &optimizer.memory {
        numbers.push(("t".to_owned(), memory.t));
        numbers.push(("H_diag".to_owned(), memory.h_diag));
        numbers.push(("prev_loss".to_owned(), memory.prev_loss));
        let ro = memory.ro.iter().enumerate();
        numbers.extend(ro.map(|(i, &ro)| (format!("ro.{i}"), ro)));
        tensors.insert("d".to_owned(), memory.d.clone());
        tensors.insert("prev_flat_grad".to_owned(), memory.prev_flat_grad.clone());
        for (list, name) in [(&memory.old_dirs, "old_dirs"), (&memory.old_stps, "old_stps")] {
            let list = list.iter().enumerate();
            tensors.extend(list.map(|(i, tensor)| (format!("{name}.{i}"), tensor.clone())));
        }
    }
    for (name, number) in numbers {
        tensors.insert(name, full([], number, (DType::F64, "cpu"))?);
    }
    let mut all = OptimizerState::default();
    if !tensors.is_empty() {
        all.state.insert(0, tensors);
    }
    all.param_groups.push(optimizer.group.save(0));
    Ok(all)
}

/// Restores a saved state. Changes nothing unless the state fits `optimizer`.
#[track_caller]
pub(super) fn load(optimizer: &mut LBFGS, saved: &OptimizerState) -> Result<()> {
    let [group] = &saved.param_groups[..] else {
        let given = saved.param_groups.len();
        return invalid(format!("the state has {given} groups of parameters, the optimizer 1"));
    };
    let group = optimizer.group.load(0, group)?;
    let mut state = Loader { optimizer, tensors: BTreeMap::new() };
    for (&index, tensors) in &saved.state {
        // PyTorch keeps the whole state with the first parameter.
        if Some(&index) != saved.param_groups[0].params.first() {
            return invalid(format!(
                "the state has tensors for parameter {index}, but L-BFGS keeps its state with the first parameter"
            ));
        }
        state.tensors = tensors.iter().map(|(name, tensor)| (&name[..], tensor)).collect();
    }
    let (mut func_evals, mut n_iter, mut memory) = (0, 0, None);
    if !state.tensors.is_empty() {
        (func_evals, n_iter) = (state.number("func_evals")? as u64, state.number("n_iter")? as u64);
    }
    if n_iter > 0 {
        let (old_dirs, old_stps) = (state.list("old_dirs")?, state.list("old_stps")?);
        let mut ro = VecDeque::new();
        for i in 0..old_dirs.len() {
            ro.push_back(state.number(&format!("ro.{i}"))?);
        }
        if old_stps.len() != old_dirs.len() {
            let (dirs, stps) = (old_dirs.len(), old_stps.len());
            return invalid(format!("the state has {dirs} old_dirs and {stps} old_stps"));
        }
        memory = Some(LBFGSMemory {
            d: state.vector("d")?,
            t: state.number("t")?,
            old_dirs,
            old_stps,
            ro,
            h_diag: state.number("H_diag")?,
            prev_flat_grad: state.vector("prev_flat_grad")?,
            prev_loss: state.number("prev_loss")?,
        });
    }
    if let Some(name) = state.tensors.keys().next() {
        return invalid(format!("LBFGS keeps no {name}"));
    }
    *optimizer = LBFGS { id: optimizer.id, group, func_evals, n_iter, memory };
    Ok(())
}

#[track_caller]
fn invalid<T>(reason: String) -> Result<T> {
    Err(Error::invalid("load_state_dict", reason))
}

/// The saved tensors that have not been read yet.
struct Loader<'a> {
    optimizer: &'a LBFGS,
    tensors: BTreeMap<&'a str, &'a Tensor>,
}

impl Loader<'_> {
    #[track_caller]
    fn take(&mut self, name: &str) -> Result<Tensor> {
        match self.tensors.remove(name) {
            Some(tensor) => Ok(tensor.clone()),
            None => invalid(format!("the state has no {name}")),
        }
    }

    #[track_caller]
    fn number(&mut self, name: &str) -> Result<f64> {
        self.take(name)?.item().of("load_state_dict")
    }

    /// Returns a copy with the dtype and the device of the first parameter, as PyTorch does.
    #[track_caller]
    fn vector(&mut self, name: &str) -> Result<Tensor> {
        let tensor = self.take(name)?;
        let params = self.optimizer.group.params();
        let numel: usize = params.iter().map(Tensor::numel).sum();
        if tensor.size() != [numel] {
            let given = tensor.size();
            let reason =
                format!("{name} is of shape {given:?}, the parameters have {numel} elements");
            return invalid(reason);
        }
        let to = (params[0].dtype(), params[0].device());
        let copy = warpline::empty([numel], to).of("load_state_dict")?;
        copy.copy_(&tensor, ()).of("load_state_dict")?;
        Ok(copy)
    }

    /// Returns the entries of a list.
    #[track_caller]
    fn list(&mut self, name: &str) -> Result<VecDeque<Tensor>> {
        let mut list = VecDeque::new();
        while self.tensors.contains_key(&format!("{name}.{}", list.len())[..]) {
            list.push_back(self.vector(&format!("{name}.{}", list.len()))?);
        }
        Ok(list)
    }
}
