//! Where captures begin and replays are enqueued.

use std::sync::Arc;

use warpline_cuda_sys_safe::CaptureMode;
use warpline_cuda_sys_safe::owned::GraphExec;
use warpline_stream::{CaptureLog, CheckedLaunch, Mailbox, Stream};

use super::cpu::with_host_locks;
use super::cuda::{enqueue_now, located};
use super::{Flows, Marking};
use crate::race::Touch;
use crate::storage::{Site, Source};
use crate::{Result, Storage};

/// Begins to capture a stream.
#[track_caller]
pub(crate) fn begin_capture(stream: &Stream, log: CaptureLog) -> Result<()> {
    stream.begin_capture(log, |raw| {
        // SAFETY: all work that this crate enqueues on a captured stream goes through `Log`,
        // which keeps the storages it uses, or the pool they lie in, for as long as the graph
        // can be replayed; replays are declared as uses of them, so that their memory goes to
        // nobody else before a replay is done.
        unsafe { raw.begin_capture(CaptureMode::Relaxed) }
    })?;
    Ok(())
}

/// Enqueues a replay, which uses `storages` (each once, with whether it is written). Its kernels
/// say in `mailboxes` that a check failed; `flows` says what that makes of the storages.
pub(crate) fn replay(
    exec: &GraphExec,
    mailboxes: &[Arc<Mailbox>],
    flows: &Flows,
    stream: &Stream,
    storages: &mut [(&Storage, bool)],
    site: Site,
) -> Result<()> {
    storages.sort_unstable_by_key(|(storage, _)| storage.key());
    let pinned = storages.iter().copied().filter(|(storage, _)| storage.is_pinned());
    let touches: Vec<Touch<'_>> = storages.iter().copied().map(Touch::from).collect();
    let marking = Marking { flows: Some(flows), ..Marking::default() };
    with_host_locks(pinned, || {
        enqueue_now(stream, storages, &touches, site, &marking, |_| {
            // Before the launch: it may have failed by the time that this returns.
            let op = stream.last_op() + 1;
            let replay = |mailbox: &Arc<Mailbox>| mailbox.enter_replay(stream, op);
            let replays: Vec<CheckedLaunch> = mailboxes.iter().filter_map(replay).collect();
            exec.launch(stream.raw()).inspect_err(|_| {
                mailboxes.iter().zip(&replays).for_each(|(mailbox, r)| mailbox.withdraw(r));
            })?;
            marking.own.borrow_mut().extend(replays.into_iter().map(Source::Launch));
            stream.note_launch(site.op, site.location, std::iter::empty());
            Ok(())
        })
    })
    .map_err(|e| located(e, stream, site))?;
    Ok(())
}
