//! Records of each rank's last calls on a group, and the comparison of several ranks' records. Sends and receives are
//! numbered for each pair of ranks and direction.

use std::collections::{HashMap, VecDeque};
use std::panic::Location;
use std::time::Instant;

use smallvec::SmallVec;
use warpline_runtime::Completion;
use warpline_stream::OpEvent;

use super::RankCall;
use super::signature::Signature;

/// Maximum number of finished calls in a record.
const KEPT: usize = 256;
/// Number of calls between two checks for finished calls, if nothing else checks.
const LOOK: u64 = 16;
/// Number of calls in one check.
const WINDOW: usize = 2 * LOOK as usize;

/// The state of a call.
#[derive(Debug)]
pub(super) enum State {
    /// Not yet launched: the ranks' calls are being compared.
    Preparing,
    /// Enqueued on its stream. The event comes after the call.
    Launched(OpEvent),
    /// Done, or captured, so that it runs in replays.
    Done,
}

#[derive(Debug)]
struct Entry {
    /// Number among all calls of this rank on the group, from 0.
    id: u64,
    /// Number of a collective in the group. For a send or receive, the number between the two ranks, in that direction.
    seq: u64,
    signature: Signature,
    location: &'static Location<'static>,
    begun: Instant,
    state: State,
}

/// The last calls of a rank, oldest first.
#[derive(Debug, Default)]
pub(super) struct Ring {
    entries: VecDeque<Entry>,
    next_id: u64,
    collectives: u64,
    pairs: HashMap<(usize, bool), u64>,
    /// Number of entries at the front that are done.
    finished: usize,
    /// Completion of the calls for code that depends on their results. Uses ids plus 1.
    completion: Completion,
}

impl Ring {
    /// Adds a call. Returns its id and its number.
    pub(super) fn begin(
        &mut self,
        signature: Signature,
        location: &'static Location<'static>,
    ) -> (u64, u64) {
        if self.next_id.is_multiple_of(LOOK) {
            self.settle();
        }
        let counter = match signature.peer {
            Some(pair) => self.pairs.entry(pair).or_default(),
            None => &mut self.collectives,
        };
        *counter += 1;
        let (id, seq) = (self.next_id, *counter);
        self.next_id += 1;
        let (begun, state) = (Instant::now(), State::Preparing);
        self.entries.push_back(Entry { id, seq, signature, location, begun, state });
        (id, seq)
    }

    /// Returns the completion of the calls, for code that depends on their results.
    pub(super) fn completion(&self) -> &Completion {
        &self.completion
    }

    fn find(&self, id: u64) -> Option<usize> {
        self.entries.iter().rposition(|entry| entry.id == id)
    }

    /// Sets the state of a call.
    pub(super) fn set(&mut self, id: u64, state: State) {
        if let Some(at) = self.find(id) {
            self.entries[at].state = state;
        }
    }

    /// Removes the last call, which was not launched, and frees its number.
    pub(super) fn undo(&mut self, id: u64) {
        let Some(entry) = self.find(id).and_then(|at| self.entries.remove(at)) else { return };
        self.finished = self.finished.min(self.entries.len());
        match entry.signature.peer {
            Some(pair) => *self.pairs.entry(pair).or_insert(1) -= 1,
            None => self.collectives -= 1,
        }
    }

    /// Marks calls that are done, oldest first, and removes finished calls beyond [`KEPT`].
    pub(super) fn settle(&mut self) {
        // Window by window, so that the cost does not grow with the number of outstanding calls.
        while self.settle_window() {}
        while self.entries.len() > KEPT && self.finished > 0 {
            self.entries.pop_front();
            self.finished -= 1;
        }
    }

    /// Marks those of the oldest unfinished calls that are done. Returns `true` if a whole window is done.
    fn settle_window(&mut self) -> bool {
        let open = self.entries.range(self.finished..).take(WINDOW);
        let begun = open.take_while(|entry| !matches!(entry.state, State::Preparing));
        let end = self.finished + begun.count();
        let whole = end - self.finished == WINDOW;
        let launched = (self.finished..end).filter_map(|at| match &self.entries[at].state {
            State::Launched(event) => Some((at, event)),
            _ => None,
        });
        let launched: SmallVec<[_; WINDOW]> = launched.collect();
        // NCCL runs the calls of a communicator one after the other, so a few queries suffice. An error means a lost
        // device, which launches report.
        let done = |(_, event): &(usize, &OpEvent)| event.query_silently().unwrap_or(true);
        let finished = launched.get(done_of(&launched, done)).map_or(end, |open| open.0);
        drop(launched);
        for entry in self.entries.range_mut(self.finished..finished) {
            entry.state = State::Done;
        }
        if finished > self.finished {
            self.completion.done_up_to(self.entries[finished - 1].id + 1);
            self.finished = finished;
        }
        whole && finished == end
    }

