//! Arguments that the training examples share.

use clap::ValueEnum;
use warpline_parallel::distributed::Backend;

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum BackendName {
    Cpu,
    Nccl,
}

impl From<BackendName> for Backend {
    fn from(name: BackendName) -> Self {
        match name {
            BackendName::Cpu => Self::Cpu,
            BackendName::Nccl => Self::Nccl,
        }
    }
}
