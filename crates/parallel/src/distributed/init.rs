//! How ranks come together in a group.
//!
//! Rank 0 puts NCCL's id into the store. The n-th group that a rank makes meets the n-th of the
//! other ranks, so a process whose group has failed makes the next one. A rank's device is the
//! given one, or its local rank, or a guess: its rank modulo the number of devices.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use warpline::{Runtime, cuda, runtime};
use warpline_cuda_sys_safe::nccl::UniqueId;
use warpline_cuda_sys_safe::owned::Communicator;

use super::environment::{self, DEFAULT_TIMEOUT, Environment};
use super::error::{Ranks, UNKNOWN};
use super::group::Parts;
use super::store::{Deadline, look_up};
use super::{Error, GroupError, PrefixStore, ProcessGroup, Result, Store, StoreError, TcpStore};

/// What [`init_process_group`] is given.
#[derive(Clone, Debug)]
pub struct InitOptions {
    /// Where the ranks meet.
    pub store: Arc<dyn Store>,
    /// This rank's number, from 0 on.
    pub rank: usize,
    /// How many ranks there are.
    pub world_size: usize,
    /// Time for a collective, and for all ranks to come together. After a timeout the store is asked
    /// for at most another second which ranks are missing. Stores of a program's own have to bound
    /// their calls without a timeout themselves.
    pub timeout: Duration,
    /// The index of this rank's device. `None` is the rank modulo the number of devices, as PyTorch
    /// guesses: right where each host has as many ranks as devices.
    pub device: Option<usize>,
    /// Whether the ranks' calls are compared through the store before they are launched, as with
    /// `WARPLINE_DISTRIBUTED_DEBUG=DETAIL`: of collectives all that has to be the same, of sends and
    /// receives dtype and number of elements, in their order between two ranks. That costs several
    /// round trips for each, and the call waits for the other ranks' on the host.
    pub debug: bool,
    /// The group's name in errors and in the store.
    pub name: String,
    /// Which rank hosts the store, if it goes with that rank: errors name it then.
    pub store_host: Option<usize>,
}

impl InitOptions {
    /// From code: the ranks may be threads, each with a group of its own. The timeout is 10 minutes,
    /// the device [`None`](InitOptions::device).
    #[must_use]
    pub fn new(store: Arc<dyn Store>, rank: usize, world_size: usize) -> Self {
        Self {
            store,
            rank,
            world_size,
            timeout: DEFAULT_TIMEOUT,
            device: None,
            debug: false,
            name: "default".into(),
            store_host: None,
        }
    }

    /// From the environment, as launchers set it.
    ///
    /// | variable | meaning |
    /// |---|---|
    /// | `RANK`, `WORLD_SIZE` | this rank, and how many there are |
    /// | `LOCAL_WORLD_SIZE` | how many ranks this machine has. If all, and without a secret, the store is at 127.0.0.1, whatever `MASTER_ADDR` says |
    /// | `LOCAL_RANK` | the index of its device. Where only one device is visible, that one. Without it, as [`InitOptions::device`] says |
    /// | `MASTER_ADDR`, `MASTER_PORT` | where rank 0 hosts the store |
    /// | `WARPLINE_MASTER_PORT` | the same, before `MASTER_PORT` |
    /// | `WARPLINE_SECRET` | the job's [`Secret`](super::Secret), the same random text on every rank |
    /// | `WARPLINE_DISTRIBUTED_DEBUG` | `DETAIL`: [`InitOptions::debug`] |
    ///
    /// Where `RANK` is not set, Open MPI's `OMPI_COMM_WORLD_RANK`, `_SIZE` and `_LOCAL_RANK` are taken, or
    /// else `PMI_RANK`, `PMI_SIZE` and `MPI_LOCALRANKID` of MPICH and Intel MPI, or else Slurm's
    /// `SLURM_PROCID`, `SLURM_NTASKS` and `SLURM_LOCALID`. None of these sets `MASTER_ADDR` and
    /// `MASTER_PORT`: the job's script has to.
    ///
    /// `torchrun` listens on `MASTER_PORT` itself (`TORCHELASTIC_USE_AGENT_STORE=True`), with a
    /// protocol of PyTorch's own. Then the store is at the next port, `MASTER_PORT + 1` (below it
    /// after 65535), which has to be free on rank 0's host, or at `WARPLINE_MASTER_PORT`.
    ///
    /// A process makes its store once: groups that are made later from the environment meet there
    /// too. Rank 0 listens on `MASTER_ADDR` alone, which has to be an address of its host, or a name
    /// of one. A loopback address needs no `WARPLINE_SECRET`, but is open to all users of the machine
    /// without one; every other address needs it. `warpline-run` makes a secret for its ranks.
    ///
    /// # Errors
    /// [`GroupError::Environment`], which names each variable that is missing or wrong, a local rank for
    /// which there is no device included; a [`StoreError`] as the source if the store cannot be hosted or reached,
    /// with [`StoreError::NeedsSecret`] if `MASTER_ADDR` is not a loopback address and there is no
    /// `WARPLINE_SECRET`.
    pub fn from_env() -> Result<Self> {
        Self::from_env_with(DEFAULT_TIMEOUT)
    }

