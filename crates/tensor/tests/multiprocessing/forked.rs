//! Tests of a forked child that drops a channel of its parent. The parent's threads do not exist in
//! the child.

use std::time::{Duration, Instant};

use warpline::{Result, with_runtime};
use warpline_cuda_sys_safe::StreamHandle;
use warpline_cuda_sys_safe::sim::Schedule;

use crate::processes::{LONG, alone};
use crate::threads::{pair, world};

/// Returns whether `f` returns in a forked child.
fn ends_in_child(f: impl FnOnce()) -> bool {
    // SAFETY: the child runs only `f` and leaves through `_exit`, so no destructor or exit handler
    // of the parent runs in it.
    let child = unsafe { libc::fork() };
    if child == 0 {
        f();
        // SAFETY: `_exit` takes no pointer and touches no memory of the process.
        unsafe { libc::_exit(0) };
    }
    let (begun, mut status) = (Instant::now(), 0);
    // SAFETY: `status` is a valid place for the result, and `child` has not been reaped.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } != child {
        if begun.elapsed() > LONG / 4 {
            // SAFETY: `child` has not been reaped, so its id is not reused.
            unsafe { libc::kill(child, libc::SIGKILL) };
            // SAFETY: `status` is a valid place for the result, and `child` has not been reaped.
            unsafe { libc::waitpid(child, &mut status, 0) };
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    status == 0
}

#[test]
fn s33_a_forked_child_drops_a_channel_without_waiting() {
    let _alone = alone(); // the child holds copies of all descriptors
    let worlds = [0, 1].map(|_| world(1, Schedule::Lazy));
    let (here, there) = pair();
    let hold = with_runtime(&worlds[0].1, || -> Result<_> {
        let tensor = warpline::zeros([600], "cuda:0")?.share_memory()?;
        let hold = worlds[0].0.hold(StreamHandle::default_of(0)).unwrap();
        tensor.add_(1.0)?;
        here.send(&tensor)?;
        Ok(hold)
    })
    .unwrap();
    let received = with_runtime(&worlds[1].1, || there.recv()).unwrap();
    // The work of the parent's stream has not run, because the simulator holds it back.
    let mut there = Some(there);
    let ended = ends_in_child(|| drop(there.take()));
    hold.open();
    drop((there, received));
    assert!(ended, "it hangs");
}
