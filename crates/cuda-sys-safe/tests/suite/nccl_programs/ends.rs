//! Communicators that are aborted or dropped.

use warpline_cuda_sys_safe::nccl::{Collective, NcclType, ReduceOp};
use warpline_cuda_sys_safe::owned::Communicator;
use warpline_cuda_sys_safe::*;

use super::kit::*;

fn sum(rank: &Rank) -> Collective {
    let (at, dtype, op) = (rank.at(0), NcclType::F32, ReduceOp::Sum);
    Collective::AllReduce { send: at, recv: at, count: 1, dtype, op }
}

/// Returns a new communicator of all ranks, which has completed a collective.
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
            // The other ranks never make this call.
            rank.enqueue_on(&comm, &[sum(rank)], &rank.stream)?;
        }
        rank.meet();
        comm.abort();
        t.say("aborted", comm.is_aborted());
        t.call("the blocked work has ended", rank.stream.synchronize());
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
        "the blocked work has ended: ok",
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
        t.call("the blocked work has ended", rank.stream.synchronize());
        t.call("enqueue", rank.enqueue_on(&comm, &[sum(rank)], &rank.stream));
        rank.meet();
    } => ["aborted: true", "the blocked work has ended: ok", "enqueue: ncclInvalidUsage"]

    abort_of_a_first_call([2, 3], rank, t) {
        let comm = rank.comm.split(Some(0), 0, LIMIT)?.expect("it has a color");
        rank.meet();
        std::thread::scope(|scope| {
            if rank.me().0 > 0 {
                return comm.abort();
            }
            // NCCL's first call connects the ranks, so it waits for ranks that never make the call.
            let call = scope.spawn(|| rank.enqueue_on(&comm, &[sum(rank)], &rank.stream));
            let began = std::time::Instant::now();
            while !call.is_finished() && began.elapsed().as_millis() < 100 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            comm.abort();
            // The interrupted call has returned. Its result does not matter.
            let _ = call.join().expect("no panic");
        });
        rank.meet();
        t.call("the blocked work has ended", rank.stream.synchronize());
        t.call("state", comm.state());
        rank.meet();
        t.call("its parent", rank.enqueue(&[sum(rank)]));
        t.call("is done", rank.stream.synchronize());
    } => [
        "the blocked work has ended: ok",
        "state: ncclInvalidUsage",
        "its parent: ok",
        "is done: ok",
    ]

    abort_with_a_graph_alive([2, 3], rank, t) {
        let comm = another(rank)?;
        let (driver, stream) = (&rank.driver, rank.stream.handle());
        // SAFETY: stream, memory and executable stay alive until the replays have ended.
        let exec = unsafe {
            driver.begin_capture(stream, CaptureMode::ThreadLocal)?;
            rank.enqueue_on(&comm, &[sum(rank)], &rank.stream)?;
            let graph = driver.end_capture(stream)?;
            let exec = driver.graph_instantiate(graph)?;
            driver.graph_destroy(graph)?;
            exec
        };
        // SAFETY: stream, memory and executable stay alive until the replays have ended.
        let replay = || comm.while_usable(|| unsafe { driver.graph_launch(exec, stream) });
        t.call("a replay", replay().and_then(|launched| launched));
        rank.stream.synchronize()?;
        rank.meet();
        if rank.me().0 == 0 {
            // The other ranks never make this call.
            replay()??;
        }
        rank.meet();
        std::thread::scope(|scope| {
            scope.spawn(|| comm.abort());
            while !comm.is_aborted() {
                std::thread::yield_now();
            }
            // NCCL's abort may wait until the graph is destroyed.
            t.call("the blocked work has ended", rank.stream.synchronize());
            t.call("another replay", replay().map(drop));
            // SAFETY: the replays have ended.
            t.call("destroy the executable", unsafe { driver.graph_exec_destroy(exec) });
        });
        rank.meet();
        t.call("its parent", rank.enqueue(&[sum(rank)]));
        t.call("is done", rank.stream.synchronize());
    } => [
        "a replay: ok",
        "the blocked work has ended: ok",
        "another replay: ncclInvalidUsage",
        "destroy the executable: ok",
        "its parent: ok",
        "is done: ok",
    ]

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
        t.say("the blocked work has ended", rank.is_soon_idle()?);
        rank.meet();
        t.call("its parent", rank.enqueue(&[sum(rank)]));
    } => ["a clone keeps it: ok", "the blocked work has ended: true", "its parent: ok"]
}
