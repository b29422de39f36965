//! A forked child that drops what it has of its parent's channels: the parent's threads are not in it.

use std::time::{Duration, Instant};

use warpline::{Result, with_runtime};
use warpline_cuda_sys_safe::StreamHandle;
use warpline_cuda_sys_safe::sim::Schedule;

use crate::processes::{LONG, alone};
use crate::threads::{pair, world};

/// Whether a forked child comes to its end in which `f` is run.
fn ends_in_child(f: impl FnOnce()) -> bool {
    // SAFETY: the child runs what this test is about, and ends without the parent's cleaning up.
    let child = unsafe { libc::fork() };
    if child == 0 {
        f();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    let (begun, mut status) = (Instant::now(), 0);
    // SAFETY: waits for the child made above.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } != child {
        if begun.elapsed() > LONG / 4 {
            // SAFETY: the child made above, which nobody has waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
            // SAFETY: as above.
            unsafe { libc::waitpid(child, &mut status, 0) };
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    status == 0
}

#[test]
fn s33_a_forked_child_drops_a_channel_and_waits_for_nobody() {
    let _alone = alone(); // it has all descriptors of the process for a while
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
    // A stream of the parent waits, and its work is still to come.
    let mut there = Some(there);
    let ended = ends_in_child(|| drop(there.take()));
    hold.open();
    drop((there, received));
    assert!(ended, "it hangs");
}
