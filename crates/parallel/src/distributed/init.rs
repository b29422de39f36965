//! Forms process groups.
//!
//! With NCCL, rank 0 publishes NCCL's unique id in the store. On the CPU, the store itself connects the ranks. The n-th attempt of a rank to form a group is its n-th round, in
//! which it meets the n-th attempts of the other ranks. A process whose group has failed can therefore form a new
//! group. The device of a rank is the given device, or its local rank, or a guess: the rank modulo the number of
//! devices.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use warpline::{IntoOptions, Runtime, cuda, runtime};
use warpline_cuda_sys_safe::Driver;
use warpline_cuda_sys_safe::nccl::UniqueId;
use warpline_cuda_sys_safe::owned::Communicator;

use super::environment::{self, DEFAULT_TIMEOUT, Environment};
use super::error::{RankList, UNKNOWN_RANKS};
use super::group::{GroupParts, Transport};
use super::store::{Deadline, look_up};
use super::{
    Backend, Error, GroupError, PrefixStore, ProcessGroup, Result, Store, StoreError, TcpStore,
    TcpStoreOptions,
};

/// Options of [`init_process_group`].
#[derive(Clone, Debug)]
pub struct InitOptions {
    /// Store in which the ranks meet, the same for all ranks. Required.
    pub store: Arc<dyn Store>,
    /// Number of this rank, from 0 to `world_size - 1`. Each rank has a different number. Required.
    pub rank: usize,
    /// Number of ranks in the group, at least 1. Required.
    pub world_size: usize,
    /// Time limit of each collective, and for all ranks to arrive in [`init_process_group`]. Default: 10 minutes. After
    /// the limit, the call takes up to one more second to ask the store which ranks are missing. The limit does not
    /// apply to [`Store`] calls without a timeout, so a program's own store must bound these calls itself.
    pub timeout: Duration,
    /// The carrier of the tensors. Default: [`Backend::Nccl`].
    pub backend: Backend,
    /// Index of this rank's GPU, for [`Backend::Nccl`]. Default: `None`, which means the rank modulo the number of visible GPUs, as in
    /// PyTorch. That index is right if each host has as many ranks as GPUs.
    pub device: Option<usize>,
    /// Debug mode (`WARPLINE_DISTRIBUTED_DEBUG=DETAIL`): compares the calls of the ranks through the store before each
    /// launch. For collectives, compares everything that must be equal; for sends and receives, dtype and number of
    /// elements, in their order between two ranks. Each call then costs several round trips to the store, and the host
    /// waits for the calls of the other ranks. Default: false.
    pub debug: bool,
    /// Name of the group in errors and in the store. Default: `default`.
    pub name: String,
    /// The rank whose process hosts the store, so that errors can name that rank if the store is lost. Default: `None`.
    pub store_host: Option<usize>,
}

warpline::__options! {
    /// Options of [`InitOptions::from_env`]. A timeout converts into options, and so does a backend.
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
    /// Creates options with the defaults. The ranks may be threads of one process, each with its own group.
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

    /// Reads the options from the environment variables that launchers set. `options` is `()`, a timeout, a
    /// backend, or [`EnvironmentOptions`].
    ///
    /// | variable | meaning |
    /// |---|---|
    /// | `RANK`, `WORLD_SIZE` | number of this rank, and number of ranks |
    /// | `LOCAL_WORLD_SIZE` | number of ranks on this machine. If these are all ranks and there is no secret, the store is at 127.0.0.1, and `MASTER_ADDR` is ignored |
    /// | `LOCAL_RANK` | index of the device. If only one device is visible, index 0 is used instead. If not set, see [`InitOptions::device`] |
    /// | `MASTER_ADDR`, `MASTER_PORT` | address and port at which rank 0 hosts the store |
    /// | `WARPLINE_MASTER_PORT` | port of the store; takes precedence over `MASTER_PORT` |
    /// | `WARPLINE_SECRET` | the job's [`Secret`](super::Secret), the same random text on every rank |
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
    /// A process creates its store once. Groups that are later created from the environment use the same store. Rank 0
    /// listens on `MASTER_ADDR` only, which must be an address or name of its host. A loopback address needs no
    /// `WARPLINE_SECRET`, but without a secret all users of the machine have access. Every other address needs a
    /// secret. `warpline-run` creates a secret for its ranks.
    ///
    /// # Errors
    /// [`ErrorKind::ProcessGroup`](warpline::ErrorKind::ProcessGroup) with one of these sources:
    /// [`GroupError::Environment`], which names each variable that is missing or invalid, including a local rank
    /// without a device; a [`StoreError`] if the store cannot be hosted or reached, [`StoreError::NeedsSecret`] if
    /// `MASTER_ADDR` is not a loopback address and there is no `WARPLINE_SECRET`. Errors of [`cuda::device_count`].
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
        let mut options = Self::new(store, found.rank, found.world_size);
        options.store_host = (!found.launcher_hosts).then_some(0);
        options.timeout = timeout;
        options.debug = found.debug;
        options.backend = backend;
        options.device = device;
        Ok(options)
    }
}

