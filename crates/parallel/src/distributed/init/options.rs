//! Options of `init_process_group`, and their values from the environment.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use warpline::{IntoOptions, cuda};

use super::super::environment::{self, DEFAULT_TIMEOUT};
use super::super::{Backend, Result, Store};
use super::env_store::store_from_env;

/// Options of [`init_process_group`](super::init_process_group). [`InitOptions::new`] takes the required options; each
/// other option has a setter.
#[derive(Clone, Debug)]
pub struct InitOptions {
    #[doc(hidden)]
    pub store: Arc<dyn Store>,
    #[doc(hidden)]
    pub rank: usize,
    #[doc(hidden)]
    pub world_size: usize,
    #[doc(hidden)]
    pub timeout: Duration,
    #[doc(hidden)]
    pub backend: Backend,
    #[doc(hidden)]
    pub device: Option<usize>,
    #[doc(hidden)]
    pub debug: bool,
    #[doc(hidden)]
    pub name: String,
    #[doc(hidden)]
    pub store_host: Option<usize>,
}

warpline::__options! {
    /// Options of [`InitOptions::from_env`]. A [`Duration`] converts into options with that `timeout`, and a
    /// [`Backend`] into options with that `backend`.
    #[derive(Clone, Copy, Debug)]
    EnvironmentOptions [] [] {
        /// Sets [`InitOptions::timeout`], which also limits the time to reach the store. Default: 10 minutes.
        timeout: Duration = DEFAULT_TIMEOUT, Duration;
        /// Sets [`InitOptions::backend`]. [`Backend::Cpu`] needs no device, so the local rank is not compared with the
        /// number of devices. Default: [`Backend::Nccl`].
        backend: Backend = Backend::Nccl, Backend;
    }
}

impl From<Backend> for EnvironmentOptions {
    fn from(backend: Backend) -> Self {
        Self::new().backend(backend)
    }
}

impl From<Duration> for EnvironmentOptions {
    fn from(timeout: Duration) -> Self {
        Self::new().timeout(timeout)
    }
}

