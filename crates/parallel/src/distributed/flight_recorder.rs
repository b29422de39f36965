//! The flight recorder: a record of each rank's last calls on a group, and the comparison of the ranks' records. Sends
//! and receives are numbered separately for each pair of sender and receiver.

use std::collections::{HashMap, VecDeque};
use std::panic::Location;
use std::time::Instant;

use smallvec::SmallVec;
use warpline_runtime::Completion;
use warpline_stream::OpEvent;

use super::RankCall;
use super::signature::Signature;

/// Number of calls in a record above which a poll removes the oldest finished calls.
const MAX_FINISHED: usize = 256;
/// Number of calls after which a new call polls for finished calls.
const POLL_INTERVAL: u64 = 16;
/// Number of calls that a poll examines in each step.
const POLL_WINDOW: usize = 2 * POLL_INTERVAL as usize;

/// The state of a call.
#[derive(Debug)]
pub(super) enum CallState {
    /// The call is not launched yet. In debug mode, it may still wait for the calls of the other ranks.
    Preparing,
    /// The call is enqueued. The event completes after it.
    Launched(OpEvent),
    /// The call is complete, failed before its launch, or was captured. A captured call runs in replays, which have
    /// their own records.
    Done,
}

#[derive(Debug)]
struct RecordedCall {
    /// Index among all calls of this rank on the group.
    id: u64,
    /// Sequence number among the group's collectives. For a send or receive: among the calls between the two ranks in
    /// that direction.
    seq: u64,
    signature: Signature,
    location: &'static Location<'static>,
    begun: Instant,
    state: CallState,
}

/// The last calls of a rank, oldest first.
#[derive(Debug, Default)]
pub(super) struct FlightRecorder {
    calls: VecDeque<RecordedCall>,
    next_id: u64,
    collectives: u64,
    pairs: HashMap<(usize, bool), u64>,
    /// Number of entries at the front that are done.
    finished: usize,
    /// Tracks which calls are complete, and so which results are valid. Calls are counted from 1 here: call `id` has
    /// number `id + 1`.
    completion: Completion,
}

impl FlightRecorder {
    /// Adds a call. Returns the call's id and sequence number.
    pub(super) fn begin(
        &mut self,
        signature: Signature,
        location: &'static Location<'static>,
    ) -> (u64, u64) {
        if self.next_id.is_multiple_of(POLL_INTERVAL) {
            self.poll_finished();
        }
        let counter = match signature.peer {
            Some(pair) => self.pairs.entry(pair).or_default(),
            None => &mut self.collectives,
        };
        *counter += 1;
        let (id, seq) = (self.next_id, *counter);
        self.next_id += 1;
        let (begun, state) = (Instant::now(), CallState::Preparing);
        self.calls.push_back(RecordedCall { id, seq, signature, location, begun, state });
        (id, seq)
    }

    /// Returns the [`Completion`] that tracks which calls are complete, and so which results are valid.
    pub(super) fn completion(&self) -> &Completion {
        &self.completion
    }

    fn find(&self, id: u64) -> Option<usize> {
        self.calls.iter().rposition(|call| call.id == id)
    }

    /// Sets the state of a call.
    pub(super) fn set_state(&mut self, id: u64, state: CallState) {
        if let Some(at) = self.find(id) {
            self.calls[at].state = state;
        }
    }

    /// Removes the last call, whose launch was refused, and frees its sequence number.
    pub(super) fn remove_refused(&mut self, id: u64) {
        let Some(call) = self.find(id).and_then(|at| self.calls.remove(at)) else { return };
        self.finished = self.finished.min(self.calls.len());
        match call.signature.peer {
            Some(pair) => *self.pairs.entry(pair).or_insert(1) -= 1,
            None => self.collectives -= 1,
        }
    }

    /// Marks calls that are done, oldest first. Then removes the oldest finished calls while the record has more than
    /// [`MAX_FINISHED`] calls.
    pub(super) fn poll_finished(&mut self) {
        // Poll in windows, so that the cost does not grow with the number of outstanding calls.
        while self.poll_window() {}
        while self.calls.len() > MAX_FINISHED && self.finished > 0 {
            self.calls.pop_front();
            self.finished -= 1;
        }
    }

