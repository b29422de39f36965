//! Where replays are enqueued.

use std::sync::Arc;

use warpline_cuda_sys_safe::owned::GraphExec;
use warpline_stream::{CheckedLaunch, Mailbox, Stream};

use super::cpu::with_host_locks;
use super::cuda::{enqueue_now, located};
use super::{Flows, Marking, TOKEN};
use crate::race::Touch;
use crate::storage::{Site, Source};
use crate::{Result, Storage};

/// Enqueues a replay, which uses `storages` (each once, with whether it is written). Its kernels
/// say in `mailboxes` that a check failed; `flows` says what that makes of the storages.
///
/// # Safety
/// The storages are all that was captured, the pool's memory is kept, and so are the modules.
pub(crate) unsafe fn replay(
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
            let replay = |mailbox: &Arc<Mailbox>| mailbox.enter_replay(TOKEN, stream, op);
            let replays: Vec<CheckedLaunch> = mailboxes.iter().filter_map(replay).collect();
            // SAFETY: the caller's; the replay is entered as a use of the storages, so that their
            // memory goes to nobody else before it is done.
            unsafe { exec.launch(stream.raw()) }.inspect_err(|_| {
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