    /// [`InitOptions::from_env`] with another timeout, which holds for reaching the store too.
    ///
    /// # Errors
    /// As [`InitOptions::from_env`].
    pub fn from_env_with(timeout: Duration) -> Result<Self> {
        let found = environment::read(&|name| std::env::var(name))?;
        // Before the store is reached: nobody waits for a rank that cannot be one.
        let device = found.device(cuda::device_count()?)?;
        let store = store_of(&found, timeout)?;
        let mut options = Self::new(store, found.rank, found.world_size);
        options.store_host = (!found.launcher_hosts).then_some(0);
        options.timeout = timeout;
        options.debug = found.debug;
        options.device = device;
        Ok(options)
    }
}

/// The store that this process has made from the environment, with what it was made from.
static STORE: Mutex<Option<(Environment, Arc<TcpStore>)>> = Mutex::new(None);

fn store_of(found: &Environment, timeout: Duration) -> Result<Arc<TcpStore>> {
    let kept = || STORE.lock().unwrap_or_else(PoisonError::into_inner);
    let made = |kept: &Option<(Environment, Arc<TcpStore>)>| {
        let (from, store) = kept.as_ref()?;
        let same = (&from.host, from.port, from.rank) == (&found.host, found.port, found.rank);
        same.then(|| Arc::clone(store))
    };
    if let Some(store) = made(&kept()) {
        return Ok(store);
    }
    // Names are looked up and connections are made without the lock: another thread with a shorter
    // timeout does not wait for this one.
    let (address, secret) = ((found.host.clone(), found.port), found.secret.as_ref());
    if found.rank == 0 && !found.launcher_hosts {
        let addresses = listening(address, Deadline::after(timeout));
        let addresses = addresses.map_err(|error| StoreError::Bind {
            address: format!("{}:{}", found.host, found.port),
            reason: error.to_string(),
        })?;
        let mut kept = kept();
        if let Some(store) = made(&kept) {
            return Ok(store);
        }
        let store = Arc::new(TcpStore::host_with(&*addresses, secret)?);
        *kept = Some((found.clone(), Arc::clone(&store)));
        return Ok(store);
    }
    let store = Arc::new(TcpStore::connect_with(address, secret, timeout)?);
    *kept() = Some((found.clone(), Arc::clone(&store)));
    Ok(store)
}

/// Addresses at which rank 0 may listen. Loopback addresses come last, because some systems give a
/// host's own name one of them beside the address that other hosts know.
fn listening<A>(name: A, deadline: Deadline) -> io::Result<Vec<SocketAddr>>
where
    A: ToSocketAddrs + Send + Sync + 'static,
{
    let mut found = look_up(&Arc::new(name), deadline)?;
    found.sort_by_key(|address| address.ip().is_loopback());
    Ok(found)
}

/// Brings the ranks together in a process group (`torch.distributed.init_process_group`). All call
/// it, and it returns once all have. Each rank has a device of its own.
///
/// A process may make several groups, one after the other or at once: the n-th that a rank makes
/// with some name and number of ranks meets the n-th of the others, those left out where a rank gave
/// up: after an error all may try again.
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
/// [`GroupError::Init`] where not all ranks come within the timeout, naming those; [`Error::Store`];
/// an error of the tensors without a GPU or without NCCL.
pub fn init_process_group(options: InitOptions) -> Result<ProcessGroup> {
    let InitOptions { rank, world_size, timeout, .. } = options;
    let deadline = Deadline::after(timeout);
    let grace = Deadline::after(timeout.saturating_add(GRACE));
    if rank >= world_size {
        let reason = format!("there are {world_size} ranks, numbered from 0 on");
        return Err(Error::invalid("init_process_group", format!("on rank {rank}: {reason}")));
    }
    let runtime = runtime();
    let device = match options.device {
        Some(device) => device,
        None => guessed(rank, runtime.devices()?.count()),
    };
    // All ranks make as many groups as this one; one that joins again begins where it left off.
    let name = &options.name;
    let store = deadline.bound(|| {
        loop {
            let round = options.store.add(&format!("{name}/{world_size}/{rank}"), 1)?;
            let prefix = format!("{name}/{world_size}/round {round}");
            let store = PrefixStore::new(prefix, Arc::clone(&options.store));
            // Who gave up waiting here tries the next, if any.
            if !store.check(&[GIVEN_UP])? {
                break Ok::<_, Error>(Arc::new(store));
            }
        }
    })?;
    let meeting = Arc::<PrefixStore>::clone(&store);
    let joined = deadline.bound(|| join(options, runtime, device, meeting, [deadline, grace]));
    if joined.as_ref().is_err_and(|error| error.find::<StoreError>().is_none()) {
        // The error that is returned matters more than one of this call.
        let _ = grace.bound(|| store.set(GIVEN_UP, b""));
    }
    joined
}