    /// Polls the oldest unfinished calls, at most [`POLL_WINDOW`]. Returns `true` if the window is full and all of its
    /// calls are done.
    fn poll_window(&mut self) -> bool {
        let open = self.calls.range(self.finished..).take(POLL_WINDOW);
        let begun = open.take_while(|call| !matches!(call.state, CallState::Preparing));
        let end = self.finished + begun.count();
        let whole = end - self.finished == POLL_WINDOW;
        let launched = (self.finished..end).filter_map(|at| match &self.calls[at].state {
            CallState::Launched(event) => Some((at, event)),
            _ => None,
        });
        let launched: SmallVec<[_; POLL_WINDOW]> = launched.collect();
        // NCCL runs the calls of a communicator in order, so a binary search over the events suffices. A query error
        // means a lost device, which the next launch reports.
        let done = |(_, event): &(usize, &OpEvent)| event.query_silently().unwrap_or(true);
        let finished = launched.get(count_done(&launched, done)).map_or(end, |open| open.0);
        drop(launched);
        for call in self.calls.range_mut(self.finished..finished) {
            call.state = CallState::Done;
        }
        if finished > self.finished {
            self.completion.done_up_to(self.calls[finished - 1].id + 1);
            self.finished = finished;
        }
        whole && finished == end
    }

    /// Returns the oldest call that is not done, and its start. Call [`FlightRecorder::poll_finished`] first.
    pub(super) fn oldest_unfinished(&self) -> Option<(PublishedCall, Instant)> {
        let mut unfinished = self.calls.iter().filter(|e| !matches!(e.state, CallState::Done));
        unfinished.next().map(|call| (PublishedCall::of(call), call.begun))
    }

    /// Returns the last call.
    pub(super) fn last(&self) -> Option<PublishedCall> {
        self.calls.back().map(PublishedCall::of)
    }

    pub(super) fn calls(&self) -> Vec<PublishedCall> {
        self.calls.iter().map(PublishedCall::of).collect()
    }
}

/// Returns the number of done elements. All done elements must come before the others.
fn count_done<T>(all: &[T], done: impl Fn(&T) -> bool) -> usize {
    match all.last() {
        Some(last) if done(last) => all.len(),
        _ => all.partition_point(done),
    }
}

/// A call as published in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PublishedCall {
    pub(super) seq: u64,
    /// For a send or receive, the other rank and the direction (`true`: this rank sends).
    pub(super) peer: Option<(usize, bool)>,
    /// Description of the call. The descriptions of a collective are equal on all ranks if the calls match.
    pub(super) text: String,
    pub(super) location: String,
    pub(super) done: bool,
}

impl PublishedCall {
    fn of(call: &RecordedCall) -> Self {
        Self {
            seq: call.seq,
            peer: call.signature.peer,
            text: call.signature.to_string(),
            location: call.location.to_string(),
            done: matches!(call.state, CallState::Done),
        }
    }
}

/// Encodes the calls of a rank for the store: one line per call, with fields separated by tabs.
pub(super) fn encode(calls: &[PublishedCall]) -> Vec<u8> {
    let mut text = String::new();
    for call in calls {
        let peer = call.peer.map_or(String::new(), |(rank, sends)| {
            format!("{}{rank}", if sends { '>' } else { '<' })
        });
        let done = if call.done { "done" } else { "" };
        let fields = [&call.seq.to_string(), &peer, done, &call.text, &call.location];
        let line: Vec<_> = fields.iter().map(|field| field.replace(['\t', '\n'], " ")).collect();
        text += &line.join("\t");
        text.push('\n');
    }
    text.into()
}

