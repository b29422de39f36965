//! Tensors that several processes have (`torch.multiprocessing`).
//!
//! [`Tensor::share_memory`](crate::Tensor::share_memory) copies a tensor once into memory that other processes can map; a
//! [`Channel`] over a Unix socket carries such tensors, views among them, without copying them.
//!
//! ```
//! use warpline::multiprocessing::Channel;
//! use warpline::{arange, simulated, with_runtime};
//!
//! // Two processes; here two runtimes, as only threads fit into an example.
//! let (here, there) = Channel::pair()?;
//! let peer = std::thread::spawn(move || -> warpline::Result<()> {
//!     with_runtime(&simulated(1)?, || {
//!         let tensor = there.recv()?;
//!         tensor.fill_(7.0)?;
//!         there.send_event(&tensor)
//!     })
//! });
//! with_runtime(&simulated(1)?, || -> warpline::Result<()> {
//!     let tensor = arange(4, "cuda:0")?.share_memory()?;
//!     here.send(&tensor)?;
//!     here.recv_event(&tensor)?; // the peer's work on it comes before what follows
//!     assert_eq!(tensor.to_vec::<i64>()?, [7; 4]);
//!     Ok(())
//! })?;
//! peer.join().unwrap()?;
//! # Ok::<(), warpline::Error>(())
//! ```
//!
//! # What is promised
//! - **Lifetime.** The memory lives until no process has it, and a message on its way counts. Who made
//!   it may end, or be killed at any moment: the others keep the memory with what was last written,
//!   nothing leaks, and what needs the one that is gone is [`ErrorKind::PeerGone`](crate::ErrorKind::PeerGone).
//! - **Order.** [`Channel::send`] comes after all work that the sender has enqueued on the tensor, and
//!   all that the receiver does with it comes after that, so that it finds what that wrote, and never
//!   what was there before. Streams wait for each other on the GPU, the hosts for nothing. What a
//!   process has already, it gets as the same storage once more. After that each process orders its own
//!   work only: one tells the other with [`Channel::send_event`] and [`Channel::recv_event`] that it is
//!   done with a tensor for now. Work of two processes on the same bytes that nothing orders gives
//!   wrong data, as between unordered streams, and is reported by nobody.
//! - **Kills.** Work that a process had enqueued when it was killed may never be done. Whoever waits for
//!   it goes on, and each read on the host of such a tensor, or of what was computed from it, is
//!   [`ErrorKind::PeerGone`](crate::ErrorKind::PeerGone), for good: what it holds is not known, and its last
//!   user's kernels may still write to it. A process that ends by itself drops its channels first,
//!   which waits for what they have sent.
//! - **Where the host waits.** The sender's, for host memory, under
//!   [`SyncPolicy::Manual`](crate::SyncPolicy), and where it is open whether a tensor's values are
//!   good: they depend on indices that are being checked, or on a third process. The receiver's, where
//!   its stream is captured.
//! - **What is visible.** Exactly the storage of what was sent: its memory has no neighbours, and was
//!   zeroed when it was made. A view is sent with its whole storage, as in PyTorch.
//! - **Trust.** What arrives is checked: a peer that sends nonsense causes an error. It may write to the
//!   shared memory at any time, which is as safe as any race on a GPU.
//! - **Stalls.** [`Channel::set_timeout`] bounds each call from its beginning to its end, host reads of
//!   received tensors, and the channel's drop. Only streams that use a tensor wait for its sender's
//!   work; [`Channel::recv`] says what that stops.
//! - **Gradients.** A leaf that requires a gradient is received as a leaf that requires one, as with
//!   PyTorch. Each process computes its own gradients. A tensor that was computed from a leaf has to be
//!   detached first.
//!
//! # Host memory
//! That of a CPU tensor is page-locked in each process that has GPUs, so that copies from and to them
//! need not be waited for. The others may write to it at any time, so host code gets copies only:
//! [`Tensor::copy`](crate::Tensor::copy), [`Tensor::copy_`](crate::Tensor::copy_) into a contiguous
//! one, [`Tensor::to_vec`](crate::Tensor::to_vec), printing. Ops on the host itself are
//! [`ErrorKind::SharedHostMemory`](crate::ErrorKind::SharedHostMemory), where PyTorch lets them race.
//!
//! # What cannot be shared
//! [`ErrorKind::CannotShare`](crate::ErrorKind::CannotShare) says why: modules on the host; memory of the caching
//! allocator (share what `share_memory` returns); what came from another process (send a copy); GPUs
//! that the receiver does not see; drivers without virtual memory; systems other than Linux.
//!
//! Shared memory of a GPU is in whole pages of 2 MiB, does not come from the caching allocator, and is not
//! counted by [`cuda::memory_allocated`](crate::cuda::memory_allocated). What was dropped while work
//! used it is given back by the next call here, or by
//! [`cuda::ipc_collect`](crate::cuda::ipc_collect).

mod channel;
mod message;
mod order;
mod socket;

pub use channel::Channel;
