//! Splitting communicators.

use warpline_cuda_sys_safe::nccl::{Collective, NcclType, ReduceOp};
use warpline_cuda_sys_safe::owned::Communicator;
use warpline_cuda_sys_safe::*;

use super::kit::*;

/// Returns the ranks that the members of a communicator have in the world, in the order of their
/// new ranks.
fn members(rank: &Rank, part: &Communicator) -> Result<Vec<u32>> {
    let dtype = NcclType::U32;
    rank.put(0, bytemuck::bytes_of(&[rank.me().0 as u32]))?;
    let (send, recv) = (rank.at(0), rank.at(RECV));
    let call = Collective::AllGather { send, recv, count: 1, dtype };
    rank.enqueue_on(part, &[call], &rank.stream)?;
    Ok(elements(&rank.get(RECV, 4 * part.ranks())?))
}

programs! {
    parts_by_color_in_the_order_of_keys([2, 3, 5, 8], rank, t) {
        let (me, ranks) = rank.me();
        let part = rank.comm.split(Some(me as u32 % 2), ranks - me, LIMIT)?;
        let part = part.expect("it has a color");
        let expected: Vec<u32> =
            (0..ranks as u32).rev().filter(|other| other % 2 == me as u32 % 2).collect();
        t.check(|| "members".into(), &members(rank, &part)?, &expected);
        let place = expected.iter().position(|&other| other as usize == me).unwrap_or(ranks);
        let own = [part.rank(), part.ranks()];
        t.check(|| "rank".into(), &own, &[place, expected.len()]);
        t.check(|| "device".into(), &[part.device()], &[rank.comm.device()]);
        t.tally("parts");
        rank.meet();
    } => ["parts: right"]

    all_in_another_order([2, 3, 8], rank, t) {
        let (me, ranks) = rank.me();
        let all = rank.comm.split(Some(7), ranks - me, LIMIT)?.expect("it has a color");
        let expected: Vec<u32> = (0..ranks as u32).rev().collect();
        t.check(|| "members".into(), &members(rank, &all)?, &expected);
        // With equal keys, ranks keep the order that they have in `all`.
        let again = all.split(Some(0), 0, LIMIT)?.expect("it has a color");
        t.check(|| "again".into(), &members(rank, &again)?, &expected);
        t.tally("members");
        rank.meet();
    } => ["members: right"]

    a_rank_without_a_color_gets_none([2, 3, 5], rank, t) {
        let (me, ranks) = rank.me();
        let color = (me > 0).then_some(3);
        let part = rank.comm.split(color, me, LIMIT)?;
        t.check(|| "some".into(), &[part.is_some()], &[me > 0]);
        if let Some(part) = &part {
            let expected: Vec<u32> = (1..ranks as u32).collect();
            t.check(|| "members".into(), &members(rank, part)?, &expected);
        }
        let everybody: Vec<u32> = (0..ranks as u32).collect();
        t.check(|| "the whole".into(), &members(rank, &rank.comm)?, &everybody);
        t.tally("all");
        rank.meet();
    } => ["all: right"]

    a_part_outlives_the_whole([2, 3], rank, t) {
        let whole = rank.comm.split(Some(0), 0, LIMIT)?.expect("it has a color");
        let part = whole.split(Some(0), 0, LIMIT)?.expect("it has a color");
        rank.meet();
        whole.abort();
        // While a rank aborts, no rank may block on work that needs the aborted communicator.
        rank.meet();
        let (send, dtype, op) = (rank.at(0), NcclType::I32, ReduceOp::Sum);
        rank.put(0, bytemuck::bytes_of(&[1i32]))?;
        let call = Collective::AllReduce { send, recv: send, count: 1, dtype, op };
        rank.enqueue_on(&part, &[call], &rank.stream)?;
        let got = rank.get(0, 4)?;
        t.check(|| "sum".into(), &got, &(rank.me().1 as i32).to_ne_bytes());
        t.tally("the part");
        t.call("the whole", rank.enqueue_on(&whole, &[call], &rank.stream));
        rank.meet();
    } => ["the part: right", "the whole: ncclInvalidUsage"]
}