/// Decodes the output of [`encode`]. Skips invalid lines.
pub(super) fn decode(bytes: &[u8]) -> Vec<PublishedCall> {
    let text = String::from_utf8_lossy(bytes);
    let call = |line: &str| {
        let fields: Vec<_> = line.split('\t').collect();
        let [seq, peer, done, text, location] = fields[..] else { return None };
        let peer = match peer.split_at_checked(1) {
            Some((way, rank)) => Some((rank.parse().ok()?, way == ">")),
            None => None,
        };
        let seq = seq.parse().ok()?;
        let (text, location) = (text.into(), location.into());
        Some(PublishedCall { seq, peer, text, location, done: done == "done" })
    };
    text.lines().filter_map(call).collect()
}

/// Returns the calls of other ranks that do not match those of `rank`, up to its call `unfinished`. `own` is the record
/// of `rank`; `others` are the records of the ranks that published one.
pub(super) fn differences(
    rank: usize,
    own: &[PublishedCall],
    unfinished: &PublishedCall,
    others: &[(usize, Vec<PublishedCall>)],
) -> Vec<RankCall> {
    if let Some((peer, sends)) = unfinished.peer {
        let Some((_, calls)) = others.iter().find(|(other, _)| *other == peer) else {
            return Vec::new();
        };
        let matching =
            |c: &&PublishedCall| c.peer == Some((rank, !sends)) && c.seq == unfinished.seq;
        if calls.iter().any(|c| matching(&c)) {
            return Vec::new();
        }
        let op = if sends { "recv" } else { "send" };
        let call = format!("has not called the matching {op}; {}", last(calls));
        return vec![RankCall { rank: peer, call }];
    }
    // Report only the first collective that differs, because later collectives may differ only as a consequence.
    let own = own.iter().filter(|c| c.peer.is_none() && c.seq <= unfinished.seq);
    for call in own {
        let found = others.iter().filter_map(|(rank, calls)| {
            let theirs = calls.iter().find(|c| c.peer.is_none() && c.seq == call.seq)?;
            (theirs.text != call.text).then(|| {
                let call = format!(
                    "called {} as collective number {} at {}",
                    theirs.text, theirs.seq, theirs.location
                );
                RankCall { rank: *rank, call }
            })
        });
        let found: Vec<_> = found.collect();
        if !found.is_empty() {
            return found;
        }
    }
    let behind = others.iter().filter(|(_, calls)| {
        calls.iter().filter(|c| c.peer.is_none()).map(|c| c.seq).max() < Some(unfinished.seq)
    });
    behind
        .map(|(rank, calls)| RankCall {
            rank: *rank,
            call: format!("has not made this call; {}", last(calls)),
        })
        .collect()
}