    /// Returns the oldest call that is not done, and its start. Call [`Ring::settle`] first.
    pub(super) fn oldest_unfinished(&self) -> Option<(Call, Instant)> {
        let mut unfinished = self.entries.iter().filter(|e| !matches!(e.state, State::Done));
        unfinished.next().map(|entry| (Call::of(entry), entry.begun))
    }

    /// Returns the last call.
    pub(super) fn last(&self) -> Option<Call> {
        self.entries.back().map(Call::of)
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.entries.iter().map(Call::of).collect()
    }
}

/// Returns how many elements are done. Elements must become done in order.
fn done_of<T>(all: &[T], done: impl Fn(&T) -> bool) -> usize {
    match all.last() {
        Some(last) if done(last) => all.len(),
        _ => all.partition_point(done),
    }
}

/// A published entry of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) seq: u64,
    /// For a send or receive, the other rank and whether this rank sends.
    pub(super) peer: Option<(usize, bool)>,
    /// Description of the call, equal on all ranks if the calls match.
    pub(super) text: String,
    pub(super) location: String,
    pub(super) done: bool,
}

impl Call {
    fn of(entry: &Entry) -> Self {
        Self {
            seq: entry.seq,
            peer: entry.signature.peer,
            text: entry.signature.to_string(),
            location: entry.location.to_string(),
            done: matches!(entry.state, State::Done),
        }
    }
}

/// Encodes the calls of a rank for the store: one line per call, with fields separated by tabs.
pub(super) fn encode(calls: &[Call]) -> Vec<u8> {
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
pub(super) fn decode(bytes: &[u8]) -> Vec<Call> {
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
        Some(Call { seq, peer, text, location, done: done == "done" })
    };
    text.lines().filter_map(call).collect()
}

