//! Applies steps to the model.

use warpline::DType;

use crate::generate::Step;
use crate::model::{
    ANY, Blur, Kinds, Memory, Model, Out, Track, UNKNOWN, Value, dense_strides, writable,
};
use crate::ops;
use crate::row::{Effect, Values};

/// The predicted outcome of a step.
#[derive(Clone, Debug)]
pub(crate) enum Expect {
    /// The step returns these tensors.
    Ok(Vec<Value>),
    /// The step fails with one of these kinds and changes nothing.
    Err(Kinds),
    /// The step succeeds without results, or fails with one of these kinds.
    Either(Kinds),
}

impl Model {
    /// Applies a step. Returns `None` and changes nothing if the model cannot predict the step.
    pub(crate) fn apply(&mut self, step: &Step) -> Option<Expect> {
        let row = &ops::table()[step.row];
        let args: Option<Vec<Value>> =
            step.tensors.iter().map(|at| self.values.get(at).cloned()).collect();
        let args = args?;
        let blur = args.iter().map(|v| self.blur(v)).max().unwrap_or(Blur::Exact);
        if row.sharp && blur != Blur::Exact {
            return None;
        }
        let outs = match (row.predict)(&args, &step.numbers) {
            Ok(outs) => outs,
            Err(UNKNOWN) => return None,
            Err(ANY) => return Some(Expect::Either(ANY)),
            // If a tensor requires a gradient, a write with a wrong argument may be refused for either
            // reason.
            Err(_) if row.effect == Effect::Writes && self.graphs => return None,
            // A call with two mistakes may be refused for either.
            Err(kinds)
                if row.effect == Effect::Writes
                    && writable(&args[0]).is_err_and(|other| other != kinds) =>
            {
                return None;
            }
            Err(kinds) => return Some(Expect::Err(kinds)),
        };
        if outs.len() > 16 {
            return None;
        }
        let tracks = |v: &Value| v.is_float() && v.tracked();
        // The graph of such a write may own the leaf, and the leaf its memory. Both are then never freed.
        if row.effect == Effect::Writes
            && self.memory.get(&args[0].storage).is_some_and(|memory| memory.has_leaf)
            && args[1..].iter().any(tracks)
        {
            return None;
        }
        let blur = match (row.values, blur) {
            (Values::Same, Blur::Close) => Blur::Free,
            (Values::Same, blur) => blur,
            (Values::Rounded, Blur::Exact) => Blur::Close,
            _ => Blur::Free,
        };
        self.blurred |= blur != Blur::Exact;
        let tracked: Vec<&Value> = args.iter().filter(|v| tracks(v)).collect();
        let mut expect = None;
        match row.effect {
            Effect::Writes => {
                let to = &args[0];
                if to.track == Track::Leaf || to.of_leaf {
                    return Some(Expect::Err(&["Gradient"]));
                }
                let track = self.shares_graph(to.storage);
                if !tracked.is_empty() && to.is_float() {
                    expect = Some(Expect::Either(&["Gradient"]));
                }
                self.hazard |= track || !tracked.is_empty();
                self.blur_storage(to.storage, blur, to.dtype);
                if !tracked.is_empty() && to.is_float() {
                    for value in self.values.values_mut().filter(|v| v.storage == to.storage) {
                        if value.track != Track::Leaf {
                            value.track = Track::Maybe;
                        }
                    }
                }
            }
            Effect::WritesDetached => {
                self.hazard |= self.shares_graph(args[0].storage);
                self.blur_storage(args[0].storage, blur, args[0].dtype);
            }
            Effect::Leaf => {
                if args[0].track == Track::No {
                    let leaf = args[0].identity;
                    for value in self.values.values_mut().filter(|v| v.identity == leaf) {
                        value.track = Track::Leaf;
                    }
                    self.graphs = true;
                    if let Some(memory) = self.memory.get_mut(&args[0].storage) {
                        memory.has_leaf = true;
                    }
                }
            }
            Effect::Backward { retains } => {
                match args[0].track {
                    Track::No => return Some(Expect::Err(&["Gradient"])),
                    Track::Leaf => {}
                    Track::Node if !self.hazard => {}
                    _ => expect = Some(Expect::Either(&["Gradient"])),
                }
                self.hazard |= !retains;
            }
            Effect::Drop => drop(self.values.remove(&step.tensors[0])),
            Effect::None | Effect::Read => {}
        }
        let results: Vec<Value> =
            outs.into_iter().map(|out| self.result(out, &args, row.differentiable, blur)).collect();
        for (k, value) in results.iter().enumerate() {
            self.values.insert((step.id, k), value.clone());
        }
        Some(expect.unwrap_or(Expect::Ok(results)))
    }

    /// Returns whether a tensor in a storage may be part of a graph.
    fn shares_graph(&self, _storage: usize) -> bool {
        // A node may still hold a saved tensor that the program has dropped.
        self.graphs
    }

    fn blur_storage(&mut self, storage: usize, blur: Blur, dtype: DType) {
        let memory = self.memory.get_mut(&storage).expect("a live storage");
        let blur = if dtype.is_float() || blur == Blur::Free { blur } else { Blur::Exact };
        memory.blur = memory.blur.max(blur);
    }

    fn result(
        &mut self,
        out: Out,
        args: &[Value],
        differentiable: Option<bool>,
        blur: Blur,
    ) -> Value {
        let follows = |dtype: DType| {
            let tracks = args.iter().filter(|v| v.is_float()).map(|v| v.track);
            let tracks: Vec<Track> = tracks.filter(|track| *track != Track::No).collect();
            match differentiable {
                _ if tracks.is_empty() || !dtype.is_float() => Track::No,
                Some(false) => Track::No,
                Some(true) if tracks.iter().any(|track| *track != Track::Maybe) => Track::Node,
                _ => Track::Maybe,
            }
        };
        let identity = self.number();
        match out {
            Out::New { dtype, place, sizes } => {
                let storage = self.number();
                let exact = !dtype.is_float() && blur == Blur::Close;
                let bytes = sizes.iter().product::<usize>() * dtype.size();
                let blur = if exact { Blur::Exact } else { blur };
                let memory = Memory { bytes, place, blur, has_leaf: false };
                self.memory.insert(storage, memory);
                let (strides, track) = (dense_strides(&sizes), follows(dtype));
                let (offset, of_leaf) = (0, false);
                Value { identity, storage, dtype, place, sizes, strides, offset, track, of_leaf }
            }
            Out::View { of, sizes, strides, offset } => {
                let base = &args[of];
                let of_leaf = base.track == Track::Leaf || base.of_leaf;
                let track = follows(base.dtype);
                Value { identity, sizes, strides, offset, track, of_leaf, ..base.clone() }
            }
            Out::Same(of) => {
                let same = self.values.values().find(|v| v.identity == args[of].identity);
                same.unwrap_or(&args[of]).clone()
            }
            Out::Detached(of) => {
                Value { identity, track: Track::No, of_leaf: false, ..args[of].clone() }
            }
        }
    }
}