fn last(calls: &[PublishedCall]) -> String {
    match calls.last() {
        None => "it has made no call on the group".into(),
        Some(call) => format!(
            "its last call was {}, number {}, at {}, {}",
            call.text,
            call.seq,
            call.location,
            if call.done { "done" } else { "not done" }
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use warpline_cuda_sys_safe::sim::{Schedule, SimConfig, SimDriver};
    use warpline_stream::{Devices, Stream};

    use super::*;

    fn call(seq: u64, text: &str) -> PublishedCall {
        let (text, location) = (text.into(), format!("main.rs:{seq}:1"));
        PublishedCall { seq, peer: None, text, location, done: false }
    }

    /// Returns two streams of a simulated device that runs work only on request.
    fn streams() -> (Arc<SimDriver>, [Stream; 2]) {
        let sim = SimConfig { schedule: Schedule::Lazy, ..SimConfig::new(1) }.build();
        let devices = Devices::new(sim.clone()).unwrap();
        let device = devices.get(0).unwrap();
        (sim, [(); 2].map(|()| device.exclusive_stream(0).unwrap()))
    }

    fn begin(recorder: &mut FlightRecorder) -> (u64, u64) {
        recorder.begin(Signature::new("barrier"), Location::caller())
    }

    #[test]
    fn few_events_are_queried() {
        for total in 0..40 {
            for done in 0..=total {
                let queries = std::cell::Cell::new(0);
                let is_done = |number: &usize| {
                    queries.set(queries.get() + 1);
                    *number < done
                };
                assert_eq!(count_done(&(0..total).collect::<Vec<_>>(), is_done), done);
                assert!(queries.get() <= if done == total { 1 } else { 8 }, "{total}, {done}");
            }
        }
    }

    #[test]
    fn preparing_calls_are_unfinished_and_captured_calls_are_done() {
        let (sim, [stream, other]) = streams();
        let mut recorder = FlightRecorder::default();
        for call in 0..10 {
            let (id, _) = begin(&mut recorder);
            stream.wait_stream(&other).unwrap(); // enqueues an operation
            let event = stream.op_event(stream.last_op()).unwrap();
            match call {
                4 | 9 => recorder.set_state(id, CallState::Done),
                7 => {}
                _ => recorder.set_state(id, CallState::Launched(event)),
            }
        }
        sim.run_all();
        recorder.poll_finished();
        assert_eq!(recorder.oldest_unfinished().map(|(call, _)| call.seq), Some(8));
        assert_eq!(recorder.finished, 7);
        recorder.set_state(7, CallState::Done);
        recorder.poll_finished();
        assert!(recorder.oldest_unfinished().is_none() && recorder.finished == 10);
    }

    #[test]
    fn the_record_stays_short() {
        let (_, [stream, _]) = streams();
        let mut recorder = FlightRecorder::default();
        for _ in 0..10 * MAX_FINISHED {
            let (id, _) = begin(&mut recorder);
            recorder.set_state(id, CallState::Launched(stream.op_event(stream.last_op()).unwrap()));
            stream.synchronize().unwrap();
        }
        assert!(recorder.calls.len() as u64 <= MAX_FINISHED as u64 + POLL_INTERVAL);
        recorder.poll_finished();
        assert!(recorder.oldest_unfinished().is_none());
        // A refused call does not use up a sequence number.
        let (id, seq) = begin(&mut recorder);
        recorder.remove_refused(id);
        let (_, again) = begin(&mut recorder);
        assert_eq!(seq, again);
        assert!(recorder.oldest_unfinished().is_some());
    }

    #[test]
    fn records_round_trip() {
        let mut calls = vec![call(1, "all_reduce(float32[2], Sum)"), call(2, "barrier()")];
        calls[0].done = true;
        for peer in [(3, true), (12, false)] {
            calls.push(PublishedCall { peer: Some(peer), ..call(7, "p2p") });
        }
        assert_eq!(decode(&encode(&calls)), calls);
        assert_eq!(decode(b"nonsense\n\xff\t\t"), []);
    }

    #[test]
    fn differing_ranks_are_named() {
        let own = [call(1, "a"), call(2, "b"), call(3, "c")];
        let same = own.to_vec();
        let other = vec![call(1, "a"), call(2, "x"), call(3, "c")];
        let behind = vec![call(1, "a")];
        let found = |others: &[(usize, Vec<PublishedCall>)]| differences(0, &own, &own[2], others);
        assert_eq!(found(&[(1, same.clone())]), []);
        let differing = found(&[(1, same.clone()), (2, other)]);
        assert_eq!(differing.len(), 1);
        assert_eq!(
            differing[0].to_string(),
            "rank 2 called x as collective number 2 at main.rs:2:1"
        );
        let differing = found(&[(1, behind), (2, same), (3, vec![])]);
        assert_eq!(differing.iter().map(|d| d.rank).collect::<Vec<_>>(), [1, 3]);
        assert!(differing[0].call.contains("its last call was a, number 1"), "{}", differing[0]);
    }

    #[test]
    fn a_send_needs_its_own_recv() {
        let send = PublishedCall { peer: Some((1, true)), ..call(2, "send") };
        let recv = |seq| PublishedCall { peer: Some((0, false)), ..call(seq, "recv") };
        let found = |calls: Vec<PublishedCall>| differences(0, &[], &send, &[(1, calls)]);
        assert_eq!(found(vec![recv(1), recv(2)]), []);
        assert_eq!(found(vec![recv(1)])[0].rank, 1);
        assert_eq!(found(vec![PublishedCall { peer: Some((0, true)), ..recv(2) }]).len(), 1);
    }
}
