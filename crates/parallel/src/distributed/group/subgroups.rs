//! Subgroups of process groups.

use std::panic::Location;
use std::sync::{Arc, PoisonError};

use super::super::flight_recorder::CallState;
use super::super::signature::Signature;
use super::super::store::Deadline;
use super::super::{PrefixStore, Result, check};
use super::{GroupParts, ProcessGroup};

impl ProcessGroup {
    /// Forms a group of some ranks of this group (`torch.distributed.new_group`, with `ncclCommSplit`). In the new
    /// group the ranks are numbered in ascending order. All ranks of this group must call `new_group` with the same
    /// ranks; those that are not listed get `None`. Blocks the host until all earlier calls of this group are done.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if the list is empty, or has a rank twice
    /// or a rank that does not exist; [`ErrorKind::Capture`](warpline::ErrorKind::Capture) while the current stream is
    /// captured; [`ErrorKind::ProcessGroup`](warpline::ErrorKind::ProcessGroup) with a
    /// [`GroupError`](crate::distributed::GroupError) as its source once the group has failed, if the ranks' calls
    /// differ in debug mode, or if the new group's watchdog cannot be started, or with a
    /// [`StoreError`](crate::distributed::StoreError) if the store fails in debug mode.
    #[track_caller]
    pub fn new_group(&self, ranks: &[usize]) -> Result<Option<ProcessGroup>> {
        const NAME: &str = "new_group";
        let location = Location::caller();
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let known = sorted.last().is_some_and(|last| *last < self.world_size());
        if !known || sorted.len() != ranks.len() {
            let count = self.world_size();
            let reason = format!("{ranks:?} is not a list of different ranks below {count}");
            return Err(self.invalid(NAME, reason));
        }
        let shared = self.shared();
        let parts = &shared.parts;
        self.check_not_capturing(NAME)?;
        let _in_order = shared.launching.lock().unwrap_or_else(PoisonError::into_inner);
        self.drain()?;
        let signature = Signature::new(NAME).ranks(&sorted);
        let (id, seq) = shared.recorder().begin(signature.clone(), location);
        let split = (|| {
            if parts.debug {
                let deadline = Deadline::after(parts.timeout);
                deadline.bound(|| check::compare(shared, seq, &signature))?;
            }
            let split = parts.transport.split(NAME, &parts.runtime, &sorted, parts.timeout);
            split.map_err(|error| shared.error_or_failure(error))
        })();
        // A failed split leaves no work that could hang, so its call is done. The record stays, so that a failure of
        // the group can name the call.
        shared.recorder().set_state(id, CallState::Done);
        let number = {
            let mut number = shared.subgroups.lock().unwrap_or_else(PoisonError::into_inner);
            *number += 1;
            *number
        };
        let Some(transport) = split? else { return Ok(None) };
        let name = format!("{}/{number}", parts.name);
        let group = ProcessGroup::new(GroupParts {
            members: sorted.iter().filter_map(|rank| parts.members.get(*rank).copied()).collect(),
            runtime: parts.runtime.clone(),
            transport,
            store: Arc::new(PrefixStore::new(number.to_string(), Arc::clone(&parts.store))),
            name,
            ..*parts
        });
        group.map(Some)
    }
}
