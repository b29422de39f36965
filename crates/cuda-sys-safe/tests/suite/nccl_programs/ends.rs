//! Communicators that are aborted or dropped.

use warpline_cuda_sys_safe::nccl::{Collective, NcclType, ReduceOp};
use warpline_cuda_sys_safe::owned::Communicator;
use warpline_cuda_sys_safe::*;

use super::kit::*;

fn sum(rank: &Rank) -> Collective {
    let (at, dtype, op) = (rank.at(0), NcclType::F32, ReduceOp::Sum);
    Collective::AllReduce { send: at, recv: at, count: 1, dtype, op }
}

/// A communicator of all ranks that has been used.
fn another(rank: &Rank) -> Result<Communicator> {
    let comm = rank.comm.split(Some(0), 0, LIMIT)?.expect("it has a color");
    rank.enqueue_on(&comm, &[sum(rank)], &rank.stream)?;
    rank.stream.synchronize()?;
    rank.meet();
    Ok(comm)
}

programs! {
    abort_in_the_middle([2, 3], rank, t) {
        let comm = another(rank)?;
        if rank.me().0 == 0 {
            // The others never come.
            rank.enqueue_on(&comm, &[sum(rank)], &rank.stream)?;
        }
        rank.meet();
        comm.abort();
        t.say("aborted", comm.is_aborted());
        t.call("what stood has ended", rank.stream.synchronize());
        comm.abort();
        t.call("enqueue", rank.enqueue_on(&comm, &[sum(rank)], &rank.stream));
        t.call("state", comm.state());
        t.call("split", comm.split(Some(0), 0, LIMIT));
        t.call("launch a graph", comm.while_usable(|| ()));
        t.say("still the same rank", (comm.rank(), comm.ranks()) == rank.me());
        rank.meet();
        t.call("its parent", rank.enqueue(&[sum(rank)]));
    } => [
        "aborted: true",
        "what stood has ended: ok",
        "enqueue: ncclInvalidUsage",
        "state: ncclInvalidUsage",
        "split: ncclInvalidUsage",
        "launch a graph: ncclInvalidUsage",
        "still the same rank: true",
        "its parent: ok",
    ]

    abort_from_another_thread([2, 3], rank, t) {
        let comm = another(rank)?;
        if rank.me().0 == 0 {
            rank.enqueue_on(&comm, &[sum(rank)], &rank.stream)?;
        }
        rank.meet();
        let aborted = std::thread::scope(|scope| scope.spawn(|| comm.abort()).join().is_ok());
        t.say("aborted", aborted);
        t.call("what stood has ended", rank.stream.synchronize());
        t.call("enqueue", rank.enqueue_on(&comm, &[sum(rank)], &rank.stream));
        rank.meet();
    } => ["aborted: true", "what stood has ended: ok", "enqueue: ncclInvalidUsage"]

    dropped_without_an_abort([2, 3], rank, t) {
        let comm = another(rank)?;
        if rank.me().0 == 0 {
            rank.enqueue_on(&comm, &[sum(rank)], &rank.stream)?;
        }
        rank.meet();
        let clone = comm.clone();
        drop(comm);
        t.call("a clone keeps it", clone.while_usable(|| ()));
        drop(clone);
        t.say("what stood has ended", rank.is_soon_idle()?);
        rank.meet();
        t.call("its parent", rank.enqueue(&[sum(rank)]));
    } => ["a clone keeps it: ok", "what stood has ended: true", "its parent: ok"]
}
