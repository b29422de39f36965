//! Where replays are enqueued.

use std::sync::Arc;

use warpline_cuda_sys_safe::DriverError;
use warpline_cuda_sys_safe::owned::GraphExec;
use warpline_stream::{CapturedChecks, Stream};

use super::cpu::with_host_locks;
use super::cuda::{enqueue_now, located};
use super::{Flows, Marking, TOKEN};
use crate::race::Touch;
use crate::replays::Captured;
use crate::storage::{Site, Source, Sources};
use crate::{Result, Storage};

/// What a replay uses besides storages.
#[derive(Clone, Copy)]
pub(crate) struct ReplayUses<'a> {
    /// Where its kernels report failed checks.
    pub(crate) checks: &'a Arc<CapturedChecks>,
    /// What its collectives are of.
    pub(crate) communicators: &'a [Captured],
    /// What the replay is on those that are watched.
    pub(crate) numbers: &'a Sources,
    /// What a failed check makes of the storages.
    pub(crate) flows: &'a Flows,
}

/// Enqueues a replay, which uses `storages` (each once, with whether it is written).
///
/// # Safety
/// The storages and communicators are all that were captured, the pool's memory is kept, and so are
/// the modules.
#[track_caller]
pub(crate) unsafe fn replay(
    exec: &GraphExec,
    uses: ReplayUses<'_>,
    stream: &Stream,
    storages: &mut [(&Storage, bool)],
    site: Site,
) -> Result<()> {
    let ReplayUses { checks, communicators, numbers, flows } = uses;
    storages.sort_unstable_by_key(|(storage, _)| storage.key());
    let pinned = storages.iter().copied().filter(|(storage, _)| storage.is_pinned());
    let touches: Vec<Touch<'_>> = storages.iter().copied().map(Touch::from).collect();
    let marking = Marking { flows: Some(flows), ..Marking::default() };
    with_host_locks(site.op, pinned, || {
        enqueue_now(stream, storages, &touches, site, &marking, |_| {
            // Before the launch: it may have failed by the time that this returns.
            let op = stream.last_op() + 1;
            let replay = checks.begin_replay(TOKEN, stream, op);
            // SAFETY: the caller's; the replay is entered as a use of the storages, so that their
            // memory goes to nobody else before it is done; no communicator is aborted meanwhile.
            let launch = || unsafe { exec.launch(stream.raw()) };
            while_usable(communicators, &launch).inspect_err(|_| {
                replay.iter().for_each(|replay| stream.mailbox().withdraw(replay));
            })?;
            let replay = replay.into_iter().map(Source::Launch);
            marking.own.borrow_mut().extend(replay.chain(numbers.iter().cloned()));
            stream.note_launch(site.op, site.location, std::iter::empty());
            Ok(())
        })
    })
    .map_err(|e| located(e, stream, site))?;
    Ok(())
}

/// Launches a graph of which the communicators can be used, and are not aborted meanwhile.
#[track_caller]
fn while_usable(
    communicators: &[Captured],
    launch: &dyn Fn() -> Result<(), DriverError>,
) -> Result<(), DriverError> {
    match communicators {
        [] => launch(),
        [first, rest @ ..] => first.comm.while_usable(|| while_usable(rest, launch))?,
    }
}
