//! Signatures of calls, which are compared between ranks.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use warpline::Tensor;
use warpline_cuda_sys_safe::nccl::ReduceOp;
use warpline_runtime::CallNames;

/// A dtype, and the sizes if they must be equal on all ranks.
type TensorSignature = (&'static str, Option<SmallVec<[usize; 4]>>);

/// The properties of a call that are compared between ranks. Those of a collective must be equal on all ranks, except
/// the parts. A send must match the other rank's receive ([`Signature::content`]).
#[derive(Clone, Debug)]
pub(super) struct Signature {
    pub(super) op: &'static str,
    /// Dtypes and sizes of the tensors.
    tensors: SmallVec<[TensorSignature; 2]>,
    reduce: Option<ReduceOp>,
    root: Option<usize>,
    /// For a send or receive, the other rank and the direction (`true`: this rank sends). The rank is `usize::MAX` for
    /// several peers.
    pub(super) peer: Option<(usize, bool)>,
    /// Description of the tensors' content, such as the parameters of a bucket.
    label: Option<Arc<str>>,
    /// For a replay, the captured calls.
    calls: Option<CallNames>,
    /// In debug mode, the sends and receives that the call consists of.
    pub(super) parts: Vec<Signature>,
}

impl Signature {
    pub(super) fn new(op: &'static str) -> Self {
        Self {
            op,
            tensors: SmallVec::new(),
            reduce: None,
            root: None,
            peer: None,
            label: None,
            calls: None,
            parts: Vec::new(),
        }
    }

    pub(super) fn of(mut self, tensor: &Tensor) -> Self {
        self.tensors.push((tensor.dtype().name(), Some(SmallVec::from_slice(tensor.size()))));
        self
    }

    /// Adds a tensor whose sizes may differ from rank to rank.
    pub(super) fn of_dtype(mut self, tensor: &Tensor) -> Self {
        self.tensors.push((tensor.dtype().name(), None));
        self
    }

    pub(super) fn parts(mut self, parts: impl Iterator<Item = Signature>) -> Self {
        self.parts.extend(parts);
        self
    }

    /// Returns the number of elements and the dtype of a send or receive. Both ends must have the same.
    pub(super) fn content(&self) -> String {
        let content = self.tensors.first().map(|(dtype, sizes)| {
            let count: usize = sizes.iter().flatten().product();
            format!("{count} of {dtype}")
        });
        content.unwrap_or_default()
    }

    pub(super) fn reduce(mut self, op: ReduceOp) -> Self {
        self.reduce = Some(op);
        self
    }

    pub(super) fn root(mut self, root: usize) -> Self {
        self.root = Some(root);
        self
    }

    /// Adds the ranks of a new group.
    pub(super) fn ranks(mut self, ranks: &[usize]) -> Self {
        self.tensors.push(("ranks ", Some(SmallVec::from_slice(ranks))));
        self
    }

    /// Adds the calls of a replay. If one of the calls is a send or receive, other ranks need not replay a matching
    /// graph, so the replay is not numbered as a collective.
    pub(super) fn calls(mut self, calls: &CallNames) -> Self {
        let alone = calls.iter().any(|call| matches!(*call, "send" | "recv" | "batch_isend_irecv"));
        self.peer = alone.then_some((usize::MAX, true));
        self.calls = Some(Arc::clone(calls));
        self
    }

    pub(super) fn label(mut self, label: &Arc<str>) -> Self {
        self.label = Some(Arc::clone(label));
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
        for (dtype, sizes) in &self.tensors {
            write!(f, "{between}{dtype}")?;
            sizes.iter().try_for_each(|sizes| write!(f, "{sizes:?}"))?;
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
        if let Some(label) = &self.label {
            write!(f, "{between}{label}")?;
            between = ", ";
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
