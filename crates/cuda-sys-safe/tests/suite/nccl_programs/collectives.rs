//! Each collective with every type and reduction, in place and out of place, and patterns of sends
//! and receives.

use warpline_cuda_sys_safe::nccl::{Collective, NcclType, ReduceOp};
use warpline_cuda_sys_safe::*;

use super::kit::*;
use super::numbers::*;

const COUNT: usize = 5;

/// Value of bytes that no rank has written.
const UNTOUCHED: u8 = 0xa5;

impl Rank {
    /// Returns every type with every reduction.
    fn reductions(&self) -> impl Iterator<Item = (NcclType, ReduceOp)> {
        NcclType::ALL.into_iter().flat_map(|dtype| ReduceOp::ALL.map(|op| (dtype, op)))
    }

    /// Returns the inputs of all ranks.
    fn all(&self, dtype: NcclType, op: ReduceOp, count: usize) -> Vec<Vec<i128>> {
        let ranks = self.me().1;
        (0..ranks).map(|rank| given(dtype, op, ranks, rank, count)).collect()
    }

    /// Enqueues `calls` with the elements `send` at the start of the memory. Returns the bytes at
    /// `recv`, which is an offset and a number of elements.
    fn result(
        &self,
        dtype: NcclType,
        send: &[i128],
        recv: (usize, usize),
        calls: &[Collective],
    ) -> Result<Vec<u8>> {
        let (at, count) = recv;
        self.put(RECV, &[UNTOUCHED; 512])?;
        self.put(0, &encode(dtype, send))?;
        self.enqueue(calls)?;
        self.get(at, count * dtype.size())
    }

    fn untouched(&self, dtype: NcclType, count: usize) -> Vec<u8> {
        vec![UNTOUCHED; count * dtype.size()]
    }
}

