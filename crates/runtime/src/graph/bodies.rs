//! The bodies of conditional nodes in a capture's log.

use std::collections::{HashMap, HashSet};

use warpline_stream::{BodyGuard, CapturedStream, ConditionalKind, OpNumber, Stream};

use super::GraphLog;
use crate::storage::Use;
use crate::{Error, Result, Site, Storage};

/// The bodies of a capture.
#[derive(Default)]
pub(super) struct Bodies {
    /// The bodies in progress, the innermost last.
    open: Vec<OpenBody>,
    /// For each finished body, by the identifier of its stream: the twin of the stream that its
    /// node is on, and the number of the node.
    ended: HashMap<u64, (Stream, OpNumber)>,
    /// Storages that a body in progress uses and that were made outside it, by key.
    kept: HashMap<usize, Storage>,
    /// Name of the op whose body failed.
    broken: Option<&'static str>,
}

/// A body in progress.
struct OpenBody {
    twin: Stream,
    /// Identifier of the stream for which the body allocates memory.
    home: u64,
    kind: ConditionalKind,
    /// Keys of the storages made in the body. Their log keeps the keys from being reused.
    made: HashSet<usize>,
}

impl Bodies {
    /// Returns the twin that stands for a stream in the innermost body, if the body allocates memory
    /// for this stream.
    pub(super) fn twin_of(&self, stream: u64) -> Option<&Stream> {
        self.open.iter().rev().find(|body| body.home == stream).map(|body| &body.twin)
    }

    /// Records a storage made in the capture.
    pub(super) fn add_made(&mut self, key: usize) {
        if let Some(body) = self.open.last_mut() {
            body.made.insert(key);
        }
    }

    /// Keeps a storage of the graph's pool that the innermost body uses, unless the body made it.
    pub(super) fn keep(&mut self, storage: &Storage) {
        if self.open.last().is_some_and(|body| !body.made.contains(&storage.key())) {
            self.kept.entry(storage.key()).or_insert_with(|| storage.clone());
        }
    }

    /// Fails if random ops cannot be captured now.
    pub(super) fn check_random(&self, captured: &CapturedStream, site: Site) -> Result<()> {
        let in_loop = self.open.iter().any(|body| body.kind == ConditionalKind::While);
        if !(in_loop && captured.home().is_some()) {
            return Ok(());
        }
        let reason = "each run of a loop's body would draw the same random numbers; draw them \
                      before the loop";
        Err(Error::capture(site.op, reason).at(site.location))
    }

    /// Makes `twin` wait for a captured use. A use in a finished body ends with the body's node.
    pub(super) fn wait_for(&self, twin: &Stream, used: &Use) -> Result<()> {
        let (mut stream, mut op) = (&used.stream, used.op);
        while !twin.is_ordered_after(stream, op)? {
            match self.ended.get(&stream.id()) {
                Some((outer, node)) => (stream, op) = (outer, *node),
                None => return twin.wait_for(stream, op),
            }
        }
        Ok(())
    }

    /// Returns the name of the op whose body failed or has not ended.
    pub(super) fn broken(&self) -> Option<&'static str> {
        let open = self.open.first().map(|body| match body.kind {
            ConditionalKind::If => "graph_if",
            ConditionalKind::While => "graph_while",
        });
        self.broken.or(open)
    }
}

impl GraphLog {
    /// Returns the number of bodies in progress, which are nested in one another.
    pub(super) fn depth(&self) -> usize {
        self.records().bodies.open.len()
    }

    /// Records that a body was begun. The body allocates memory for the stream `home`.
    pub(super) fn begin_body(&self, guard: &BodyGuard, home: u64, kind: ConditionalKind) {
        let (twin, made) = (guard.twin().clone(), HashSet::new());
        self.records().bodies.open.push(OpenBody { twin, home, kind, made });
    }

    /// Ends a body.
    #[track_caller]
    pub(super) fn end_body(&self, guard: BodyGuard, join: bool) -> Result<()> {
        let (twin, outer) = (guard.twin().clone(), guard.outer_twin().clone());
        let ended = guard.end(join);
        let mut records = self.records();
        let bodies = &mut records.bodies;
        // A body that ends before the bodies within it ends these, too.
        if let Some(at) = bodies.open.iter().position(|body| body.twin == twin) {
            bodies.open.truncate(at);
        }
        let op = ended.as_ref().map_or_else(|_| outer.last_op(), |op| *op);
        bodies.ended.insert(twin.id(), (outer, op));
        let kept = match bodies.open.is_empty() {
            true => std::mem::take(&mut bodies.kept),
            false => HashMap::new(),
        };
        drop(records);
        // Dropping a storage locks the records.
        drop(kept);
        ended.map(drop)
    }

    /// Records that a body of the op failed, so that the capture fails at its end.
    pub(super) fn break_off(&self, op: &'static str) {
        self.records().bodies.broken.get_or_insert(op);
    }
}