/// Time, after the timeout, to ask the store which ranks are missing, and to tell it that this rank has
/// given up.
const GRACE: Duration = Duration::from_secs(1);

/// The device of a rank that says nothing of it.
fn guessed(rank: usize, devices: usize) -> usize {
    let device = rank.checked_rem(devices).unwrap_or(0);
    if devices > 1 {
        // As PyTorch warns.
        tracing::warn!(
            "init_process_group: rank {rank} takes cuda:{device}, which is a guess by its rank; where \
             hosts have other numbers of ranks than of devices, set LOCAL_RANK or InitOptions::device"
        );
    }
    device
}

/// Set by a rank that has left without a group.
const GIVEN_UP: &str = "given up";

/// Meets the others of this round.
fn join(
    options: InitOptions,
    runtime: Runtime,
    device: usize,
    store: Arc<dyn Store>,
    [deadline, grace]: [Deadline; 2],
) -> Result<ProcessGroup> {
    let InitOptions { rank, world_size, timeout, .. } = options;
    let driver = runtime.device(device)?.driver();
    let nccl = |e| Error::driver("init_process_group", e);
    store.set(&format!("came/{rank}"), b"")?;
    let failed = |mut reason: String| {
        let mut missing = Vec::new();
        for other in 0..world_size {
            match grace.bound(|| store.check(&[&format!("came/{other}")])) {
                Ok(true) => {}
                Ok(false) => missing.push(other),
                Err(error) => {
                    // Each further call would wait for the store again.
                    let others: Vec<_> = (other..world_size).collect();
                    reason = format!("{reason}; {error}{}", Ranks(&others, UNKNOWN));
                    break;
                }
            }
        }
        Error::from(GroupError::Init { rank, world_size, reason, missing })
    };
    let id = if rank == 0 {
        let id = driver.nccl().and_then(|nccl| nccl.unique_id());
        // So that the others do not wait for it in vain.
        let told = id.as_ref().map_or_else(|e| e.to_string().into(), |id| id.as_bytes().to_vec());
        store.set("id", &told)?;
        id.map_err(nccl)?
    } else {
        driver.nccl().map_err(nccl)?;
        let told = match store.get("id", deadline.left()) {
            Err(error @ StoreError::Timeout { .. }) => return Err(failed(error.to_string())),
            told => told?,
        };
        let bytes = told.as_slice().try_into();
        let text = || format!("rank 0 has no id: {}", String::from_utf8_lossy(&told));
        UniqueId::from_bytes(bytes.map_err(|_| failed(text()))?)
    };
    let comm = Communicator::new(driver, device, &id, world_size, rank, deadline.left());
    let comm = comm.map_err(|error| failed(error.to_string()))?;
    ProcessGroup::new(Parts {
        name: options.name,
        members: (0..world_size).collect(),
        runtime,
        comm,
        store,
        store_host: options.store_host,
        timeout,
        debug: options.debug,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_0_listens_where_it_was_told() {
        let found = |host| listening((host, 7), Deadline::after(DEFAULT_TIMEOUT));
        let addresses = |host| found(host).unwrap();
        assert_eq!(addresses("10.1.2.3"), [SocketAddr::from(([10, 1, 2, 3], 7))]);
        assert!(addresses("localhost").iter().all(|address| address.ip().is_loopback()));
        found("no.such.host.invalid").unwrap_err();
    }

    #[test]
    fn a_name_that_is_never_looked_up_does_not_hold_up_rank_0() {
        struct Slow;
        impl ToSocketAddrs for Slow {
            type Iter = std::vec::IntoIter<SocketAddr>;
            fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
                std::thread::sleep(DEFAULT_TIMEOUT);
                Ok(Vec::new().into_iter())
            }
        }
        let error = listening(Slow, Deadline::after(Duration::from_millis(50))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    }

    #[test]
    fn ranks_are_spread_over_the_devices() {
        // As on two hosts of three devices.
        let all: Vec<_> = (0..6).map(|rank| guessed(rank, 3)).collect();
        assert_eq!(all, [0, 1, 2, 0, 1, 2]);
        assert_eq!(guessed(5, 1), 0);
    }
}
