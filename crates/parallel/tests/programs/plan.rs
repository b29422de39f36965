//! A program with the predictions of the model, and the groups of steps that run at the same time.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::apply::Expect;
use crate::generate::Step;
use crate::model::{Blur, Model, Track, Value};
use crate::ops;
use crate::row::{Effect, Values};

/// A step with its prediction.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) step: Step,
    pub(crate) expect: Expect,
    pub(crate) args: Vec<Value>,
    /// Whether all results are new tensors.
    pub(crate) dense: bool,
    /// Number of bytes of the tensors of each device after the step. `None` if a graph may also own
    /// memory.
    pub(crate) allocated: Option<[usize; 2]>,
}

/// A predicted program.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Planned>,
    pub(crate) groups: Vec<Range<usize>>,
    /// Tensors that are live at the end, by step and result, each with the predicted agreement of
    /// its values between CPU and GPU.
    pub(crate) live: Vec<((usize, usize), Blur)>,
    /// Whether the gradients of the CPU and the GPU agree up to rounding.
    pub(crate) close_gradients: bool,
    /// One handle per leaf that requires a gradient.
    pub(crate) leaves: Vec<(usize, usize)>,
}

/// Predicts a program. Leaves out steps that the model cannot predict, such as those whose
/// arguments come from steps that were left out.
pub(crate) fn plan(program: &[Step]) -> Plan {
    let mut model = Model::default();
    let mut steps: Vec<Planned> = Vec::new();
    for step in program {
        let args: Option<Vec<Value>> =
            step.tensors.iter().map(|at| model.values.get(at).cloned()).collect();
        let Some(args) = args else { continue };
        let Some(expect) = model.apply(step) else { continue };
        let dense = match &expect {
            Expect::Ok(values) => {
                values.iter().all(|v| args.iter().all(|arg| arg.storage != v.storage))
            }
            _ => true,
        };
        let allocated = (!model.graphs).then(|| [model.allocated(0), model.allocated(1)]);
        steps.push(Planned { step: step.clone(), expect, args, dense, allocated });
    }
    let (mut leaves, mut seen) = (Vec::new(), BTreeSet::new());
    for (at, value) in &model.values {
        if value.track == Track::Leaf && seen.insert(value.identity) {
            leaves.push(*at);
        }
    }
    let live = model.values.iter().map(|(at, value)| (*at, model.blur(value))).collect();
    let groups = groups(&steps);
    Plan { steps, groups, live, close_gradients: !model.blurred, leaves }
}

fn groups(steps: &[Planned]) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    for k in 0..steps.len() {
        match groups.last_mut() {
            Some(group)
                if steps[k].step.beside
                    && group.len() < 4
                    && steps[group.clone()].iter().all(|other| independent(other, &steps[k])) =>
            {
                group.end = k + 1;
            }
            _ => groups.push(k..k + 1),
        }
    }
    groups
}

/// Returns whether two steps that run at the same time have the same results as one after the
/// other.
fn independent(a: &Planned, b: &Planned) -> bool {
    let row = |p: &Planned| &ops::table()[p.step.row];
    let exclusive = |p: &Planned| {
        let free = matches!(row(p).effect, Effect::None | Effect::Writes | Effect::Read);
        row(p).exclusive
            || row(p).values == Values::Random
            || !free
            || row(p).effect == Effect::Writes && p.args.iter().any(Value::tracked)
    };
    let writes = |p: &Planned| row(p).effect == Effect::Writes;
    let uses = |p: &Planned, storage: usize| p.args.iter().any(|arg| arg.storage == storage);
    let meets = |a: &Planned, b: &Planned| writes(a) && uses(b, a.args[0].storage);
    let made = b.step.tensors.iter().any(|(id, _)| *id == a.step.id);
    !exclusive(a) && !exclusive(b) && !made && !meets(a, b) && !meets(b, a)
}
