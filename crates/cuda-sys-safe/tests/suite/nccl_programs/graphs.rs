//! Collectives in graphs.

use warpline_cuda_sys_safe::nccl::{Collective, NcclType, ReduceOp};
use warpline_cuda_sys_safe::*;

use super::kit::*;

programs! {
    a_captured_collective_is_replayed([1, 2, 3], rank, t) {
        let (me, ranks) = rank.me();
        let (at, dtype, op) = (rank.at(0), NcclType::F32, ReduceOp::Sum);
        let sum = Collective::AllReduce { send: at, recv: at, count: 2, dtype, op };
        let next = [
            Collective::Send { send: at, count: 1, dtype, peer: (me + 1) % ranks },
            Collective::Recv {
                recv: rank.at(RECV),
                count: 1,
                dtype,
                peer: (me + ranks - 1) % ranks,
            },
        ];
        rank.put(0, bytemuck::bytes_of(&[1f32, me as f32]))?;
        let (driver, stream) = (&rank.driver, rank.stream.handle());
        // SAFETY: stream, memory and graphs stay alive until all replays are done.
        let (graph, exec) = unsafe {
            driver.begin_capture(stream, CaptureMode::ThreadLocal)?;
            t.call("captured", rank.enqueue(&[sum]));
            t.call("another one", rank.enqueue(&next));
            let graph = driver.end_capture(stream)?;
            (graph, driver.graph_instantiate(graph)?)
        };
        let floats = |at, n: usize| rank.get(at, 4 * n).map(|b| elements::<f32>(&b));
        t.check(|| "before".into(), &floats(0, 2)?, &[1.0, me as f32]);
        let (n, numbers) = (ranks as f32, (ranks * (ranks - 1) / 2) as f32);
        for replay in 0..2 {
            // SAFETY: stream, memory and graphs stay alive until all replays are done.
            rank.comm.while_usable(|| unsafe { driver.graph_launch(exec, stream) })??;
            let scale = n.powi(replay);
            t.check(|| format!("sum {replay}"), &floats(0, 2)?, &[n * scale, numbers * scale]);
            t.check(|| format!("ring {replay}"), &floats(RECV, 1)?, &[n * scale]);
        }
        // A communicator in a graph can still be used directly.
        rank.enqueue(&[sum])?;
        t.check(|| "after".into(), &floats(0, 1)?, &[n.powi(3)]);
        t.tally("replays");
        // SAFETY: all replays are done.
        unsafe {
            t.call("destroy the executable", driver.graph_exec_destroy(exec));
            t.call("destroy the graph", driver.graph_destroy(graph));
        }
    } => [
        "captured: ok",
        "another one: ok",
        "replays: right",
        "destroy the executable: ok",
        "destroy the graph: ok",
    ]
}
