//! What a rank called, as it is compared with the other ranks' calls.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use warpline::Tensor;
use warpline_cuda_sys_safe::nccl::ReduceOp;
use warpline_kernels::collective::Calls;

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
    /// Of a replay, what was captured.
    calls: Option<Calls>,
}

impl Signature {
    pub(super) fn new(op: &'static str) -> Self {
        Self { op, shapes: SmallVec::new(), reduce: None, root: None, peer: None, calls: None }
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

    /// The calls that a replay makes. With any among them that not all ranks make, no other rank need
    /// have the like.
    pub(super) fn calls(mut self, calls: &Calls) -> Self {
        let alone = calls.iter().any(|call| matches!(*call, "send" | "recv" | "batch_isend_irecv"));
        self.peer = alone.then_some((usize::MAX, true));
        self.calls = Some(Arc::clone(calls));
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
        for calls in self.calls.iter().flat_map(|calls| calls.chunk_by(|a, b| a == b)) {
            match calls.len() {
                1 => write!(f, "{between}{}", calls[0])?,
                count => write!(f, "{between}{count} x {}", calls[0])?,
            }
            between = ", ";
        }
        f.write_str(")")
    }
}
