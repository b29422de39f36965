//! Process groups: ranks that are threads or processes, and what they do together
//! (`torch.distributed`).

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

pub use error::{Error, Failure, RankCall, Result};
pub use group::{P2p, ProcessGroup};
pub use init::{InitOptions, init_process_group};
pub use store::{
    FileStore, HashStore, MAX_KEY, MAX_KEYS, MAX_VALUE, PrefixStore, Store, StoreError,
    StoreResult, TcpStore,
};
pub use warpline_cuda_sys_safe::nccl::ReduceOp;
pub use work::Work;