/// The store that this process has created from the environment, and the settings that it was created from.
static STORE: Mutex<Option<(Environment, Arc<TcpStore>)>> = Mutex::new(None);

fn store_from_env(found: &Environment, timeout: Duration) -> Result<Arc<TcpStore>> {
    let cached = || STORE.lock().unwrap_or_else(PoisonError::into_inner);
    let lookup = |cached: &Option<(Environment, Arc<TcpStore>)>| {
        let (from, store) = cached.as_ref()?;
        let same = (&from.host, from.port, from.rank) == (&found.host, found.port, found.rank);
        same.then(|| Arc::clone(store))
    };
    if let Some(store) = lookup(&cached()) {
        return Ok(store);
    }
    // Look up the name and connect without the lock, so that a thread with a shorter timeout does not wait for this
    // thread.
    let address = (found.host.clone(), found.port);
    let mut options = TcpStoreOptions::new().timeout(timeout);
    options.secret.clone_from(&found.secret);
    if found.rank == 0 && !found.launcher_hosts {
        let addresses = listen_addresses(address, Deadline::after(timeout));
        let addresses = addresses.map_err(|error| StoreError::Bind {
            address: format!("{}:{}", found.host, found.port),
            reason: error.to_string(),
        })?;
        let mut cached = cached();
        if let Some(store) = lookup(&cached) {
            return Ok(store);
        }
        let store = Arc::new(TcpStore::host(&*addresses, options)?);
        *cached = Some((found.clone(), Arc::clone(&store)));
        return Ok(store);
    }
    let store = Arc::new(TcpStore::connect(address, options)?);
    *cached() = Some((found.clone(), Arc::clone(&store)));
    Ok(store)
}

/// Returns the addresses at which rank 0 may listen. Loopback addresses come last, because some systems give a host's
/// own name a loopback address beside the address that other hosts know.
fn listen_addresses<A>(name: A, deadline: Deadline) -> io::Result<Vec<SocketAddr>>
where
    A: ToSocketAddrs + Send + Sync + 'static,
{
    let mut found = look_up(&Arc::new(name), deadline)?;
    found.sort_by_key(|address| address.ip().is_loopback());
    Ok(found)
}

