//! Collectives between CPU tensors, through the group's store.
//!
//! A collective is one or two exchanges. In an exchange, each rank sends at most one message to each peer and receives
//! at most one from each peer. A message holds the parts of all calls of the collective, in their order. The first
//! exchange brings the ranks' inputs to the ranks that need them. All-reduces have a second exchange: rank 0 combines
//! the inputs in the order of ranks and sends the result to all ranks, so every rank has the same bits.
//!
//! A channel leads from one rank to another. Its messages are cut into pieces, which are numbered per channel. The
//! receiver deletes a piece and acknowledges it; the sender writes a piece only after the acknowledgement of the
//! previous one. The store therefore holds at most one piece per channel.
//!
//! Invariant: an exchange does not deadlock if all ranks make matching calls. A rank writes its k-th pieces to all
//! peers before it reads the k-th pieces of its peers, so by induction on k each awaited piece and acknowledgement
//! comes.
//!
//! Invariant: a call that fails leaves its tensors unchanged. They are written after the last exchange. A failure
//! within an exchange fails the group, because the ranks may then have counted different numbers of pieces.

use std::collections::{HashMap, VecDeque};
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};

use warpline::{DType, Device, Error};
use warpline_kernels::collective::{self, CollectiveOp, GroupMember};
use warpline_runtime::View;
use warpline_runtime::launch::{read_bytes, write_bytes};

use super::super::check::wait_for_key;
use super::super::flight_recorder::CallState;
use super::super::signature::Signature;
use super::super::store::{Deadline, MAX_STORED};
use super::super::work::{CallTensors, CompletionPoint};
use super::super::{Result, Work, check};
use super::{GroupShared, ProcessGroup};

/// A rank's ends of its channels to and from the other ranks.
#[derive(Debug)]
pub(in crate::distributed) struct CpuTransport {
    rank: usize,
    ranks: usize,
    /// Number of pieces sent or received so far, by peer and direction (`true`: this rank sends).
    pieces: Mutex<HashMap<(usize, bool), u64>>,
}

/// The dtype and number of elements of a part. The sender and the receiver must have the same.
type PartShape = (DType, usize);

/// The messages of one exchange, by peer.
struct Exchange {
    sends: Vec<Vec<(PartShape, Vec<u8>)>>,
    receives: Vec<Vec<PartShape>>,
}

/// The received parts of an exchange, by peer.
struct ReceivedParts(Vec<VecDeque<Vec<u8>>>);

impl ReceivedParts {
    fn next(&mut self, peer: usize) -> Vec<u8> {
        self.0.get_mut(peer).and_then(VecDeque::pop_front).unwrap_or_default()
    }
}

fn shape(view: View<'_>) -> PartShape {
    (view.dtype, view.numel())
}

/// Returns the elements of a contiguous view.
fn read(view: View<'_>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; view.numel() * view.dtype.size()];
    read_bytes((view.storage, view.layout.offset() * view.dtype.size()), &mut bytes)?;
    Ok(bytes)
}

fn write(view: View<'_>, bytes: &[u8]) -> Result<()> {
    write_bytes((view.storage, view.layout.offset() * view.dtype.size()), bytes)
}

impl Exchange {
    fn new(ranks: usize) -> Self {
        Self { sends: vec![Vec::new(); ranks], receives: vec![Vec::new(); ranks] }
    }

    fn send(&mut self, peer: usize, view: View<'_>) -> Result<()> {
        self.sends[peer].push((shape(view), read(view)?));
        Ok(())
    }

    /// Expects a part with the dtype and size of `view` from each of `peers`.
    fn receive(&mut self, peers: impl IntoIterator<Item = usize>, view: View<'_>) {
        peers.into_iter().for_each(|peer| self.receives[peer].push(shape(view)));
    }

    /// Adds the inputs of a call.
    fn add(&mut self, op: &CollectiveOp<'_>, rank: usize) -> Result<()> {
        let all = 0..self.sends.len();
        match *op {
            CollectiveOp::AllReduce { input, .. } => {
                self.send(0, input)?;
                self.receive(all.filter(|_| rank == 0), input);
            }
            CollectiveOp::Reduce { input, root, .. } => {
                self.send(root, input)?;
                self.receive(all.filter(|_| rank == root), input);
            }
            CollectiveOp::Broadcast { input, output, root } => {
                for peer in all.filter(|_| rank == root) {
                    self.send(peer, input)?;
                }
                self.receive([root], output);
            }
            CollectiveOp::AllGather { input, .. } => {
                for peer in all.clone() {
                    self.send(peer, input)?;
                }
                self.receive(all, input);
            }
            CollectiveOp::ReduceScatter { input, output, .. } => {
                let bytes = read(input)?;
                let parts = bytes.chunks(output.numel() * output.dtype.size());
                for (sends, part) in self.sends.iter_mut().zip(parts) {
                    sends.push((shape(output), part.to_vec()));
                }
                self.receive(all, output);
            }
            CollectiveOp::Send { input, peer } => self.send(peer, input)?,
            CollectiveOp::Recv { output, peer } => self.receive([peer], output),
        }
        Ok(())
    }
}

