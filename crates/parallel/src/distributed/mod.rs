//! Process groups: ranks that are threads or processes, and what they do together
//! (`torch.distributed`).

mod store;

pub use store::{
    FileStore, HashStore, MAX_KEY, MAX_KEYS, MAX_VALUE, PrefixStore, Store, StoreError,
    StoreResult, TcpStore,
};
