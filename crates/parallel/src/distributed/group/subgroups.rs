//! Groups of some of a group's ranks.

use std::panic::Location;
use std::sync::{Arc, PoisonError};

use super::super::record::State;
use super::super::signature::Signature;
use super::super::store::Deadline;
use super::super::{PrefixStore, Result, check};
use super::{Parts, ProcessGroup};

impl ProcessGroup {
    /// A group of some of this one's ranks, which get numbers in it in their order
    /// (`torch.distributed.new_group`, by `ncclCommSplit`). All ranks of this group have to call it
    /// with the same list; those that are not in it get `None`. It waits, on the host, for what this
    /// group was given before.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) for a list that is empty, or
    /// has a rank twice or one that there is not; while the current stream is captured; as [`ProcessGroup::all_reduce`].
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
            let reason =
                format!("{ranks:?} is no list of different ranks, of which there are {count}");
            return Err(self.invalid(NAME, reason));
        }
        let shared = self.shared();
        let parts = &shared.parts;
        self.refuse_capture(NAME)?;
        let _in_order = shared.launching.lock().unwrap_or_else(PoisonError::into_inner);
        self.drain()?;
        let signature = Signature::new(NAME).ranks(&sorted);
        let (id, seq) = shared.ring().begin(signature.clone(), location);
        let made = (|| {
            if parts.debug {
                let deadline = Deadline::after(parts.timeout);
                deadline.bound(|| check::compare(shared, seq, &signature))?;
            }
            let color = sorted.contains(&self.rank()).then_some(0);
            let comm = parts.comm.split(color, self.rank(), parts.timeout);
            comm.map_err(|e| shared.explained(warpline::Error::driver(NAME, e)))
        })();
        // A split that has failed is no work that hangs, but what a failure of the group is told of.
        shared.ring().set(id, State::Done);
        let number = {
            let mut number = shared.subgroups.lock().unwrap_or_else(PoisonError::into_inner);
            *number += 1;
            *number
        };
        let Some(comm) = made? else { return Ok(None) };
        let name = format!("{}/{number}", parts.name);
        let group = ProcessGroup::new(Parts {
            members: sorted.iter().filter_map(|rank| parts.members.get(*rank).copied()).collect(),
            runtime: parts.runtime.clone(),
            comm,
            store: Arc::new(PrefixStore::new(number.to_string(), Arc::clone(&parts.store))),
            name,
            ..*parts
        });
        group.map(Some)
    }
}
