//! Tensors shared between processes (`torch.multiprocessing`).
//!
//! [`Tensor::share_memory`](crate::Tensor::share_memory) copies a tensor once to memory that other processes
//! can map. A [`Channel`] over a Unix socket sends such tensors, and views of them, without copies.
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
//!     here.recv_event(&tensor)?; // later work waits for the peer's work
//!     assert_eq!(tensor.to_vec::<i64>()?, [7; 4]);
//!     Ok(())
//! })?;
//! peer.join().unwrap()?;
//! # Ok::<(), warpline::Error>(())
//! ```
//!
//! # Guarantees
//! - **Lifetime.** The memory lives as long as any process holds it, or a message that carries it is in transit. The
//!   process that made the memory may end, or be killed at any moment. The other processes keep the memory with
//!   the values last written, and nothing leaks. Calls that need a process that has ended return
//!   [`ErrorKind::PeerGone`](crate::ErrorKind::PeerGone).
//! - **Order.** Work on a tensor that the sender has enqueued before [`Channel::send`] runs before all work of
//!   the receiver on it. So the receiver reads the values that this work wrote, never earlier values. Streams
//!   wait for each other on the GPU; the hosts do not wait. A process that already has the received
//!   memory gets the same storage. After the receipt, each process orders only its own work. With
//!   [`Channel::send_event`] and [`Channel::recv_event`], a process signals that it has finished with a tensor
//!   for now. Work of two processes on the same bytes that is not ordered gives wrong data, as between unordered
//!   streams. Such races are not reported.
//! - **Kills.** Work that a process had enqueued when it was killed may never complete. Streams that wait for
//!   the work continue. From then on, each host read of such a tensor, or of a tensor computed from it, fails
//!   with [`ErrorKind::PeerGone`](crate::ErrorKind::PeerGone), because its contents are unknown and kernels of
//!   the killed process may still write to it. A process that ends by itself drops its channels first, and the
//!   drop of a channel waits for the work that the channel has signalled.
//! - **Waits of the host.** The sender's host waits if the tensor is in host memory, if the sender's policy is
//!   [`SyncPolicy::Manual`](crate::SyncPolicy), if the driver's streams cannot signal through memory, and if the tensor
//!   depends on an index check or a collective that is not complete, or on the work of a third process. The receiver's
//!   host waits for the sender's unfinished work if the receiver's policy is `Manual`, if its launches are blocking, if
//!   its stream is captured, and if its streams cannot wait for a value in memory.
//! - **Visibility.** The receiver sees exactly the storage of the sent tensor. The storage shares its pages
//!   with no other memory, and was zeroed when it was made. A view is sent with its whole storage, as in
//!   PyTorch.
//! - **Trust.** Received messages are checked, and an invalid message is an error. The other process may write to the
//!   shared memory at any time. This can yield wrong data, like any race on a GPU, but breaks no safe code.
//! - **Stalls.** [`Channel::set_timeout`] limits each call from its beginning to its end, host reads of
//!   received tensors, and the drop of the channel. Only streams that use a tensor wait for its sender's work;
//!   [`Channel::recv`] lists the consequences.
//! - **Gradients.** As in PyTorch, a leaf that requires a gradient is received as a leaf that requires a gradient. Each
//!   process computes its own gradients. A tensor that was computed from a leaf has to be detached before it is sent.
//!
//! # Host memory
//! The memory of a CPU tensor is page-locked in each process that has GPUs, so that copies between the memory
//! and the GPUs are asynchronous. Other processes may write to the memory at any time, so host code gets only
//! copies: [`Tensor::copy`](crate::Tensor::copy), [`Tensor::copy_`](crate::Tensor::copy_) to a contiguous
//! tensor, [`Tensor::to_vec`](crate::Tensor::to_vec), printing. Ops on the host fail with
//! [`ErrorKind::SharedHostMemory`](crate::ErrorKind::SharedHostMemory). In PyTorch, such ops race.
//!
//! # Limits
//! The following cannot be shared; [`ErrorKind::CannotShare`](crate::ErrorKind::CannotShare) gives the reason:
//!
//! - modules on the host, because ops on shared host memory are refused;
//! - memory of the caching allocator (share the result of `share_memory`);
//! - memory received from another process (send a copy);
//! - memory of GPUs that the receiver does not see;
//! - memory of drivers without virtual memory, and on systems other than Linux.
//!
//! Shared memory of a GPU is allocated in pages of 2 MiB, without the caching allocator, and is not counted by
//! [`cuda::memory_allocated`](crate::cuda::memory_allocated). Memory that was dropped while work used it is
//! released by later calls of `share_memory` and `recv`, a part of it by each call, or all at once by
//! [`cuda::ipc_collect`](crate::cuda::ipc_collect).

mod channel;
mod message;
mod semaphores;
mod socket;

pub use channel::Channel;