/// Returns the calls of other ranks that do not match those of `rank`, up to its call `unfinished`. `own` is the record
/// of `rank`; `others` are the records of the ranks that published one.
pub(super) fn differences(
    rank: usize,
    own: &[Call],
    unfinished: &Call,
    others: &[(usize, Vec<Call>)],
) -> Vec<RankCall> {
    if let Some((peer, sends)) = unfinished.peer {
        let Some((_, calls)) = others.iter().find(|(other, _)| *other == peer) else {
            return Vec::new();
        };
        let matching = |c: &&Call| c.peer == Some((rank, !sends)) && c.seq == unfinished.seq;
        if calls.iter().any(|c| matching(&c)) {
            return Vec::new();
        }
        let op = if sends { "recv" } else { "send" };
        let call = format!("has not called the {op} that goes with it; {}", last(calls));
        return vec![RankCall { rank: peer, call }];
    }
    // Looks for the first collective in which the ranks' calls differ.
    let own = own.iter().filter(|c| c.peer.is_none() && c.seq <= unfinished.seq);
    for call in own {
        let found = others.iter().filter_map(|(rank, calls)| {
            let theirs = calls.iter().find(|c| c.peer.is_none() && c.seq == call.seq)?;
            (theirs.text != call.text).then(|| {
                let call = format!(
                    "called {} as number {} at {}",
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
            call: format!("has not called it; {}", last(calls)),
        })
        .collect()
}

fn last(calls: &[Call]) -> String {
    match calls.last() {
        None => "it has called nothing on the group".into(),
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

    fn call(seq: u64, text: &str) -> Call {
        let (text, location) = (text.into(), format!("main.rs:{seq}:1"));
        Call { seq, peer: None, text, location, done: false }
    }

    /// Two streams of a simulated device that does nothing by itself.
    fn streams() -> (Arc<SimDriver>, [Stream; 2]) {
        let sim = SimConfig { schedule: Schedule::Lazy, ..SimConfig::new(1) }.build();
        let devices = Devices::new(sim.clone()).unwrap();
        let device = devices.get(0).unwrap();
        (sim, [(); 2].map(|()| device.exclusive_stream(0).unwrap()))
    }

    fn begin(ring: &mut Ring) -> (u64, u64) {
        ring.begin(Signature::new("barrier"), Location::caller())
    }

    #[test]
    fn few_events_are_queried_to_find_completed_work() {
        for total in 0..40 {
            for done in 0..=total {
                let asked = std::cell::Cell::new(0);
                let is_done = |number: &usize| {
                    asked.set(asked.get() + 1);
                    *number < done
                };
                assert_eq!(done_of(&(0..total).collect::<Vec<_>>(), is_done), done);
                assert!(asked.get() <= if done == total { 1 } else { 8 }, "{total}, {done}");
            }
        }
    }

    #[test]
    fn collectives_that_were_not_launched_are_not_done_and_captured_ones_are() {
        let (sim, [stream, other]) = streams();
        let mut ring = Ring::default();
        for call in 0..10 {
            let (id, _) = begin(&mut ring);
            stream.wait_stream(&other).unwrap(); // an operation
            let event = stream.op_event(stream.last_op()).unwrap();
            match call {
                4 | 9 => ring.set(id, State::Done),
                7 => {}
                _ => ring.set(id, State::Launched(event)),
            }
        }
        sim.run_all();
        ring.settle();
        assert_eq!(ring.oldest_unfinished().map(|(call, _)| call.seq), Some(8));
        assert_eq!(ring.finished, 7);
        ring.set(7, State::Done);
        ring.settle();
        assert!(ring.oldest_unfinished().is_none() && ring.finished == 10);
    }

    #[test]
    fn the_record_stays_short() {
        let (_, [stream, _]) = streams();
        let mut ring = Ring::default();
        for _ in 0..10 * KEPT {
            let (id, _) = begin(&mut ring);
            ring.set(id, State::Launched(stream.op_event(stream.last_op()).unwrap()));
            stream.synchronize().unwrap();
        }
        assert!(ring.entries.len() as u64 <= KEPT as u64 + LOOK);
        ring.settle();
        assert!(ring.oldest_unfinished().is_none());
        // A refused call leaves the numbers as they were.
        let (id, seq) = begin(&mut ring);
        ring.undo(id);
        let (_, again) = begin(&mut ring);
        assert_eq!(seq, again);
        assert!(ring.oldest_unfinished().is_some());
    }

    #[test]
    fn records_round_trip() {
        let mut calls = vec![call(1, "all_reduce(float32[2], Sum)"), call(2, "barrier()")];
        calls[0].done = true;
        for peer in [(3, true), (12, false)] {
            calls.push(Call { peer: Some(peer), ..call(7, "p2p") });
        }
        assert_eq!(decode(&encode(&calls)), calls);
        assert_eq!(decode(b"nonsense\n\xff\t\t"), []);
    }

    #[test]
    fn the_ranks_that_differ_are_named() {
        let own = [call(1, "a"), call(2, "b"), call(3, "c")];
        let same = own.to_vec();
        let other = vec![call(1, "a"), call(2, "x"), call(3, "c")];
        let behind = vec![call(1, "a")];
        let found = |others: &[(usize, Vec<Call>)]| differences(0, &own, &own[2], others);
        assert_eq!(found(&[(1, same.clone())]), []);
        let differing = found(&[(1, same.clone()), (2, other)]);
        assert_eq!(differing.len(), 1);
        assert_eq!(differing[0].to_string(), "rank 2 called x as number 2 at main.rs:2:1");
        let differing = found(&[(1, behind), (2, same), (3, vec![])]);
        assert_eq!(differing.iter().map(|d| d.rank).collect::<Vec<_>>(), [1, 3]);
        assert!(differing[0].call.contains("its last call was a, number 1"), "{}", differing[0]);
    }

    #[test]
    fn a_send_needs_its_own_recv() {
        let send = Call { peer: Some((1, true)), ..call(2, "send") };
        let recv = |seq| Call { peer: Some((0, false)), ..call(seq, "recv") };
        let found = |calls: Vec<Call>| differences(0, &[], &send, &[(1, calls)]);
        assert_eq!(found(vec![recv(1), recv(2)]), []);
        assert_eq!(found(vec![recv(1)])[0].rank, 1);
        assert_eq!(found(vec![Call { peer: Some((0, true)), ..recv(2) }]).len(), 1);
    }
}
