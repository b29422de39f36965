//! The graph: a node for each op that was recorded, whose edges lead to where its inputs came from.

use std::cell::RefCell;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use warpline_runtime::Sizes;
use warpline_stream::Stream;

use super::Context;
use super::hooks::Hook;
use super::saved::Saved;
use crate::{DType, Device, Result, Tensor};

/// Gradients of an op's inputs, in their order; `None` where there is none.
pub type Gradients = SmallVec<[Option<Tensor>; 2]>;

/// From the gradients of an op's results to those of its inputs.
pub(super) type Rule =
    Box<dyn Fn(&Context<'_>, &[Option<Tensor>]) -> Result<Gradients> + Send + Sync>;

/// What a node does with the gradients that come in.
pub(super) enum Work {
    /// Passes them on to where the inputs came from.
    Rule(Rule),
    /// Adds them to a leaf's.
    Accumulate(Tensor),
}

/// A place where a gradient goes: one of a node's results.
#[derive(Clone)]
pub(crate) struct Edge {
    pub(super) node: Arc<Node>,
    pub(super) output: usize,
}

/// What a gradient has to look like.
#[derive(Clone, PartialEq)]
pub(super) struct Like {
    pub(super) sizes: Sizes,
    pub(super) dtype: DType,
    pub(super) device: Device,
}

impl Like {
    pub(super) fn of(tensor: &Tensor) -> Self {
        Self { sizes: tensor.size().into(), dtype: tensor.dtype(), device: tensor.device() }
    }
}

impl fmt::Display for Like {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a tensor of shape {:?}, {} on {}", &self.sizes[..], self.dtype, self.device)
    }
}

/// One of a node's inputs.
pub(super) struct Next {
    /// `None` if it wants no gradient.
    pub(super) edge: Option<Edge>,
    pub(super) like: Like,
}

/// An op that was recorded, or a leaf's accumulator.
pub(crate) struct Node {
    /// Of two nodes, the later one is the first in a backward pass.
    pub(super) number: u64,
    pub(super) name: &'static str,
    pub(super) location: &'static Location<'static>,
    /// The stream that its forward op ran on.
    pub(super) stream: Option<Stream>,
    pub(super) next: SmallVec<[Next; 2]>,
    /// How many results it had.
    pub(super) outputs: usize,
    /// `None` once a backward pass has freed it.
    pub(super) saved: Mutex<Option<SmallVec<[Saved; 2]>>>,
    pub(super) work: Work,
    /// The node of an in-place op on a view, which this one wraps.
    pub(super) inner: Option<Arc<Node>>,
    pub(super) hooks: Mutex<Vec<Hook>>,
}

static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// Accumulators come first whenever they can.
pub(super) const FIRST: u64 = u64::MAX;

pub(super) fn number() -> u64 {
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

impl Node {
    pub(super) fn saved(&self) -> MutexGuard<'_, Option<SmallVec<[Saved; 2]>>> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees what was saved.
    pub(super) fn release(&self) {
        drop(self.saved().take());
        if let Some(inner) = &self.inner {
            inner.release();
        }
    }

    /// PyTorch's name of it: `MulBackward0` of `mul`.
    pub(super) fn title(&self) -> String {
        if matches!(self.work, Work::Accumulate(_)) || self.name == "CopySlices" {
            return self.name.to_string();
        }
        let mut title = String::new();
        for word in self.name.trim_end_matches('_').split('_') {
            let mut letters = word.chars();
            title.extend(letters.next().map(|c| c.to_ascii_uppercase()));
            title.push_str(letters.as_str());
        }
        title + "Backward0"
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} at {}", self.title(), self.name, self.location)
    }
}

thread_local! {
    /// What nodes that are being dropped held, while some are.
    static DROPPING: RefCell<Option<Vec<Held>>> = const { RefCell::new(None) };
}

type Held = (SmallVec<[Next; 2]>, Option<SmallVec<[Saved; 2]>>);

/// A long graph is dropped node by node: each would else drop the next from within, as deep as the graph.
impl Drop for Node {
    fn drop(&mut self) {
        let saved = self.saved.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let held = (std::mem::take(&mut self.next), saved);
        // Where the thread is being torn down the nodes drop each other.
        let _ = DROPPING.try_with(|dropping| {
            if let Some(list) = dropping.borrow_mut().as_mut() {
                list.push(held);
                return;
            }
            dropping.replace(Some(vec![held]));
            loop {
                let next = dropping.borrow_mut().as_mut().and_then(Vec::pop);
                match next {
                    Some(held) => drop(held),
                    None => break,
                }
            }
            dropping.replace(None);
        });
    }
}