/// Forms a process group (`torch.distributed.init_process_group`). All ranks call this function, and it returns after
/// all ranks have arrived. With [`Backend::Nccl`], each rank needs its own GPU.
///
/// A process may form several groups, one after the other or at the same time. Among groups of the same name and number
/// of ranks, the n-th group of a rank meets the n-th group of the other ranks. Attempts that a rank gave up are
/// skipped, so all ranks can try again after an error.
///
/// ```
/// use std::sync::Arc;
/// use warpline::{full, simulated, with_runtime};
/// use warpline_parallel::distributed::{HashStore, InitOptions, ReduceOp, init_process_group};
///
/// let (runtime, store) = (simulated(2)?, Arc::new(HashStore::new()));
/// std::thread::scope(|scope| {
///     for rank in 0..2 {
///         let (runtime, store) = (&runtime, store.clone());
///         scope.spawn(move || {
///             with_runtime(runtime, || {
///                 let mut options = InitOptions::new(store, rank, 2);
///                 options.device = Some(rank);
///                 let group = init_process_group(options)?;
///                 let x = full([4], rank as f64 + 1.0, rank)?;
///                 group.all_reduce(&x, ReduceOp::Sum, false)?;
///                 assert_eq!(x.to_vec::<f32>()?, [3.0; 4]);
///                 Ok::<_, warpline::Error>(())
///             })
///             .unwrap();
///         });
///     }
/// });
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `rank` is not below `world_size`;
/// [`ErrorKind::ProcessGroup`](warpline::ErrorKind::ProcessGroup) with the source [`GroupError::Init`] if not all ranks
/// arrive within the timeout (the error names the missing ranks) or NCCL cannot connect them, or with a [`StoreError`]
/// if the store fails; [`ErrorKind::CudaUnavailable`](warpline::ErrorKind::CudaUnavailable) without a GPU,
/// [`ErrorKind::NoSuchDevice`](warpline::ErrorKind::NoSuchDevice) if there is no such device,
/// [`ErrorKind::Driver`](warpline::ErrorKind::Driver) without NCCL.
#[track_caller]
pub fn init_process_group(options: InitOptions) -> Result<ProcessGroup> {
    let location = Location::caller();
    form_group(options).map_err(|error| error.at(location))
}

/// Implements [`init_process_group`], which adds the caller's location to the error.
fn form_group(options: InitOptions) -> Result<ProcessGroup> {
    let InitOptions { rank, world_size, timeout, .. } = options;
    let deadline = Deadline::after(timeout);
    let grace = Deadline::after(timeout.saturating_add(GRACE));
    if rank >= world_size {
        let reason = format!("there are {world_size} ranks, numbered from 0 on");
        return Err(Error::invalid("init_process_group", format!("on rank {rank}: {reason}")));
    }
    let runtime = runtime();
    let device = match (options.backend, options.device) {
        (Backend::Cpu, _) => None,
        (Backend::Nccl, Some(device)) => Some(device),
        (Backend::Nccl, None) => Some(guess_device(rank, runtime.devices()?.count())),
    };
    // Each rank counts its own rounds. Ranks with equal round numbers meet.
    let name = &options.name;
    let store = deadline.bound(|| {
        loop {
            let round = options.store.add(&format!("{name}/{world_size}/{rank}"), 1)?;
            let prefix = format!("{name}/{world_size}/round {round}");
            let store = PrefixStore::new(prefix, Arc::clone(&options.store));
            // A round that a rank has given up cannot complete: go on to the next round.
            if !store.check(&[GIVEN_UP])? {
                break Ok::<_, Error>(Arc::new(store));
            }
        }
    })?;
    let round_store = Arc::<PrefixStore>::clone(&store);
    let joined =
        deadline.bound(|| join_round(options, runtime, device, round_store, [deadline, grace]));
    if joined.as_ref().is_err_and(|error| error.find::<StoreError>().is_none()) {
        // Ignore this error, which must not replace the returned error.
        let _ = grace.bound(|| store.set(GIVEN_UP, b""));
    }
    joined
}

/// Time after the timeout to ask the store for the missing ranks and to mark the round as given up.
const GRACE: Duration = Duration::from_secs(1);

/// Returns the default device of a rank whose options name none.
fn guess_device(rank: usize, devices: usize) -> usize {
    let device = rank.checked_rem(devices).unwrap_or(0);
    if devices > 1 {
        // PyTorch also warns here.
        tracing::warn!(
            "init_process_group: rank {rank} uses cuda:{device}, guessed from its rank; if a host has more or fewer ranks than devices, set LOCAL_RANK or InitOptions::device"
        );
    }
    device
}

/// Key that a rank sets when it gives up a round.
const GIVEN_UP: &str = "given up";

