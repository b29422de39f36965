//! The common parts of CPU implementations: parameters, threads, loops over strided views.
//!
//! CPU implementations run on a thread pool of their own. If they shared the program's pool, a
//! thread that waits in the pool could run a job of the program that needs a lock held by the op. A
//! forked child gets a new pool. A CPU implementation cannot return an error, so its own
//! allocations must not grow with the size to which an operand is expanded.

mod element;
mod halves;
mod strided;

use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use bytemuck::AnyBitPattern;
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use warpline_cuda_sys_safe::fork_generation;

pub use element::{Cast, CastAny, HostElement, Number, Truth};
pub use strided::{GRAIN, LANES, load, map0, map1, rows, store};
pub use warpline_cuda_sys_safe::{HostKernel, HostLaunch};

/// Returns whether an op may run on several threads. Returns `false` inside a parallel job: waiting
/// there could run another job of the program, which may need a lock that this thread holds.
pub(crate) fn may_parallel() -> bool {
    // The schedule checker treats an op as one step, so the op must not start threads.
    cfg!(not(shuttle)) && rayon::current_thread_index().is_none()
}

/// Runs `f`, which uses several threads, on the thread pool of CPU ops. Without a pool
/// ([`has_threads`]), runs `f` on this thread.
///
/// The pool is separate from the program's: jobs of the program may wait for a lock that the caller
/// holds, so on a shared pool all threads could wait for the caller while the caller waits for one
/// of them.
pub fn on_threads<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    match threads() {
        Some(threads) => threads.install(f),
        None => f(),
    }
}

/// Runs `f` on this thread and on up to `others` threads of the pool. Returns when all have
/// finished.
#[cfg(not(shuttle))]
pub(crate) fn together(others: usize, f: impl Fn() + Sync) {
    match threads() {
        Some(threads) if others > 0 && may_parallel() => threads.in_place_scope(|scope| {
            for _ in 0..others {
                scope.spawn(|_| f());
            }
            f();
        }),
        _ => f(),
    }
}

/// Runs `f` on this thread and on `others` threads of the schedule checker.
#[cfg(shuttle)]
pub(crate) fn together(others: usize, f: impl Fn() + Sync) {
    warpline_sync::thread::scope(|scope| {
        for _ in 0..others {
            scope.spawn(&f);
        }
        f();
    });
}

/// Returns the number of threads that share an op's work.
pub fn thread_count() -> usize {
    threads().map_or(1, ThreadPool::current_num_threads)
}

/// Returns whether the thread pool exists. Without it, rayon's own pool would be used, which a
/// forked child lacks.
pub fn has_threads() -> bool {
    threads().is_some()
}

/// The thread pool of a process.
#[derive(Debug)]
struct ProcessThreadPool {
    /// `None` if the system could not start the threads.
    threads: Option<ThreadPool>,
    /// Fork generation of the process: a forked child does not have its parent's threads.
    generation: u32,
}

/// The latest pool. Never freed, because a forked child could not end its parent's threads.
// An atomic pointer, because a forked child could wait forever for a lock or a `OnceLock` that
// another thread of the parent held.
static POOL: AtomicPtr<ProcessThreadPool> = AtomicPtr::new(null_mut());

fn threads() -> Option<&'static ThreadPool> {
    let generation = fork_generation();
    let latest = POOL.load(Ordering::Acquire);
    // SAFETY: the pointer is null or points to a pool, and pools in `POOL` are never freed.
    match unsafe { latest.as_ref() } {
        Some(pool) if pool.generation == generation => pool.threads.as_ref(),
        parents => start_threads(latest, parents, generation),
    }
}

#[cold]
fn start_threads(
    latest: *mut ProcessThreadPool,
    parents: Option<&ProcessThreadPool>,
    generation: u32,
) -> Option<&'static ThreadPool> {
    // A forked child has as many threads as its parent. Otherwise 0 lets rayon choose.
    let count = parents.and_then(|pool| pool.threads.as_ref());
    let count = count.map_or(0, ThreadPool::current_num_threads);
    let builder = ThreadPoolBuilder::new().num_threads(count);
    let threads = builder.thread_name(|i| format!("warpline-cpu-{i}")).build().ok();
    let own = Box::into_raw(Box::new(ProcessThreadPool { threads, generation }));
    match POOL.compare_exchange(latest, own, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: `own` was created above, and pools in `POOL` are never freed.
        Ok(_) => unsafe { &*own }.threads.as_ref(),
        Err(others) => {
            // SAFETY: `own` was created above by `Box::into_raw`, and no other thread has the
            // pointer.
            drop(unsafe { Box::from_raw(own) });
            // SAFETY: another thread has stored this pool in `POOL`, and pools there are never
            // freed.
            unsafe { &*others }.threads.as_ref()
        }
    }
}

