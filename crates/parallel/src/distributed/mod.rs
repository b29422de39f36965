//! Process groups (`torch.distributed`), and training with them ([`DistributedDataParallel`]). Ranks are threads or
//! processes.
//!
//! # Security on a network
//!
//! Ranks meet in a [`Store`]. A [`TcpStore`] on a network requires the job's [`Secret`] (`WARPLINE_SECRET`) from every
//! client, because a client that can write to the store determines which addresses NCCL connects to. The store's
//! messages are not encrypted. A group on the CPU sends its tensors in these messages. A group on GPUs sends its
//! tensors over NCCL's connections, which are neither authenticated nor encrypted: block access to NCCL's ports from
//! outside the job. `NCCL_SOCKET_IFNAME` selects NCCL's network interface.

use warpline::{Error, Result};

mod check;
pub mod ddp;
mod environment;
mod error;
mod flight_recorder;
mod group;
mod init;
pub mod launch;
mod signature;
mod spawn;
mod store;
mod watchdog;
mod work;

pub use ddp::{DdpError, DdpOptions, DistributedDataParallel, JoinOptions};
#[doc(hidden)]
pub use environment::check_variables as __check_variables;
pub use error::{Failure, GroupError, RankCall};
pub use group::{AllToAllOptions, Backend, P2p, ProcessGroup, ReduceOptions};
pub use init::{EnvironmentOptions, InitOptions, init_process_group};
pub use spawn::spawn;
pub use store::{
    FileStore, HashStore, MAX_KEY, MAX_KEYS, MAX_STORED, MAX_VALUE, PrefixStore, Secret, Store,
    StoreError, StoreResult, TcpStore, TcpStoreOptions,
};
pub use warpline_cuda_sys_safe::nccl::ReduceOp;
pub use work::Work;
