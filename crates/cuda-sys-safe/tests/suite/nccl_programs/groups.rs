//! Groups, calls without elements, and several communicators on one device.

use warpline_cuda_sys_safe::nccl::{Collective, NcclType, ReduceOp};
use warpline_cuda_sys_safe::owned::Communicator;
use warpline_cuda_sys_safe::*;

use super::kit::*;

fn floats(bytes: &[u8]) -> Vec<f32> {
    elements(bytes)
}

fn sum(rank: &Rank, at: usize, count: usize) -> Collective {
    let (send, dtype) = (rank.at(at), NcclType::F32);
    Collective::AllReduce { send, recv: send, count, dtype, op: ReduceOp::Sum }
}

programs! {
    calls_without_elements([1, 2, 3], rank, t) {
        let (me, ranks) = rank.me();
        let (send, recv, count, dtype) = (rank.at(0), rank.at(RECV), 0, NcclType::F32);
        let (op, root) = (ReduceOp::Sum, 0);
        rank.put(RECV, &[7; 64])?;
        let calls = [
            ("all-reduce", Collective::AllReduce { send, recv, count, dtype, op }),
            ("broadcast", Collective::Broadcast { send, recv, count, dtype, root }),
            ("reduce", Collective::Reduce { send, recv, count, dtype, op, root }),
            ("all-gather", Collective::AllGather { send, recv, count, dtype }),
            ("reduce-scatter", Collective::ReduceScatter { send, recv, count, dtype, op }),
        ];
        for (what, call) in calls {
            t.call(what, rank.enqueue(&[call]));
        }
        let (before, after) = ((me + ranks - 1) % ranks, (me + 1) % ranks);
        let ring = [
            Collective::Send { send, count, dtype, peer: after },
            Collective::Recv { recv, count, dtype, peer: before },
        ];
        t.call("ring", rank.enqueue(&ring));
        t.call("an empty group", rank.enqueue(&[]));
        t.say("untouched", rank.get(RECV, 64)? == [7; 64]);
    } => [
        "all-reduce: ok",
        "broadcast: ok",
        "reduce: ok",
        "all-gather: ok",
        "reduce-scatter: ok",
        "ring: ok",
        "an empty group: ok",
        "untouched: true",
    ]

    a_group_of_different_calls([1, 2, 3, 8], rank, t) {
        let (me, ranks) = rank.me();
        let (before, after) = ((me + ranks - 1) % ranks, (me + 1) % ranks);
        rank.put(0, bytemuck::bytes_of(&[me as f32, 1.0]))?;
        rank.put(512, bytemuck::bytes_of(&[me as i32 + 10; 3]))?;
        rank.put(1024, &[me as u8 + 1; 7])?;
        rank.put(2048, bytemuck::bytes_of(&[-(me as i64)]))?;
        for _ in 0..3 {
            rank.enqueue(&[
                Collective::Recv {
                    recv: rank.at(RECV + 1024),
                    count: 7,
                    dtype: NcclType::U8,
                    peer: before,
                },
                Collective::AllReduce {
                    send: rank.at(0),
                    recv: rank.at(RECV),
                    count: 2,
                    dtype: NcclType::F32,
                    op: ReduceOp::Sum,
                },
                Collective::Broadcast {
                    send: rank.at(512),
                    recv: rank.at(RECV + 512),
                    count: 3,
                    dtype: NcclType::I32,
                    root: ranks - 1,
                },
                Collective::Send { send: rank.at(1024), count: 7, dtype: NcclType::U8, peer: after },
                Collective::AllGather {
                    send: rank.at(2048),
                    recv: rank.at(RECV + 2048),
                    count: 1,
                    dtype: NcclType::I64,
                },
            ])?;
        }
        let n = ranks as f32;
        let got = floats(&rank.get(RECV, 8)?);
        t.check(|| "all-reduce".into(), &got, &[n * (n - 1.0) / 2.0, n]);
        let got: Vec<i32> = elements(&rank.get(RECV + 512, 12)?);
        t.check(|| "broadcast".into(), &got, &[ranks as i32 + 9; 3]);
        t.check(|| "ring".into(), &rank.get(RECV + 1024, 7)?, &[before as u8 + 1; 7]);
        let got: Vec<i64> = elements(&rank.get(RECV + 2048, 8 * ranks)?);
        t.check(|| "all-gather".into(), &got, &(0..ranks as i64).map(|r| -r).collect::<Vec<_>>());
        t.tally("all of them");
    } => ["all of them: right"]

    calls_run_in_the_streams_order([2, 3], rank, t) {
        let ranks = rank.me().1 as f32;
        rank.put(0, bytemuck::bytes_of(&[1f32]))?;
        for _ in 0..4 {
            rank.enqueue(&[sum(rank, 0, 1)])?;
        }
        t.check(|| "sums of sums".into(), &floats(&rank.get(0, 4)?), &[ranks.powi(4)]);
        t.tally("sums of sums");
    } => ["sums of sums: right"]

    two_communicators_used_in_one_order([2, 3], rank, t) {
        let (me, ranks) = rank.me();
        let id = rank.new_id()?;
        let second = Communicator::new(&rank.driver, rank.comm.device(), &id, ranks, me, LIMIT)?;
        let side = stream(&rank.driver, rank.comm.device())?;
        rank.put(0, bytemuck::bytes_of(&[1f32]))?;
        rank.put_from(&side, 512, bytemuck::bytes_of(&[2f32]))?;
        for _ in 0..3 {
            rank.enqueue(&[sum(rank, 0, 1)])?;
            rank.enqueue_on(&second, &[sum(rank, 512, 1)], &side)?;
        }
        let scale = (ranks as f32).powi(3);
        t.check(|| "first".into(), &floats(&rank.get(0, 4)?), &[scale]);
        t.check(|| "second".into(), &floats(&rank.get_from(&side, 512, 4)?), &[2.0 * scale]);
        t.tally("both");
        rank.meet();
        second.abort();
        // While a rank aborts, no rank may block on work that needs the aborted communicator.
        rank.meet();
        // The first communicator is not affected.
        rank.enqueue(&[sum(rank, 0, 1)])?;
        t.check(|| "after".into(), &floats(&rank.get(0, 4)?), &[scale * ranks as f32]);
        t.tally("the first, without the second");
    } => ["both: right", "the first, without the second: right"]
}
