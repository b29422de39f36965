//! Comparison and broadcast of the ranks' parameters and buffers.

use warpline::autograd::no_grad;
use warpline::{DType, Result, Tensor, cat, tensor, zeros};

use super::super::ProcessGroup;
use super::DdpError;
use super::buckets::{TensorSize, assign_buckets};

/// Size from which a piece of a broadcast takes no more tensors, in bytes.
pub(super) const BROADCAST_PIECE: usize = 250 << 20;

/// Compares a text line by line between the ranks. Each rank reports its first difference from each other rank.
#[track_caller]
pub(super) fn check_equal(group: &ProcessGroup, lines: &[String]) -> Result<()> {
    let (rank, ranks, device) = (group.rank(), group.world_size(), group.device());
    let text = lines.join("\n").into_bytes();
    let lengths = zeros([ranks], (DType::I64, device))?;
    let length = tensor(vec![text.len() as i64], device)?;
    group.all_gather_into_tensor(&lengths, &length, ())?;
    let lengths = lengths.to_vec::<i64>()?;
    let all = lengths.iter().map(|length| zeros([*length as usize], (DType::U8, device)));
    let all = all.collect::<Result<Vec<Tensor>>>()?;
    group.all_gather(&all, &tensor(text, device)?, ())?;
    let mut differing = Vec::new();
    for (other, theirs) in all.iter().enumerate().filter(|(other, _)| *other != rank) {
        let theirs = String::from_utf8_lossy(&theirs.to_vec::<u8>()?).into_owned();
        let theirs: Vec<&str> = theirs.split('\n').collect();
        let count = lines.len().max(theirs.len());
        let line = |number: usize| {
            let own = lines.get(number).map_or("nothing more", |line| line);
            (own, theirs.get(number).copied().unwrap_or("nothing more"))
        };
        if let Some((own, theirs)) = (0..count).map(line).find(|(own, theirs)| own != theirs) {
            differing.push(format!("rank {rank} has {own}, rank {other} has {theirs}"));
        }
    }
    if differing.is_empty() { Ok(()) } else { Err(DdpError::Differs { rank, differing }.into()) }
}

/// Copies the tensors of rank `src` to the other ranks, in flat pieces. A piece takes whole tensors until it has
/// `BROADCAST_PIECE` bytes or more.
#[track_caller]
pub(super) fn broadcast_coalesced(
    group: &ProcessGroup,
    tensors: &[Tensor],
    src: usize,
) -> Result<()> {
    let tensors: Vec<_> = tensors.iter().filter(|t| t.numel() > 0).map(Tensor::detach).collect();
    let sizes: Vec<_> = tensors.iter().map(TensorSize::of).collect();
    no_grad(|| {
        for piece in assign_buckets(&sizes, &[BROADCAST_PIECE], None) {
            let piece: Vec<_> = piece.into_iter().map(|index| &tensors[index]).collect();
            let flat = piece.iter().map(|tensor| tensor.reshape(-1));
            let flat = cat(&flat.collect::<Result<Vec<_>>>()?, 0)?;
            group.broadcast(&flat, src, ())?;
            if group.rank() == src {
                continue;
            }
            let mut start = 0;
            for tensor in piece {
                let part = flat.narrow(0, start, tensor.numel())?.view(tensor.size())?;
                tensor.copy_(&part, true)?;
                start += tensor.numel();
            }
        }
        Ok(())
    })
}