impl InitOptions {
    /// Creates options with the defaults. All ranks meet in `store`. `rank` is the number of this rank, from 0 to
    /// `world_size - 1`, and differs from rank to rank; `world_size` is the number of ranks, at least 1. The ranks may
    /// be threads of one process, each with its own group.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, rank: usize, world_size: usize) -> Self {
        Self {
            store,
            rank,
            world_size,
            timeout: DEFAULT_TIMEOUT,
            backend: Backend::Nccl,
            device: None,
            debug: false,
            name: "default".into(),
            store_host: None,
        }
    }

    /// Sets the time limit of each collective, and the time within which all ranks must arrive in
    /// [`init_process_group`](super::init_process_group). Default: 10 minutes. After the limit, the call takes up to
    /// one more second to ask the store which ranks are missing. The limit does not apply to calls of a program's own
    /// [`Store`] that take no timeout, so such a store must bound these calls itself.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the transport of the tensors. Default: [`Backend::Nccl`].
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Sets the index of this rank's GPU, for [`Backend::Nccl`]. Default: the rank modulo the number of visible GPUs,
    /// as in PyTorch. The default is right if each host has as many ranks as GPUs.
    #[must_use]
    pub fn device(mut self, device: impl Into<Option<usize>>) -> Self {
        self.device = device.into();
        self
    }

    /// Sets the debug mode (`WARPLINE_DISTRIBUTED_DEBUG=DETAIL`), which compares the calls of the ranks through the
    /// store before each launch. For collectives, compares everything that must be equal. For the n-th send between two
    /// ranks and the n-th receive, compares dtype and number of elements. Each call then costs several round trips to
    /// the store, and the host waits for the calls of the other ranks. Default: `false`.
    #[must_use]
    pub fn debug(mut self, debug: bool) -> Self {
        self.debug = debug;
        self
    }

    /// Sets the name of the group in errors and in the store. Default: `default`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the rank whose process hosts the store. Errors can then name that rank if the store is lost, and a CPU
    /// group that is dropped on that rank waits for the other ranks, as the store may end with the process. Default:
    /// none.
    #[must_use]
    pub fn store_host(mut self, rank: impl Into<Option<usize>>) -> Self {
        self.store_host = rank.into();
        self
    }

    /// Reads the options from the environment variables that launchers set. `options` is `()`, a timeout, a
    /// backend, or [`EnvironmentOptions`].
    ///
    /// | variable | meaning |
    /// |---|---|
    /// | `RANK`, `WORLD_SIZE` | number of this rank, and number of ranks |
    /// | `LOCAL_WORLD_SIZE` | number of ranks on this machine. If these are all ranks and there is no secret, the store is at 127.0.0.1, and the value of `MASTER_ADDR` is ignored |
    /// | `LOCAL_RANK` | index of the device. If only one device is visible, index 0 is used instead. If not set, see [`InitOptions::device`] |
    /// | `MASTER_ADDR`, `MASTER_PORT` | address and port at which rank 0 hosts the store |
    /// | `WARPLINE_MASTER_PORT` | port of the store; takes precedence over `MASTER_PORT` |
    /// | `WARPLINE_SECRET` | the job's [`Secret`](crate::distributed::Secret), the same random text on every rank |
    /// | `WARPLINE_DISTRIBUTED_DEBUG` | `DETAIL` enables [`InitOptions::debug`]; `OFF` and `INFO` do not |
    ///
    /// If `RANK` is not set, the variables of another launcher are used: `OMPI_COMM_WORLD_RANK`, `_SIZE` and
    /// `_LOCAL_RANK` of Open MPI, or `PMI_RANK`, `PMI_SIZE` and `MPI_LOCALRANKID` of MPICH and Intel MPI, or
    /// `SLURM_PROCID`, `SLURM_NTASKS` and `SLURM_LOCALID` of Slurm, in this order. These launchers set neither
    /// `MASTER_ADDR` nor `MASTER_PORT`; the job's script must set both.
    ///
    /// `torchrun` itself listens on `MASTER_PORT`, with PyTorch's protocol (`TORCHELASTIC_USE_AGENT_STORE=True`). The
    /// store is then at `WARPLINE_MASTER_PORT`, or at `MASTER_PORT + 1` (65534 if `MASTER_PORT` is 65535), which must
    /// be free on the host of rank 0.
    ///
    /// A process creates its store once. Groups that are later created from the environment use the same store, unless
    /// its address or the rank has changed. Rank 0 listens on `MASTER_ADDR` only, which must be an address or name of
    /// its host. A loopback address needs no `WARPLINE_SECRET`, but without a secret all users of the machine have
    /// access. Every other address needs a secret. `warpline-run` creates a secret for its ranks.
    ///
    /// # Errors
    /// [`ErrorKind::ProcessGroup`](warpline::ErrorKind::ProcessGroup) with one of these sources:
    /// [`GroupError::Environment`](crate::distributed::GroupError::Environment), which names each variable that is
    /// missing or invalid, including a local rank without a device; a [`StoreError`](crate::distributed::StoreError) if
    /// the store cannot be hosted or reached,
    /// [`StoreError::NeedsSecret`](crate::distributed::StoreError::NeedsSecret) if `MASTER_ADDR` is not a loopback
    /// address and there is no `WARPLINE_SECRET`. Errors of [`cuda::device_count`].
    #[track_caller]
    pub fn from_env(options: impl IntoOptions<EnvironmentOptions>) -> Result<Self> {
        let location = Location::caller();
        let EnvironmentOptions { timeout, backend } = options.into_options();
        Self::read(backend, timeout).map_err(|error| error.at(location))
    }

    fn read(backend: Backend, timeout: Duration) -> Result<Self> {
        let found = environment::read(&|name| std::env::var(name))?;
        // Check the device before reaching the store, so that no other rank waits for a rank without a device.
        let device = match backend {
            Backend::Nccl => found.device(cuda::device_count()?)?,
            Backend::Cpu => None,
        };
        let store = store_from_env(&found, timeout)?;
        Ok(Self::new(store, found.rank, found.world_size)
            .store_host((!found.launcher_hosts).then_some(0))
            .timeout(timeout)
            .debug(found.debug)
            .backend(backend)
            .device(device))
    }
}