programs! {
    all_reduce([1, 2, 3, 5, 8], rank, t) {
        for (dtype, op) in rank.reductions() {
            let inputs = rank.all(dtype, op, COUNT);
            let own = &inputs[rank.me().0];
            let expected = encode(dtype, &combined(op, &inputs));
            for to in [0, RECV] {
                let (send, recv) = (rank.at(0), rank.at(to));
                let call = Collective::AllReduce { send, recv, count: COUNT, dtype, op };
                let got = rank.result(dtype, own, (to, COUNT), &[call])?;
                t.check(|| format!("{dtype:?} {op:?} to {to}"), &got, &expected);
                let kept = if to == 0 { expected.clone() } else { encode(dtype, own) };
                t.check(|| format!("{dtype:?} {op:?} sent"), &rank.get(0, kept.len())?, &kept);
            }
        }
        t.tally("all-reduce");
    } => ["all-reduce: right"]

    broadcast([1, 2, 3, 4], rank, t) {
        let (me, ranks) = rank.me();
        for dtype in NcclType::ALL {
            let inputs = rank.all(dtype, ReduceOp::Sum, COUNT);
            for root in 0..ranks {
                for to in [0, RECV] {
                    let (send, recv) = (rank.at(0), rank.at(to));
                    let call = Collective::Broadcast { send, recv, count: COUNT, dtype, root };
                    let got = rank.result(dtype, &inputs[me], (to, COUNT), &[call])?;
                    let expected = encode(dtype, &inputs[root]);
                    t.check(|| format!("{dtype:?} from {root} to {to}"), &got, &expected);
                }
            }
        }
        t.tally("broadcast");
    } => ["broadcast: right"]

    reduce([1, 2, 3, 8], rank, t) {
        let (me, ranks) = rank.me();
        for (number, (dtype, op)) in rank.reductions().enumerate() {
            let inputs = rank.all(dtype, op, COUNT);
            let root = number % ranks;
            let sum = encode(dtype, &combined(op, &inputs));
            for to in [0, RECV] {
                let (send, recv) = (rank.at(0), rank.at(to));
                let call = Collective::Reduce { send, recv, count: COUNT, dtype, op, root };
                let got = rank.result(dtype, &inputs[me], (to, COUNT), &[call])?;
                let expected = match to {
                    _ if me == root => sum.clone(),
                    0 => encode(dtype, &inputs[me]),
                    _ => rank.untouched(dtype, COUNT),
                };
                t.check(|| format!("{dtype:?} {op:?} on {root} to {to}"), &got, &expected);
            }
        }
        t.tally("reduce");
    } => ["reduce: right"]

    all_gather([1, 2, 3, 8], rank, t) {
        let (me, ranks) = rank.me();
        for dtype in NcclType::ALL {
            let inputs = rank.all(dtype, ReduceOp::Sum, COUNT);
            let expected = encode(dtype, &inputs.concat());
            let part = COUNT * dtype.size();
            // In place: a rank's input lies where its part of the output will be.
            for (from, to) in [(0, RECV), (me * part, 0)] {
                let (send, recv) = (rank.at(from), rank.at(to));
                let mut front = vec![0; from / dtype.size()];
                front.extend(&inputs[me]);
                let call = Collective::AllGather { send, recv, count: COUNT, dtype };
                let got = rank.result(dtype, &front, (to, ranks * COUNT), &[call])?;
                t.check(|| format!("{dtype:?} from {from}"), &got, &expected);
            }
        }
        t.tally("all-gather");
    } => ["all-gather: right"]

    reduce_scatter([1, 2, 3, 8], rank, t) {
        let (me, ranks) = rank.me();
        for (dtype, op) in rank.reductions() {
            let inputs = rank.all(dtype, op, COUNT * ranks);
            let sums = combined(op, &inputs);
            let expected = encode(dtype, &sums[me * COUNT..][..COUNT]);
            let part = COUNT * dtype.size();
            for to in [RECV, me * part] {
                let (send, recv) = (rank.at(0), rank.at(to));
                let call = Collective::ReduceScatter { send, recv, count: COUNT, dtype, op };
                let got = rank.result(dtype, &inputs[me], (to, COUNT), &[call])?;
                t.check(|| format!("{dtype:?} {op:?} to {to}"), &got, &expected);
            }
        }
        t.tally("reduce-scatter");
    } => ["reduce-scatter: right"]

    a_ring_of_sends([1, 2, 3, 8], rank, t) {
        let (me, ranks) = rank.me();
        let (before, after) = ((me + ranks - 1) % ranks, (me + 1) % ranks);
        for dtype in NcclType::ALL {
            let inputs = rank.all(dtype, ReduceOp::Sum, COUNT);
            let calls = [
                Collective::Send { send: rank.at(0), count: COUNT, dtype, peer: after },
                Collective::Recv { recv: rank.at(RECV), count: COUNT, dtype, peer: before },
            ];
            let got = rank.result(dtype, &inputs[me], (RECV, COUNT), &calls)?;
            t.check(|| format!("{dtype:?}"), &got, &encode(dtype, &inputs[before]));
        }
        t.tally("ring");
    } => ["ring: right"]

    all_to_all([1, 2, 3, 8], rank, t) {
        let (me, ranks) = rank.me();
        for dtype in NcclType::ALL {
            let inputs = rank.all(dtype, ReduceOp::Sum, COUNT * ranks);
            let part = COUNT * dtype.size();
            let calls: Vec<_> = (0..ranks)
                .flat_map(|peer| {
                    let (send, recv) = (rank.at(peer * part), rank.at(RECV + peer * part));
                    [
                        Collective::Send { send, count: COUNT, dtype, peer },
                        Collective::Recv { recv, count: COUNT, dtype, peer },
                    ]
                })
                .collect();
            let got = rank.result(dtype, &inputs[me], (RECV, COUNT * ranks), &calls)?;
            let parts: Vec<_> = inputs.iter().flat_map(|from| &from[me * COUNT..][..COUNT]).collect();
            let expected: Vec<i128> = parts.into_iter().copied().collect();
            t.check(|| format!("{dtype:?}"), &got, &encode(dtype, &expected));
        }
        t.tally("all-to-all");
    } => ["all-to-all: right"]

    gather_and_scatter([1, 2, 3, 8], rank, t) {
        let (me, ranks) = rank.me();
        for (number, dtype) in NcclType::ALL.into_iter().enumerate() {
            let root = number % ranks;
            let part = COUNT * dtype.size();
            let inputs = rank.all(dtype, ReduceOp::Sum, COUNT * ranks);
            // Gather: each rank sends its first elements to the root.
            let send = rank.at(0);
            let mut calls = vec![Collective::Send { send, count: COUNT, dtype, peer: root }];
            if me == root {
                calls.extend((0..ranks).map(|peer| {
                    let recv = rank.at(RECV + peer * part);
                    Collective::Recv { recv, count: COUNT, dtype, peer }
                }));
            }
            let got = rank.result(dtype, &inputs[me], (RECV, COUNT * ranks), &calls)?;
            let firsts: Vec<i128> = inputs.iter().flat_map(|from| from[..COUNT].to_vec()).collect();
            let expected = match me == root {
                true => encode(dtype, &firsts),
                false => rank.untouched(dtype, COUNT * ranks),
            };
            t.check(|| format!("gather {dtype:?} on {root}"), &got, &expected);

            // Scatter: the root sends each rank its part.
            let recv = rank.at(RECV);
            let mut calls = vec![Collective::Recv { recv, count: COUNT, dtype, peer: root }];
            if me == root {
                calls.extend((0..ranks).map(|peer| {
                    Collective::Send { send: rank.at(peer * part), count: COUNT, dtype, peer }
                }));
            }
            let got = rank.result(dtype, &inputs[me], (RECV, COUNT), &calls)?;
            let expected = encode(dtype, &inputs[root][me * COUNT..][..COUNT]);
            t.check(|| format!("scatter {dtype:?} from {root}"), &got, &expected);
        }
        t.tally("gather and scatter");
    } => ["gather and scatter: right"]

    as_much_as_several_channels_carry([2], rank, t) {
        // An odd number of bytes at an odd address.
        let (count, dtype, op) = (100_003, NcclType::U8, ReduceOp::Sum);
        let inputs = rank.all(dtype, op, count);
        rank.put(1, &encode(dtype, &inputs[rank.me().0]))?;
        let (send, recv) = (rank.at(1), rank.at(RECV + 3));
        rank.enqueue(&[Collective::AllReduce { send, recv, count, dtype, op }])?;
        let expected = encode(dtype, &combined(op, &inputs));
        t.say("all of it is right", rank.get(RECV + 3, count)? == expected);
    } => ["all of it is right: true"]
}
