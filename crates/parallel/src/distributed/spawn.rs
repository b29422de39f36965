//! Ranks that are threads of one process, for tests and examples.

use std::sync::Arc;

use warpline::{Error, Result, simulated, with_runtime};
use warpline_sync::CaughtPanic;

use super::{Backend, GroupError, HashStore, InitOptions, ProcessGroup, init_process_group};

/// Runs a closure as each rank of a group on the CPU (`torch.multiprocessing.spawn` with the backend `gloo`). Returns
/// the results in the order of ranks.
///
/// The ranks are threads of this process. Each rank has its own runtime without GPUs, so `manual_seed` on one rank does
/// not affect the others. If a rank returns an error or panics, the calls of the other ranks fail.
///
/// ```
/// use warpline::full;
/// use warpline_parallel::distributed::{ReduceOp, spawn};
///
/// let sums = spawn(3, |group| {
///     let x = full([2], group.rank() as f64, ())?;
///     group.all_reduce(&x, ())?;
///     x.to_vec::<f32>()
/// })?;
/// assert_eq!(sums, [[3.0, 3.0], [3.0, 3.0], [3.0, 3.0]]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::ProcessGroup`](warpline::ErrorKind::ProcessGroup) with the source [`GroupError::Rank`] of a rank
/// whose closure failed: the first rank whose error is not the group's failure, or else the first failed rank.
///
/// # Panics
/// Resumes the panic of the first rank that panicked, after all ranks have ended.
#[track_caller]
pub fn spawn<R: Send>(
    ranks: usize,
    f: impl Fn(ProcessGroup) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let store = Arc::new(HashStore::new());
    let run = |rank| {
        let options = InitOptions::new(store.clone(), rank, ranks).backend(Backend::Cpu);
        with_runtime(&simulated(0)?, || {
            let group = init_process_group(options)?;
            let shared = Arc::clone(group.shared());
            let result = CaughtPanic::catch(|| f(group));
            match &result {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => shared.report_failure(&error.to_string()),
                Err(_) => shared.report_failure("it panicked"),
            }
            result.unwrap_or_else(|panic| panic.resume())
        })
    };
    let joined: Vec<_> = std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|thread| thread.join().map_err(CaughtPanic::new)).collect()
    });
    let (mut results, mut failed): (_, Option<(usize, Error)>) = (Vec::with_capacity(ranks), None);
    for (rank, joined) in joined.into_iter().enumerate() {
        match joined.unwrap_or_else(|panic| panic.resume()) {
            Ok(result) => results.push(result),
            Err(error) => {
                let derived = |error: &Error| GroupError::failure(error).is_some();
                let replaces = |first: &(usize, Error)| derived(&first.1) && !derived(&error);
                if failed.as_ref().is_none_or(replaces) {
                    failed = Some((rank, error));
                }
            }
        }
    }
    match failed {
        None => Ok(results),
        Some((rank, source)) => Err(GroupError::Rank { rank, source }.into()),
    }
}
