//! Tests with two processes: the process of the test, and a process that runs only
//! [`program_of_the_other_process`].

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use warpline::multiprocessing::Channel;
use warpline::{Result, Runtime, RuntimeConfig, arange, with_runtime};

use crate::{common, cut, host, killed, order};

const PROGRAM: &str = "WARPLINE_TEST_SHARE";
const SPEC: &str = "WARPLINE_TEST_SHARE_SPEC";

/// Time limit, which is longer than any step of these tests takes.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// Keeps other tests that call this function from running until the guard is dropped, because some
/// tests count all file descriptors of the process.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn runtime(spec: &str) -> Runtime {
    warpline::open(spec, &RuntimeConfig::default()).unwrap_or_else(|e| panic!("{spec}: {e}"))
}

/// Another process, which runs [`program_of_the_other_process`], and the channel to it.
pub(crate) struct Peer {
    pub(crate) process: Child,
    pub(crate) channel: Channel,
}

impl Peer {
    pub(crate) fn start(program: &str, spec: &str) -> Self {
        let (here, there) = UnixStream::pair().unwrap();
        let process = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "processes::program_of_the_other_process",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(PROGRAM, program)
            .env(SPEC, spec)
            .stdin(Stdio::from(OwnedFd::from(there)))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let channel = Channel::new(here);
        channel.set_timeout(Some(LONG)).unwrap();
        Self { process, channel }
    }

    /// Runs the surviving side in a separate process, in which no other test opens file
    /// descriptors.
    pub(crate) fn survives(program: &str, spec: &str) {
        assert!(Self::start(&format!("survivor@{program}"), spec).ended(), "{spec}: see above");
    }

    /// Waits until the process has ended. Returns whether it exited successfully.
    pub(crate) fn ended(mut self) -> bool {
        let start = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.success();
            }
            if start.elapsed() > LONG {
                let _ = self.process.kill();
                let _ = self.process.wait();
                panic!("the other process did not end");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Entry point of the other process. Does nothing if it runs as a normal test.
#[test]
fn program_of_the_other_process() {
    let (Ok(program), Ok(spec)) = (std::env::var(PROGRAM), std::env::var(SPEC)) else { return };
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let channel = Channel::new(socket);
    channel.set_timeout(Some(LONG)).unwrap();
    let ran = with_runtime(&runtime(&spec), || match program.split_once('@') {
        None => exchange(&channel),
        Some(("maker", point)) => killed::maker(&channel, point),
        Some(("receiver", point)) => killed::receiver(&channel, point),
        Some(("order", side)) => order::killed(&channel, side),
        Some(("cut maker", point)) => cut::maker(&channel, point),
        Some(("cut receiver", point)) => cut::receiver(&channel, point),
        Some(("host", point)) => host::killed(&channel, point),
        Some(("survivor", "host")) => host::survivor(&spec),
        Some(("survivor", "cuts")) => cut::survivor(&spec),
        Some(_) => killed::survivor(&spec),
    });
    ran.unwrap_or_else(|e| panic!("{spec}, {program}: {e}"));
}

/// Program of the other process in [`exchanges`].
fn exchange(channel: &Channel) -> Result<()> {
    let tensor = channel.recv()?;
    assert_eq!(tensor.size(), [100, 1000]);
    for round in 0..5 {
        let expected = 4_999_950_000 + 100_000 * 2 * round;
        assert_eq!(tensor.sum(())?.item::<i64>()?, expected, "round {round}");
        tensor.add_(1)?;
        channel.send_event(&tensor)?;
        channel.recv_event(&tensor)?;
    }
    channel.send(&tensor.copy()?.share_memory()?)
}

/// Lets both processes change a tensor in turns.
fn exchanges(spec: &str) {
    let _alone = alone();
    let peer = Peer::start("exchange", spec);
    with_runtime(&runtime(spec), || -> Result<()> {
        let tensor = arange(100_000, "cuda:0")?.view([100, 1000])?.share_memory()?;
        peer.channel.send(&tensor)?;
        for _ in 0..5 {
            peer.channel.recv_event(&tensor)?;
            tensor.add_(1)?;
            peer.channel.send_event(&tensor)?;
        }
        let back = peer.channel.recv()?;
        assert_eq!(back.to_vec::<i64>()?, tensor.to_vec::<i64>()?);
        assert_eq!(back.to_vec::<i64>()?[..3], [10, 11, 12]);
        Ok(())
    })
    .unwrap_or_else(|e| panic!("{spec}: {e}"));
    assert!(peer.ended(), "{spec}");
}

#[test]
fn s33_two_processes_change_one_tensor_in_turns() {
    specs().iter().for_each(|spec| exchanges(spec));
}

/// Returns the drivers to test with: simulated, with the laziest schedule and with seven seeded
/// schedules.
pub(crate) fn specs() -> Vec<String> {
    let seeded = (1..8).map(|seed| format!("sim:1,seed={seed}"));
    std::iter::once("sim:1,lazy".to_owned()).chain(seeded).collect()
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_s33_two_processes_change_one_tensor_in_turns() {
    exchanges(&common::gpu_spec());
}
