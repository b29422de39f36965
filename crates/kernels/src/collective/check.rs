//! Checks of a group of collective calls, before anything is enqueued.

use std::ops::Range;

use warpline_cuda_sys_safe::nccl::ReduceOp;

use super::{CollectiveOp, GroupMember, nccl_type};
use warpline_runtime::{DType, Device, Error, ErrorKind, Result, View};

/// Checks one call by itself.
#[track_caller]
pub(super) fn call(op: &'static str, member: GroupMember, call: &CollectiveOp<'_>) -> Result<()> {
    let (own, (input, output)) = (member.device, call.views());
    for view in input.iter().chain(&output) {
        nccl_type(op, view.dtype)?;
        let device = view.storage.cuda_device();
        let device = device.map_or(Device::Cpu, |device| Device::cuda(device.index()));
        if device != own {
            return Err(ErrorKind::device_mismatch(own, device).of(op));
        }
        if !view.layout.is_contiguous() {
            let reason = format!(
                "a tensor of sizes {:?} with strides {:?} is not contiguous, but a collective \
                 takes only contiguous tensors; call contiguous() first",
                view.sizes(),
                view.strides()
            );
            return Err(Error::invalid(op, reason));
        }
        view.check_inside(op)?;
    }
    if let (Some(input), Some(output)) = (input, output) {
        output.check_operand_dtype(op, "the output", input.dtype)?;
    }
    match *call {
        CollectiveOp::AllReduce { input, op: ReduceOp::Avg, .. }
        | CollectiveOp::Reduce { input, op: ReduceOp::Avg, .. }
        | CollectiveOp::ReduceScatter { input, op: ReduceOp::Avg, .. }
            if input.dtype == DType::Bool =>
        {
            return Err(ErrorKind::UnsupportedDType { dtype: DType::Bool }.of(op));
        }
        CollectiveOp::Broadcast { root: rank, .. }
        | CollectiveOp::Reduce { root: rank, .. }
        | CollectiveOp::Send { peer: rank, .. }
        | CollectiveOp::Recv { peer: rank, .. }
            if rank >= member.ranks =>
        {
            let reason = format!("there is no rank {rank} among {} ranks", member.ranks);
            return Err(Error::invalid(op, reason));
        }
        _ => {}
    }
    check_sizes(op, member, call)?;
    check_in_place(op, member, call)
}

#[track_caller]
fn check_sizes(op: &'static str, member: GroupMember, call: &CollectiveOp<'_>) -> Result<()> {
    let (Some(input), Some(output)) = call.views() else { return Ok(()) };
    let (from, to) = match call {
        CollectiveOp::AllGather { .. } => (member.ranks, 1),
        CollectiveOp::ReduceScatter { .. } => (1, member.ranks),
        _ => (1, 1),
    };
    if input.numel().checked_mul(from) == output.numel().checked_mul(to) {
        return Ok(());
    }
    let rule = match call {
        CollectiveOp::AllGather { .. } => {
            "the output must have as many elements as the inputs of all ranks"
        }
        CollectiveOp::ReduceScatter { .. } => {
            "the input must have as many elements as the outputs of all ranks"
        }
        _ => "both must have the same number of elements",
    };
    Err(Error::shape(
        op,
        format!(
            "the input has sizes {:?} and the output {:?}, on {} ranks: {rule}",
            input.sizes(),
            output.sizes(),
            member.ranks
        ),
    ))
}

/// Returns an error if the output shares memory with the input, unless both lie as NCCL requires for
/// an in-place call.
#[track_caller]
fn check_in_place(op: &'static str, member: GroupMember, call: &CollectiveOp<'_>) -> Result<()> {
    let (Some(input), Some(output)) = call.views() else { return Ok(()) };
    let (from, to) = (bytes(&input), bytes(&output));
    let allowed = match call {
        CollectiveOp::AllGather { .. } => from.start == to.start + member.rank * from.len(),
        CollectiveOp::ReduceScatter { .. } => to.start == from.start + member.rank * to.len(),
        _ => from == to,
    };
    if allowed || !overlap(&input, &output) {
        return Ok(());
    }
    Err(ErrorKind::OverlappingOperands.of(op))
}

/// Checks the calls against each other. The group does not order its calls, so no output may
/// overlap another call's view. A send to this rank needs a receive in the same group.
#[track_caller]
pub(super) fn group(
    op: &'static str,
    member: GroupMember,
    calls: &[CollectiveOp<'_>],
) -> Result<()> {
    for (i, a) in calls.iter().enumerate() {
        for b in &calls[i + 1..] {
            let ((a_in, a_out), (b_in, b_out)) = (a.views(), b.views());
            let clash = |x: &Option<View<'_>>, y: &Option<View<'_>>| match (x, y) {
                (Some(x), Some(y)) => overlap(x, y),
                _ => false,
            };
            if clash(&a_out, &b_out) || clash(&a_out, &b_in) || clash(&a_in, &b_out) {
                return Err(ErrorKind::OverlappingOperands.of(op));
            }
        }
    }
    let own = member.rank;
    let to = calls
        .iter()
        .filter(|c| matches!(c, CollectiveOp::Send { peer, .. } if *peer == own))
        .count();
    let from = calls
        .iter()
        .filter(|c| matches!(c, CollectiveOp::Recv { peer, .. } if *peer == own))
        .count();
    if to == from {
        return Ok(());
    }
    let reason = format!(
        "rank {own} sends {to} tensors to itself but receives {from} in the same group; the calls would wait for each other forever"
    );
    Err(Error::invalid(op, reason))
}

/// Returns the range of bytes that a contiguous view occupies in its storage.
fn bytes(view: &View<'_>) -> Range<usize> {
    let start = view.layout.offset() * view.dtype.size();
    start..start + view.numel() * view.dtype.size()
}

fn overlap(a: &View<'_>, b: &View<'_>) -> bool {
    let (x, y) = (bytes(a), bytes(b));
    a.storage.same_as(b.storage) && x.start < y.end && y.start < x.end
}