/// Returns the parameter block.
///
/// # Panics
/// If the block does not have the size of `P`, because an op and its CPU implementation disagree.
pub fn params<P: AnyBitPattern>(launch: &HostLaunch<'_>) -> P {
    bytemuck::pod_read_unaligned(launch.params)
}

/// Runs `f` over `0..n`, in at most four ranges per thread, of about `grain` numbers or more. Uses
/// several threads only if `parallel` is set and `n` is larger than `grain`.
pub fn parallel_for(parallel: bool, n: usize, grain: usize, f: impl Fn(Range<usize>) + Sync) {
    spread(parallel, n, grain, &f);
}

/// Implements [`parallel_for`]. Takes a `dyn Fn`, so that it is compiled once and not for each of
/// the thousands of loop bodies.
fn spread(parallel: bool, n: usize, grain: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
    let grain = grain.max(1);
    if !parallel || n <= grain || !has_threads() {
        if n > 0 {
            f(0..n);
        }
        return;
    }
    let pieces = n.div_ceil(grain).min(thread_count() * 4);
    let size = n.div_ceil(pieces);
    on_threads(|| {
        (0..pieces).into_par_iter().for_each(|i| f(i * size..((i + 1) * size).min(n)));
    });
}

/// A pointer shared by the threads of one launch, which access disjoint elements.
#[derive(Clone, Copy, Debug)]
pub struct SharedPtr<T>(pub *mut T);

// SAFETY: threads of a launch access disjoint elements through the pointer, as the unsafe methods
// require.
unsafe impl<T> Send for SharedPtr<T> {}
// SAFETY: threads of a launch access disjoint elements through the pointer, as the unsafe methods
// require.
unsafe impl<T> Sync for SharedPtr<T> {}

impl<T: Copy> SharedPtr<T> {
    /// Returns the address `at` elements from index zero. Only accesses need the address to be in
    /// bounds.
    pub fn at(self, at: isize) -> *mut T {
        self.0.wrapping_offset(at)
    }

    /// Returns operand `index` of a launch.
    pub fn operand(launch: &HostLaunch<'_>, index: usize) -> Self {
        Self(launch.pointers[index].cast())
    }

    /// Reads the element at offset `at`, counted in elements from index zero.
    ///
    /// # Safety
    /// The element must be declared by the launch, and no thread may write it meanwhile.
    pub unsafe fn read(self, at: isize) -> T {
        // SAFETY: the caller guarantees that the element is declared and that no thread writes it.
        // Elements are aligned because storages are.
        unsafe { self.0.offset(at).read() }
    }

    /// Writes the element at offset `at`, counted in elements from index zero.
    ///
    /// # Safety
    /// The element must be declared as writable by the launch, and no other thread may access it
    /// meanwhile.
    pub unsafe fn write(self, at: isize, value: T) {
        // SAFETY: the caller guarantees that the element is declared as writable and that no other
        // thread accesses it. Elements are aligned because storages are.
        unsafe { self.0.offset(at).write(value) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::sync::{Arc, RwLock};
    use std::time::Duration;

    use super::*;

    #[test]
    fn jobs_of_the_program_that_wait_for_a_lock_do_not_stop_its_holder() {
        let storage = Arc::new(RwLock::new(()));
        let (began, begun) = channel();
        let held = storage.write().unwrap();
        for _ in 0..rayon::current_num_threads() {
            let (storage, began) = (Arc::clone(&storage), began.clone());
            rayon::spawn(move || {
                began.send(()).unwrap();
                drop(storage.write());
            });
        }
        for _ in 0..rayon::current_num_threads() {
            begun.recv().unwrap();
        }
        let (done, is_done) = channel();
        std::thread::spawn(move || {
            parallel_for(true, 1 << 20, 1 << 10, |_| ());
            done.send(()).unwrap();
        });
        is_done.recv_timeout(Duration::from_secs(60)).unwrap();
        drop(held);
    }
}
