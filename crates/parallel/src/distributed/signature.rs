//! What a rank called, as it is compared with the other ranks' calls.

use std::fmt;

use smallvec::SmallVec;
use warpline::Tensor;
use warpline_cuda_sys_safe::nccl::ReduceOp;

/// A dtype and sizes.
type Shape = (&'static str, SmallVec<[usize; 4]>);

/// A call as it is compared between ranks.
#[derive(Clone, Debug)]
pub(super) struct Signature {
    pub(super) op: &'static str,
    /// Dtypes and sizes, where they have to be the same on all ranks.
    shapes: SmallVec<[Shape; 2]>,
    reduce: Option<ReduceOp>,
    root: Option<usize>,
    /// The other rank, of what only two ranks do, and whether this one sends. `usize::MAX` is of
    /// several.
    pub(super) peer: Option<(usize, bool)>,
}

impl Signature {
    pub(super) fn new(op: &'static str) -> Self {
        Self { op, shapes: SmallVec::new(), reduce: None, root: None, peer: None }
    }

    pub(super) fn of(mut self, tensor: &Tensor) -> Self {
        self.shapes.push((tensor.dtype().name(), SmallVec::from_slice(tensor.size())));
        self
    }

    pub(super) fn reduce(mut self, op: ReduceOp) -> Self {
        self.reduce = Some(op);
        self
    }

    pub(super) fn root(mut self, root: usize) -> Self {
        self.root = Some(root);
        self
    }

    /// The ranks of a group.
    pub(super) fn ranks(mut self, ranks: &[usize]) -> Self {
        self.shapes.push(("ranks ", SmallVec::from_slice(ranks)));
        self
    }

    pub(super) fn peer(mut self, peer: usize, sends: bool) -> Self {
        self.peer = Some((peer, sends));
        self
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.op)?;
        let mut between = "";
        for (dtype, sizes) in &self.shapes {
            write!(f, "{between}{dtype}{sizes:?}")?;
            between = ", ";
        }
        if let Some(reduce) = self.reduce {
            write!(f, "{between}{reduce:?}")?;
            between = ", ";
        }
        if let Some(root) = self.root {
            write!(f, "{between}root {root}")?;
            between = ", ";
        }
        if let Some((peer, sends)) = self.peer.filter(|(peer, _)| *peer != usize::MAX) {
            write!(f, "{between}{} {peer}", if sends { "to" } else { "from" })?;
        }
        f.write_str(")")
    }
}