/// Waits for the other ranks of this round and forms the group.
fn join_round(
    options: InitOptions,
    runtime: Runtime,
    device: Option<usize>,
    store: Arc<dyn Store>,
    [deadline, grace]: [Deadline; 2],
) -> Result<ProcessGroup> {
    let InitOptions { rank, world_size, timeout, .. } = options;
    // Check the device before the other ranks see this rank.
    let driver = device.map(|device| runtime.device(device).map(|device| device.driver()));
    let driver = driver.transpose()?;
    store.set(&format!("came/{rank}"), b"")?;
    let failed = |mut reason: String| {
        let mut missing = Vec::new();
        for other in 0..world_size {
            match grace.bound(|| store.check(&[&format!("came/{other}")])) {
                Ok(true) => {}
                Ok(false) => missing.push(other),
                Err(error) => {
                    // The store is lost: do not wait for its timeout once per rank.
                    let others: Vec<_> = (other..world_size).collect();
                    reason = format!("{reason}; {error}{}", RankList(&others, UNKNOWN_RANKS));
                    break;
                }
            }
        }
        Error::from(GroupError::Init { rank, world_size, reason, missing })
    };
    let transport = match (device, driver) {
        (Some(device), Some(driver)) => {
            let limits = (world_size, rank, deadline);
            connect_nccl(&runtime, (device, driver), &*store, limits, &failed)?
        }
        _ => {
            for other in 0..world_size {
                match store.wait(&[&format!("came/{other}")], deadline.left()) {
                    Err(error @ StoreError::Timeout { .. }) => {
                        return Err(failed(error.to_string()));
                    }
                    waited => waited?,
                }
            }
            Transport::cpu(rank, world_size)
        }
    };
    ProcessGroup::new(GroupParts {
        name: options.name,
        members: (0..world_size).collect(),
        runtime,
        transport,
        store,
        store_host: options.store_host,
        timeout,
        debug: options.debug,
    })
}

/// Forms the communicator of a rank. Rank 0 publishes NCCL's unique id.
fn connect_nccl(
    runtime: &Runtime,
    (device, driver): (usize, &Arc<dyn Driver>),
    store: &dyn Store,
    (world_size, rank, deadline): (usize, usize, Deadline),
    failed: &dyn Fn(String) -> Error,
) -> Result<Transport> {
    let nccl = |e| Error::driver("init_process_group", e);
    let id = if rank == 0 {
        let id = driver.nccl().and_then(|nccl| nccl.unique_id());
        // Without an id, publish the error, so that the other ranks do not wait for the id.
        let message =
            id.as_ref().map_or_else(|e| e.to_string().into(), |id| id.as_bytes().to_vec());
        store.set("id", &message)?;
        id.map_err(nccl)?
    } else {
        driver.nccl().map_err(nccl)?;
        let message = match store.get("id", deadline.left()) {
            Err(error @ StoreError::Timeout { .. }) => return Err(failed(error.to_string())),
            message => message?,
        };
        let bytes = message.as_slice().try_into();
        let text = || format!("rank 0 has no id: {}", String::from_utf8_lossy(&message));
        UniqueId::from_bytes(bytes.map_err(|_| failed(text()))?)
    };
    let comm = Communicator::new(driver, device, &id, world_size, rank, deadline.left());
    Transport::nccl(runtime, comm.map_err(|error| failed(error.to_string()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_0_listens_on_the_given_address() {
        let found = |host| listen_addresses((host, 7), Deadline::after(DEFAULT_TIMEOUT));
        let addresses = |host| found(host).unwrap();
        assert_eq!(addresses("10.1.2.3"), [SocketAddr::from(([10, 1, 2, 3], 7))]);
        assert!(addresses("localhost").iter().all(|address| address.ip().is_loopback()));
        found("no.such.host.invalid").unwrap_err();
    }

    #[test]
    fn a_slow_name_look_up_does_not_block_rank_0() {
        struct Slow;
        impl ToSocketAddrs for Slow {
            type Iter = std::vec::IntoIter<SocketAddr>;
            fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
                std::thread::sleep(DEFAULT_TIMEOUT);
                Ok(Vec::new().into_iter())
            }
        }
        let error = listen_addresses(Slow, Deadline::after(Duration::from_millis(50))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    }

    #[test]
    fn ranks_are_spread_over_the_devices() {
        // Six ranks on two hosts with three devices each.
        let all: Vec<_> = (0..6).map(|rank| guess_device(rank, 3)).collect();
        assert_eq!(all, [0, 1, 2, 0, 1, 2]);
        assert_eq!(guess_device(5, 1), 0);
    }
}
