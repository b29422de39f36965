//! The bodies of conditional nodes in a capture's log.

use std::collections::{HashMap, HashSet};

use warpline_stream::{BodyGuard, CapturedStream, ConditionalKind, Stream};

use super::GraphLog;
use super::log::{LogRecords, LoggedStorage};
use crate::storage::{Dependencies, PoolMembership};
use crate::{Error, Result, Site, Storage};

/// The bodies of a capture.
#[derive(Default)]
pub(super) struct Bodies {
    /// The bodies in progress, the innermost last.
    open: Vec<OpenBody>,
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
    /// Keys of the storages made in the body. The log keeps the keys from being reused.
    made: HashSet<usize>,
    /// Keys of the storages that the body uses. The flag is set if the body writes the storage.
    used: HashMap<usize, bool>,
}

impl Bodies {
    /// Returns the twin that stands for a stream in the innermost body, if the body allocates memory
    /// for this stream.
    pub(super) fn twin_of(&self, stream: u64) -> Option<&Stream> {
        self.open.iter().rev().find(|body| body.home == stream).map(|body| &body.twin)
    }

    /// Returns whether captured work can use a storage: it was made outside bodies, or in a body in
    /// progress.
    pub(super) fn can_use(&self, storage: &Storage) -> bool {
        let of_body = storage.member().is_some_and(PoolMembership::of_body);
        !of_body || self.open.iter().any(|body| body.made.contains(&storage.key()))
    }

    /// Records a storage made in the capture.
    pub(super) fn add_made(&mut self, key: usize) {
        if let Some(body) = self.open.last_mut() {
            body.made.insert(key);
        }
    }

    /// Records a use of a storage by the innermost body. Keeps the storage if it is `pooled`, in the
    /// graph's pool, and not made in the body.
    pub(super) fn note_use(&mut self, storage: &Storage, write: bool, pooled: bool) {
        let (key, Some(body)) = (storage.key(), self.open.last_mut()) else { return };
        *body.used.entry(key).or_default() |= write;
        if pooled && !body.made.contains(&key) {
            self.kept.entry(key).or_insert_with(|| storage.clone());
        }
    }

    /// Removes a body, and all bodies within it. Adds its uses to those of the enclosing body.
    fn close(&mut self, twin: &Stream) -> Option<OpenBody> {
        let at = self.open.iter().position(|body| body.twin == *twin)?;
        let body = self.open.drain(at..).next()?;
        if let Some(outer) = self.open.last_mut() {
            for (&key, &write) in &body.used {
                *outer.used.entry(key).or_default() |= write;
            }
        }
        Some(body)
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
        let twin = guard.twin().clone();
        let (made, used) = (HashSet::new(), HashMap::new());
        self.records().bodies.open.push(OpenBody { twin, home, kind, made, used });
    }

    /// Ends a body. From then on, its node stands for all its uses of storages.
    #[track_caller]
    pub(super) fn end_body(&self, guard: BodyGuard, join: bool) -> Result<()> {
        let (twin, outer) = (guard.twin().clone(), guard.outer_twin().clone());
        let ended = guard.end(join);
        let mut records = self.records();
        let LogRecords { bodies, storages_by_key, unreleased, made, .. } = &mut *records;
        let (body, node) = (bodies.close(&twin), (&outer, outer.last_op()));
        unreleased.iter_mut().for_each(|(_, uses)| uses.end_body(&twin, node));
        let mut marked = Ok(());
        if let Some(OpenBody { used, kind, .. }) = body {
            for key in used.keys() {
                if let Some(storage) = storages_by_key.get_mut(key) {
                    storage.uses.end_body(&twin, node);
                }
            }
            made.values_mut().filter(|made| made.prior.0.shares_capture(&twin)).for_each(|made| {
                made.prior = (outer.clone(), node.1);
            });
            if kind == ConditionalKind::While {
                marked = mark_carried(&used, storages_by_key);
            }
        }
        let kept = match bodies.open.is_empty() {
            true => std::mem::take(&mut bodies.kept),
            false => HashMap::new(),
        };
        drop(records);
        // Dropping a storage locks the records.
        drop(kept);
        ended.map(drop).and(marked)
    }

    /// Records that a body of the op failed, so that the capture fails at its end.
    pub(super) fn break_off(&self, op: &'static str) {
        self.records().bodies.broken.get_or_insert(op);
    }
}

/// Marks the results of a loop's body with the dependencies of all storages that the body uses,
/// because each run may read results of the run before.
#[track_caller]
fn mark_carried(
    used: &HashMap<usize, bool>,
    storages: &mut HashMap<usize, LoggedStorage>,
) -> Result<()> {
    let mut carried = Dependencies::new();
    for key in used.keys() {
        if let Some(storage) = storages.get_mut(key) {
            storage.uses.marks.read(&(0..usize::MAX), &mut carried)?;
        }
    }
    for (key, _) in used.iter().filter(|(_, writes)| **writes) {
        if let Some(storage) = storages.get_mut(key) {
            let bytes = 0..storage.bytes;
            storage.uses.marks.add(&bytes, &carried);
        }
    }
    Ok(())
}