impl CpuTransport {
    pub(super) fn new(rank: usize, ranks: usize) -> Self {
        Self { rank, ranks, pieces: Mutex::default() }
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn ranks(&self) -> usize {
        self.ranks
    }

    /// Carries out checked calls. Calls without elements are skipped, as with NCCL.
    fn run(&self, group: &GroupShared, call: &Signature, ops: &[CollectiveOp<'_>]) -> Result<()> {
        let (name, all) = (call.op, 0..self.ranks);
        // A send and its receive are different calls, so their headers hold only dtypes and numbers of elements.
        let text = if call.peer.is_none() { call.to_string() } else { String::new() };
        let ops: Vec<_> = ops.iter().filter(|op| numel(op) > 0).collect();
        let mut inputs = Exchange::new(self.ranks);
        ops.iter().try_for_each(|op| inputs.add(op, self.rank))?;
        let mut received = self.exchange(group, &text, inputs)?;
        let combine = |received: &mut ReceivedParts, dtype, op| {
            let inputs: Vec<_> = all.clone().map(|peer| received.next(peer)).collect();
            let inputs: Vec<_> = inputs.iter().map(|bytes| &bytes[..]).collect();
            collective::reduce(name, dtype, op, &inputs)
        };
        let (mut results, mut writes) = (Exchange::new(self.ranks), Vec::new());
        for op in &ops {
            match **op {
                CollectiveOp::AllReduce { input, output, op } => {
                    if self.rank == 0 {
                        let result = combine(&mut received, input.dtype, op)?;
                        for sends in &mut results.sends {
                            sends.push((shape(input), result.clone()));
                        }
                    }
                    results.receive([0], output);
                }
                CollectiveOp::Reduce { output, op, root, .. } if root == self.rank => {
                    writes.push((output, combine(&mut received, output.dtype, op)?));
                }
                CollectiveOp::ReduceScatter { output, op, .. } => {
                    writes.push((output, combine(&mut received, output.dtype, op)?));
                }
                CollectiveOp::AllGather { output, .. } => {
                    let parts: Vec<_> = all.clone().map(|peer| received.next(peer)).collect();
                    writes.push((output, parts.concat()));
                }
                CollectiveOp::Broadcast { output, root: peer, .. }
                | CollectiveOp::Recv { output, peer } => {
                    writes.push((output, received.next(peer)));
                }
                CollectiveOp::Reduce { .. } | CollectiveOp::Send { .. } => {}
            }
        }
        let mut received = self.exchange(group, &text, results)?;
        for op in &ops {
            if let CollectiveOp::AllReduce { output, .. } = **op {
                writes.push((output, received.next(0)));
            }
        }
        writes.into_iter().try_for_each(|(output, bytes)| write(output, &bytes))
    }

    /// Sends and receives the messages of an exchange. A message begins with a line that describes the call and its
    /// parts. The line must be equal at both ends.
    fn exchange(
        &self,
        group: &GroupShared,
        call: &str,
        exchange: Exchange,
    ) -> Result<ReceivedParts> {
        let mut parts = vec![VecDeque::new(); self.ranks];
        let (mut sending, mut receiving) = (Vec::new(), Vec::new());
        for (peer, message) in exchange.sends.into_iter().enumerate() {
            if peer == self.rank {
                parts[peer].extend(message.into_iter().map(|(_, bytes)| bytes));
            } else if !message.is_empty() {
                let header = header(call, message.iter().map(|(shape, _)| *shape));
                let bytes = message.into_iter().flat_map(|(_, bytes)| bytes);
                sending.push((peer, header.bytes().chain(bytes).collect::<Vec<u8>>()));
            }
        }
        for (peer, shapes) in exchange.receives.into_iter().enumerate() {
            if peer != self.rank && !shapes.is_empty() {
                let header = header(call, shapes.iter().copied());
                let elements = shapes.iter().map(|(dtype, count)| dtype.size() * count);
                let length = header.len() + elements.sum::<usize>();
                receiving.push((peer, header, shapes, Vec::with_capacity(length), length));
            }
        }
        let size = self.piece_size();
        let lengths = sending.iter().map(|(_, bytes)| bytes.len());
        let longest = lengths.chain(receiving.iter().map(|message| message.4)).max().unwrap_or(0);
        for start in (0..longest).step_by(size) {
            for (peer, message) in &sending {
                if let Some(rest) = message.get(start..).filter(|rest| !rest.is_empty()) {
                    self.put(group, *peer, &rest[..size.min(rest.len())])?;
                }
            }
            for (peer, header, _, message, length) in &mut receiving {
                if start >= *length {
                    continue;
                }
                message.extend(self.take(group, *peer)?);
                // Compare the header in the first piece already, because the message of a different call may have a
                // different length.
                let compared = header.len().min(size);
                if start == 0 && message.get(..compared) != header.as_bytes().get(..compared) {
                    return Err(differs(call, *peer, message));
                }
            }
        }
        for (peer, header, shapes, message, length) in receiving {
            if message.len() != length || !message.starts_with(header.as_bytes()) {
                return Err(differs(call, peer, &message));
            }
            let mut rest = &message[header.len()..];
            for (dtype, count) in shapes {
                let (part, later) = rest.split_at(dtype.size() * count);
                parts[peer].push_back(part.to_vec());
                rest = later;
            }
        }
        Ok(ReceivedParts(parts))
    }

    /// Returns the size of a piece, in bytes. With one piece per channel, the pieces fill at most half of the store in
    /// jobs of up to 362 ranks. Larger jobs exceed this, because a piece has at least 1 KiB.
    fn piece_size(&self) -> usize {
        (MAX_STORED / 2 / self.ranks.pow(2)).clamp(1 << 10, 1 << 20)
    }

    /// Returns the number of the next piece of a channel.
    fn next_piece(&self, end: (usize, bool)) -> u64 {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let count = pieces.entry(end).or_default();
        *count += 1;
        *count
    }

    fn put(&self, group: &GroupShared, peer: usize, piece: &[u8]) -> Result<()> {
        let number = self.next_piece((peer, true));
        let key = |number| format!("cpu/{}/{peer}/{number}", self.rank);
        let store = &group.parts.store;
        if number > 1 {
            let taken = taken(&key(number - 1));
            wait_for_key(group, &taken)?;
            store.delete(&taken)?;
        }
        Ok(store.set(&key(number), piece)?)
    }

    fn take(&self, group: &GroupShared, peer: usize) -> Result<Vec<u8>> {
        let key = format!("cpu/{peer}/{}/{}", self.rank, self.next_piece((peer, false)));
        let piece = wait_for_key(group, &key)?;
        group.parts.store.delete(&key)?;
        group.parts.store.set(&taken(&key), b"")?;
        Ok(piece)
    }
}

/// Returns the key by which the receiver acknowledges a piece.
fn taken(piece: &str) -> String {
    format!("{piece}/taken")
}

fn numel(op: &CollectiveOp<'_>) -> usize {
    match op {
        CollectiveOp::AllReduce { input: view, .. }
        | CollectiveOp::Broadcast { input: view, .. }
        | CollectiveOp::Reduce { input: view, .. }
        | CollectiveOp::AllGather { input: view, .. }
        | CollectiveOp::ReduceScatter { output: view, .. }
        | CollectiveOp::Send { input: view, .. }
        | CollectiveOp::Recv { output: view, .. } => view.numel(),
    }
}

fn header(call: &str, parts: impl Iterator<Item = PartShape>) -> String {
    let parts: Vec<_> = parts.map(|(dtype, count)| format!("{count} of {dtype}")).collect();
    format!("{call}: {}\n", parts.join(", "))
}

/// Returns the error for a message of another call.
fn differs(call: &str, peer: usize, message: &[u8]) -> Error {
    let theirs = message.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let theirs = String::from_utf8_lossy(theirs);
    Error::invalid("collective", format!("rank {peer} sent {theirs}, which does not match {call}"))
}

impl ProcessGroup {
    /// Runs a call. Returns when the call is done.
    pub(super) fn run_on_cpu(
        &self,
        cpu: &CpuTransport,
        signature: Signature,
        location: &'static Location<'static>,
        keep: CallTensors,
        ops: &[CollectiveOp<'_>],
    ) -> Result<Work> {
        let shared = self.shared();
        let member = GroupMember { device: Device::Cpu, rank: cpu.rank, ranks: cpu.ranks };
        let _in_order = shared.launching.lock().unwrap_or_else(PoisonError::into_inner);
        let checked = shared.check_alive();
        let checked = checked.and_then(|()| collective::check(signature.op, member, ops));
        checked.map_err(|error| error.at(location))?;
        let (id, seq) = shared.recorder().begin(signature.clone(), location);
        let ran = Deadline::after(shared.parts.timeout).bound(|| {
            if shared.parts.debug {
                check::compare(shared, seq, &signature)?;
            }
            cpu.run(shared, &signature, ops).map_err(|error| match shared.check_alive() {
                Ok(()) => shared.fail_after(error),
                Err(failure) => failure,
            })
        });
        shared.recorder().set_state(id, CallState::Done);
        ran.map_err(|error| error.at(location))?;
        Ok(Work::new(Arc::clone(shared), CompletionPoint::Returned, (id, seq), keep))
    }
}
