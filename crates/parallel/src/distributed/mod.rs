//! Process groups of ranks that are threads or processes (`torch.distributed`).
//!
//! # On a network
//!
//! Ranks meet in a [`Store`]. A [`TcpStore`] on the network asks every client for the job's
//! [`Secret`] (`WARPLINE_SECRET`), because whoever can write to the store decides where NCCL
//! connects to. NCCL's own connections, which carry the tensors, are neither authenticated nor
//! encrypted: on the network where a job runs, NCCL's ports have to be out of the reach of others.
//! `NCCL_SOCKET_IFNAME` chooses the network interface. The store's messages after the proof of the
//! secret are not encrypted either.

use warpline::{Error, Result};

mod check;
mod environment;
mod error;
mod group;
mod init;
pub mod launch;
mod record;
mod signature;
mod store;
mod watchdog;
mod work;

pub use error::{Failure, GroupError, RankCall};
pub use group::{P2p, ProcessGroup};
pub use init::{InitOptions, init_process_group};
pub use store::{
    FileStore, HashStore, MAX_KEY, MAX_KEYS, MAX_STORED, MAX_VALUE, PrefixStore, Secret, Store,
    StoreError, StoreResult, TcpStore,
};
pub use warpline_cuda_sys_safe::nccl::ReduceOp;
pub use work::Work;
