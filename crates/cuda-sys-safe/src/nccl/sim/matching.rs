//! Matching the calls of ranks, and computing their outputs.

use std::sync::Arc;

use super::call::{CallDesc, CollectiveKind};
use super::hub::{Bytes, Departure, HubComm, PendingCall, RankEvent, failed};
use crate::nccl::{ReduceOp, reduce};
use crate::{CollectiveMismatch, DriverError};

impl HubComm {
    /// Begins a group of a rank.
    pub(super) fn begin(
        &mut self,
        rank: usize,
        (op, begin): (u64, f64),
        calls: Vec<(CallDesc, Vec<u8>)>,
    ) {
        for (part, (desc, input)) in calls.into_iter().enumerate() {
            if self.failure.is_some() {
                return;
            }
            let pending = PendingCall { desc, op, part, input, begin };
            match (desc.kind, desc.rank) {
                (CollectiveKind::Send, Some(peer)) => {
                    self.pairs.entry((rank, peer)).or_default().sends.push_back(pending);
                    self.match_pair(rank, peer);
                }
                (CollectiveKind::Recv, Some(peer)) => {
                    self.pairs.entry((peer, rank)).or_default().recvs.push_back(pending);
                    self.match_pair(peer, rank);
                }
                _ => self.enter(rank, pending),
            }
        }
        self.check_departed();
    }

    /// Adds a rank's next collective. Completes the collective when all ranks have made the call.
    fn enter(&mut self, rank: usize, pending: PendingCall) {
        let ranks = self.endpoints.len();
        let number = self.next[rank];
        self.next[rank] += 1;
        let round = self.rounds.entry(number).or_insert_with(|| (0..ranks).map(|_| None).collect());
        let differs =
            |other: &Option<PendingCall>| other.as_ref().is_some_and(|o| o.desc != pending.desc);
        if let Some(other) = round.iter().position(differs) {
            let first = round[other].as_ref().map_or(pending.desc, |pending| pending.desc);
            let what = format!("collective number {number}");
            return self.fail(mismatch(what, [(other, first), (rank, pending.desc)]));
        }
        round[rank] = Some(pending);
        if round.iter().all(Option::is_some)
            && let Some(round) = self.rounds.remove(&number)
        {
            let round: Vec<PendingCall> = round.into_iter().flatten().collect();
            let outputs = outputs(&round);
            let begin = round.iter().map(|pending| pending.begin).fold(0.0, f64::max);
            self.notify_all(|rank| {
                let (op, part) = (round[rank].op, round[rank].part);
                Some(RankEvent::Done { op, part, output: outputs[rank].clone(), begin })
            });
        }
    }

    fn match_pair(&mut self, from: usize, to: usize) {
        let Some(pair) = self.pairs.get_mut(&(from, to)) else { return };
        if pair.sends.is_empty() || pair.recvs.is_empty() {
            return;
        }
        let (Some(send), Some(recv)) = (pair.sends.pop_front(), pair.recvs.pop_front()) else {
            return;
        };
        if (send.desc.count, send.desc.dtype) != (recv.desc.count, recv.desc.dtype) {
            let what = format!("the data that rank {from} sends to rank {to}");
            return self.fail(mismatch(what, [(from, send.desc), (to, recv.desc)]));
        }
        let begin = send.begin.max(recv.begin);
        let done = |op, part, output| RankEvent::Done { op, part, output, begin };
        let sent = done(send.op, send.part, Bytes::default());
        let got = done(recv.op, recv.part, send.input.into());
        if from == to {
            // A rank that sends to itself gets two events. `notify_all` would deliver only one.
            self.notify(from, sent);
            return self.notify(to, got);
        }
        let (mut sent, mut got) = (Some(sent), Some(got));
        self.notify_all(|rank| match rank {
            _ if rank == from => sent.take(),
            _ if rank == to => got.take(),
            _ => None,
        });
    }

