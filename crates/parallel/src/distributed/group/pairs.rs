//! Point-to-point communication: send and receive.

use std::panic::Location;

use smallvec::smallvec;
use warpline::{IntoOptions, OrDefault, Tensor};
use warpline_kernels::collective::CollectiveOp;

use super::super::signature::Signature;
use super::super::{Result, Work};
use super::ProcessGroup;

/// A send or receive of a batch (`torch.distributed.P2POp`).
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations)] // `Debug` of a tensor reads elements that may still be in flight
pub enum P2p<'a> {
    /// Sends the tensor to the rank (`isend`).
    Send(&'a Tensor, usize),
    /// Receives the tensor from the rank (`irecv`).
    Recv(&'a Tensor, usize),
}

impl ProcessGroup {
    /// Sends a tensor to rank `dst` (`torch.distributed.send`; with `async_op`, `isend`).
    ///
    /// If two ranks both send before they receive, they wait for each other on the GPU until the timeout. Use
    /// [`ProcessGroup::batch_isend_irecv`], which does both at the same time.
    ///
    /// # Errors
    /// The same as [`ProcessGroup::all_reduce`]; [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument)
    /// if there is no rank `dst`, or `dst` is this rank.
    #[track_caller]
    pub fn send(
        &self,
        tensor: &Tensor,
        dst: usize,
        async_op: impl IntoOptions<OrDefault<bool>>,
    ) -> Result<Work> {
        let async_op = async_op.into_options().or(false);
        let location = Location::caller();
        let op = CollectiveOp::Send { input: tensor.as_view(), peer: dst };
        let signature = Signature::new("send").of(tensor).peer(dst, true);
        self.launch((signature, async_op), location, smallvec![tensor.clone()], &[op])
    }

    /// Receives a tensor from rank `src` (`torch.distributed.recv`; with `async_op`, `irecv`).
    ///
    /// # Errors
    /// The same as [`ProcessGroup::send`], with `src` instead of `dst`.
    #[track_caller]
    pub fn recv(
        &self,
        tensor: &Tensor,
        src: usize,
        async_op: impl IntoOptions<OrDefault<bool>>,
    ) -> Result<Work> {
        let async_op = async_op.into_options().or(false);
        let location = Location::caller();
        let op = CollectiveOp::Recv { output: tensor.as_view(), peer: src };
        let signature = Signature::new("recv").of(tensor).peer(src, false);
        self.launch((signature, async_op), location, smallvec![tensor.clone()], &[op])
    }

    /// Runs several sends and receives in one launch on the group's stream, without an order among them
    /// (`torch.distributed.batch_isend_irecv`). Not all ranks need to take part.
    ///
    /// # Errors
    /// The same as [`ProcessGroup::all_reduce`]; [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument)
    /// if `calls` is empty, a rank does not exist, or the batch does not have as many receives from this rank itself as
    /// sends to it; [`ErrorKind::OverlappingOperands`](warpline::ErrorKind::OverlappingOperands) if a received tensor
    /// shares memory with another tensor.
    #[track_caller]
    pub fn batch_isend_irecv(&self, calls: &[P2p<'_>]) -> Result<Work> {
        const NAME: &str = "batch_isend_irecv";
        let location = Location::caller();
        if calls.is_empty() {
            return Err(
                self.invalid(NAME, "the batch must have at least one send or receive".into())
            );
        }
        let op = |call: &P2p<'_>| match *call {
            P2p::Send(tensor, peer) => (tensor.clone(), peer, true),
            P2p::Recv(tensor, peer) => (tensor.clone(), peer, false),
        };
        let all: Vec<_> = calls.iter().map(op).collect();
        let ops = all.iter().map(|(tensor, peer, sends)| match sends {
            true => CollectiveOp::Send { input: tensor.as_view(), peer: *peer },
            false => CollectiveOp::Recv { output: tensor.as_view(), peer: *peer },
        });
        let ops: Vec<_> = ops.collect();
        // A batch may have several peers. `usize::MAX` keeps the batch out of the numbering of collectives.
        let mut signature = Signature::new(NAME).peer(usize::MAX, true);
        if self.shared().parts.debug {
            signature = signature.parts(all.iter().map(|(tensor, peer, sends)| {
                Signature::new(if *sends { "send" } else { "recv" }).of(tensor).peer(*peer, *sends)
            }));
        }
        let keep = all.iter().map(|(tensor, ..)| tensor.clone()).collect();
        self.launch((signature, true), location, keep, &ops)
    }
}
