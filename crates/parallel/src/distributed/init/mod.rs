//! Forms process groups.
//!
//! `options.rs` has the options and reads them from the environment, `env_store.rs` creates the store that the
//! environment describes.
//!
//! With NCCL, rank 0 publishes NCCL's unique id in the store. On the CPU, the store itself connects the ranks. Ranks
//! meet in rounds: each rank's n-th attempt to form a group belongs to the n-th round. A process whose group has
//! failed can therefore form a new group. The device of a rank is the given device, or its local rank, or a guess: the
//! rank modulo the number of devices.

mod env_store;
mod options;

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use warpline::{Runtime, runtime};
use warpline_cuda_sys_safe::Driver;
use warpline_cuda_sys_safe::nccl::UniqueId;
use warpline_cuda_sys_safe::owned::Communicator;

use super::error::{RankList, UNKNOWN_RANKS};
use super::group::{GroupParts, Transport};
use super::store::Deadline;
use super::{Backend, Error, GroupError, PrefixStore, ProcessGroup, Result, Store, StoreError};

pub use options::{EnvironmentOptions, InitOptions};

/// Forms a process group (`torch.distributed.init_process_group`). All ranks must call this function. It returns after
/// all ranks have arrived. With [`Backend::Nccl`], each rank needs its own GPU.
///
/// A process may form several groups, one after the other or at the same time. The n-th calls of all ranks with the
/// same name and number of ranks form one group. Attempts that a rank gave up are skipped, so all ranks can try again
/// after an error.
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
///                 group.all_reduce(&x, ())?;
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
/// arrive within the timeout (the error names the missing ranks), NCCL cannot connect them, or the watchdog cannot be
/// started, or with a [`StoreError`] if the store fails;
/// [`ErrorKind::CudaUnavailable`](warpline::ErrorKind::CudaUnavailable) without a GPU,
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
        let reason = format!("the rank must be less than world_size, which is {world_size}");
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
        // Ignore an error of this call, because it must not replace the returned error.
        let _ = grace.bound(|| store.set(GIVEN_UP, b""));
    }
    joined
}

/// Time after the timeout to ask the store for the missing ranks and to mark the round as given up.
const GRACE: Duration = Duration::from_secs(1);

/// Returns the default device of a rank for which no device is set.
fn guess_device(rank: usize, devices: usize) -> usize {
    let device = rank.checked_rem(devices).unwrap_or(0);
    if devices > 1 {
        // PyTorch also warns here.
        warpline::__warn(&format!(
            "init_process_group: rank {rank} uses cuda:{device}, guessed from its rank; if a host has more or fewer ranks than devices, set LOCAL_RANK or InitOptions::device"
        ));
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
        let text = || {
            format!(
                "rank 0 could not create NCCL's unique id: {}",
                String::from_utf8_lossy(&message)
            )
        };
        UniqueId::from_bytes(bytes.map_err(|_| failed(text()))?)
    };
    let comm = Communicator::new(driver, device, &id, world_size, rank, deadline.left());
    Transport::nccl(runtime, comm.map_err(|error| failed(error.to_string()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_spread_over_the_devices() {
        // Six ranks on two hosts with three devices each.
        let all: Vec<_> = (0..6).map(|rank| guess_device(rank, 3)).collect();
        assert_eq!(all, [0, 1, 2, 0, 1, 2]);
        assert_eq!(guess_device(5, 1), 0);
    }
}