    /// Fails the communicator if a rank waits for a rank that is gone.
    pub(super) fn check_departed(&mut self) {
        if self.failure.is_some() {
            return;
        }
        let departed =
            self.departed.iter().enumerate().filter_map(|(rank, why)| Some((rank, (*why)?)));
        let missed = departed.clone().find_map(|(rank, why)| {
            let waiting = self.waiting_for(rank)?;
            Some((rank, why, waiting))
        });
        let Some((rank, why, waiting)) = missed else { return };
        let how = match why {
            Departure::Aborted => "has aborted the communicator",
            Departure::Died => "has died",
        };
        let ranks = self.endpoints.len();
        let detail = format!("rank {rank} of {ranks} {how}; {waiting}");
        self.fail(failed("ncclCommGetAsyncError", "ncclRemoteError", detail));
    }

    /// Describes a rank that waits for `departed`, and its call, if there is one.
    fn waiting_for(&self, departed: usize) -> Option<String> {
        // If a rank leaves before all have joined, the first communicator can never be complete.
        let joined = |rank: usize| self.endpoints[rank].is_some() || self.departed[rank].is_some();
        if !(0..self.endpoints.len()).all(joined) && self.endpoints.iter().any(Option::is_some) {
            return Some("not all ranks had joined".to_owned());
        }
        let here = |rank: usize| self.departed[rank].is_none();
        let in_call = |rank: usize, desc: CallDesc| format!("rank {rank} waits for it in {desc}");
        for round in self.rounds.values().filter(|round| round[departed].is_none()) {
            let mut pending = round.iter().enumerate();
            if let Some((rank, desc)) =
                pending.find_map(|(r, g)| Some((r, g.as_ref().filter(|_| here(r))?.desc)))
            {
                return Some(in_call(rank, desc));
            }
        }
        for (&(from, to), pair) in &self.pairs {
            let alone = match departed {
                _ if departed == to => pair.sends.front().map(|pending| (from, pending.desc)),
                _ if departed == from => pair.recvs.front().map(|pending| (to, pending.desc)),
                _ => None,
            };
            if let Some((rank, desc)) = alone.filter(|&(rank, _)| here(rank)) {
                return Some(in_call(rank, desc));
            }
        }
        let mut ranks = 0..self.splits.len();
        let splitting = ranks.find(|&rank| here(rank) && !self.splits[rank].is_empty());
        let rank = splitting.filter(|_| self.splits[departed].is_empty())?;
        Some(format!("rank {rank} waits for it in a split"))
    }
}

fn mismatch(what: String, [first, second]: [(usize, CallDesc); 2]) -> DriverError {
    DriverError::CollectiveMismatch(Box::new(CollectiveMismatch {
        what,
        ranks: [first.0, second.0],
        calls: [first.1.to_string(), second.1.to_string()],
    }))
}

/// Returns each rank's output of a call that all ranks have made.
fn outputs(round: &[PendingCall]) -> Vec<Bytes> {
    let ranks = round.len();
    let inputs: Vec<&[u8]> = round.iter().map(|pending| &pending.input[..]).collect();
    let CallDesc { kind, dtype, op, rank, .. } = round[0].desc;
    let combined = || reduce(dtype, op.unwrap_or(ReduceOp::Sum), &inputs);
    let root = rank.unwrap_or(0);
    let all = |bytes: Vec<u8>| vec![Bytes::from(bytes); ranks];
    match kind {
        CollectiveKind::AllReduce => all(combined()),
        CollectiveKind::Broadcast => all(round[root].input.clone()),
        CollectiveKind::AllGather => all(inputs.concat()),
        CollectiveKind::Reduce => {
            let mut outputs = vec![Bytes::default(); ranks];
            outputs[root] = combined().into();
            outputs
        }
        CollectiveKind::ReduceScatter => {
            let combined = combined();
            combined.chunks(combined.len() / ranks).map(Arc::from).collect()
        }
        CollectiveKind::Send | CollectiveKind::Recv => vec![Bytes::default(); ranks],
    }
}
