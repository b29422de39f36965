//! Two processes share a GPU tensor. The other process is this program, started again.
//!
//! `cargo run --example share_tensor` runs on a GPU if there is one, otherwise on a simulated GPU.
//! `WARPLINE_DRIVER=sim:1` selects a simulated GPU.

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("GPU tensors can be shared with other processes on Linux");
}

#[cfg(target_os = "linux")]
fn main() -> anyhow::Result<()> {
    linux::main()
}

#[cfg(target_os = "linux")]
mod linux {
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use anyhow::{Context, ensure};
    use warpline::multiprocessing::Channel;
    use warpline::{ErrorKind, ResultExt, arange, cuda, ones};

    const ROLE: &str = "SHARE_TENSOR_ROLE";

    pub(super) fn main() -> anyhow::Result<()> {
        match std::env::var(ROLE).as_deref() {
            Ok("consumer") => consumer(),
            _ => producer(),
        }
    }

    fn producer() -> anyhow::Result<()> {
        // The channel is the other process's standard input. Any connected Unix socket works.
        let (here, there) = UnixStream::pair()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.env(ROLE, "consumer").stdin(Stdio::from(OwnedFd::from(there)));
        if !cuda::is_available()? {
            println!("no GPU here: both processes simulate one");
            command.env("WARPLINE_DRIVER", "sim:1");
        }
        let mut consumer = command.spawn()?;
        drop(command); // and with it the consumer's end of the channel
        let channel = Channel::new(here);
        channel.set_timeout(Some(Duration::from_secs(60)))?;
        let produce = || -> anyhow::Result<()> {
            let tensor = arange(12, "cuda")?.view([3, 4])?.share_memory()?;
            println!("producer: made\n{tensor}");
            channel.send(&tensor.t()?)?; // a view: the memory is the same

            channel.recv_event(&tensor)?;
            println!("producer: now it is\n{tensor}");
            ensure!(tensor.sum(())?.item::<i64>()? == 660, "ten times what it was");

            for sizes in [&[2, 4][..], &[2]] {
                channel.send(&ones(sizes, "cuda")?.share_memory()?)?;
            }
            // The consumer ends without a message. The memory that it had is still valid here.
            let gone = channel.recv();
            ensure!(matches!(gone.kind(), Some(ErrorKind::PeerGone { .. })), "{gone:?}");
            println!(
                "producer: the consumer is gone; its last write is here: {}",
                tensor.select(0, 0)?
            );
            ensure!(tensor.select(0, 0)?.to_vec::<i64>()? == [-1; 4]);
            Ok(())
        };
        let produced = if cuda::is_available()? {
            produce()
        } else {
            warpline::with_runtime(&warpline::simulated(1)?, produce)
        };
        drop(channel); // so that the consumer ends after any error here
        let ended = consumer.wait()?;
        produced?;
        ensure!(!ended.success(), "the consumer aborts in the end");
        println!("shared, changed by both, and outlived its user");
        Ok(())
    }

    fn consumer() -> anyhow::Result<()> {
        let channel =
            Channel::new(UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?));
        channel.set_timeout(Some(Duration::from_secs(60)))?;
        let tensor = channel.recv().context("no tensor")?;
        println!("consumer: received the view {:?}, strides {:?}", tensor.size(), tensor.stride());
        tensor.mul_(10)?;
        channel.send_event(&tensor)?;

        let (weight, bias) = (channel.recv()?, channel.recv()?);
        println!("consumer: received parameters {:?} and {:?}", weight.size(), bias.size());
        tensor.select(1, 0)?.fill_(-1.0)?;
        cuda::synchronize(())?;
        std::process::abort();
    }
}
