//! Starts the ranks of one host as processes, as `warpline-run` does. The store runs in the launcher, which outlives
//! the ranks.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

#[cfg(doc)]
use warpline::ErrorKind;
use warpline::{CallScope, Error, Result};

use super::{Secret, TcpStore, TcpStoreOptions};

/// The output stream of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Callback for each line of output: the rank, the output stream, and the line without its line break.
pub type OnLine = Arc<dyn Fn(usize, OutputStream, &str) + Send + Sync>;

/// A builder that runs a program as several ranks on this host.
///
/// Each process has `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `LOCAL_WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT` and a new
/// `WARPLINE_SECRET` in its environment, which [`InitOptions::from_env`](super::InitOptions::from_env) reads. The
/// launcher hosts the store, so that the store outlives each rank. The secret denies other users of the machine access
/// to the store.
///
/// ```no_run
/// use warpline_parallel::distributed::launch::Launcher;
///
/// let status = Launcher::new("target/release/examples/all_reduce", 2).arg("--size").arg("64").run()?;
/// std::process::exit(status.code());
/// # Ok::<(), warpline::Error>(())
/// ```
#[derive(Clone)]
pub struct Launcher {
    program: PathBuf,
    args: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    ranks: usize,
    keep_going: bool,
    max_restarts: usize,
    /// Number of restarts so far.
    restarts: usize,
    on_line: OnLine,
}

/// Longest wait for the end of the output after all ranks have ended. A child process of a rank may hold a pipe open.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two checks whether ranks have ended.
const POLL: Duration = Duration::from_millis(5);

impl Launcher {
    /// Creates a launcher of `program` with this number of ranks.
    pub fn new(program: impl Into<PathBuf>, ranks: usize) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            variables: Vec::new(),
            ranks,
            keep_going: false,
            max_restarts: 0,
            restarts: 0,
            on_line: Arc::new(print_line),
        }
    }

    /// Adds an argument of the program.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Sets an environment variable of every rank.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Sets the driver of the ranks: `cuda`, or `sim` with options (`WARPLINE_DRIVER`). `sim` alone gives each rank as
    /// many simulated devices as there are ranks.
    #[must_use]
    pub fn driver(self, spec: &str) -> Self {
        let devices = format!("sim:{}", self.ranks);
        self.env("WARPLINE_DRIVER", if spec == "sim" { devices.as_str() } else { spec })
    }

    /// Sets whether the other ranks continue after a rank has failed. With `false`, they are killed. Default: `false`.
    #[must_use]
    pub fn keep_going(mut self, keep_going: bool) -> Self {
        self.keep_going = keep_going;
        self
    }

    /// Sets the maximum number of times that [`Launcher::run`] starts all ranks again after a rank has failed
    /// (`torchrun --max-restarts`). Default: 0. The program continues from its own checkpoint;
    /// `TORCHELASTIC_RESTART_COUNT` in its environment is the number of restarts so far, as under `torchrun`.
    #[must_use]
    pub fn max_restarts(mut self, max_restarts: usize) -> Self {
        self.max_restarts = max_restarts;
        self
    }

    /// Sets the callback for each line of output. Default: prints the line after `[rank]: `.
    #[must_use]
    pub fn on_line(mut self, on_line: OnLine) -> Self {
        self.on_line = on_line;
        self
    }

    /// Starts all ranks and waits until they have ended. After a failure, starts them again, with a new store, up to
    /// [`Launcher::max_restarts`] times. Returns the outcome of the last start.
    ///
    /// # Errors
    /// The same as [`Launcher::spawn`] and [`Ranks::wait`].
    #[track_caller]
    pub fn run(mut self) -> Result<Outcome> {
        loop {
            let call = CallScope::enter("run");
            let outcome = self.clone().spawn()?.wait()?;
            drop(call);
            let Some(rank) = outcome.first_failed.filter(|_| self.restarts < self.max_restarts)
            else {
                return Ok(outcome);
            };
            self.restarts += 1;
            let (status, max) = (outcome.statuses[rank], self.max_restarts);
            let line = format!(
                "this rank failed: {status}; all ranks start again ({}/{max})",
                self.restarts
            );
            (self.on_line)(rank, OutputStream::Stderr, &line);
        }
    }

    /// Starts all ranks once.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the number of ranks is 0; [`ErrorKind::Io`] if the program or a thread cannot
    /// be started; [`ErrorKind::ProcessGroup`] if the secret cannot be created or the store cannot be hosted. No rank
    /// keeps running after an error.
    #[track_caller]
    pub fn spawn(self) -> Result<Ranks> {
        let _call = CallScope::enter("spawn");
        if self.ranks == 0 {
            return Err(Error::invalid("spawn", "at least one rank must be started"));
        }
        let secret = Secret::random()?;
        let store = TcpStore::host("127.0.0.1:0", TcpStoreOptions::new().secret(&secret))?;
        let (ended, reader_ends) = channel();
        let mut ranks = Ranks {
            children: Vec::new(),
            reader_ends,
            readers: 0,
            keep_going: self.keep_going,
            first_failed: None,
            _store: store,
        };
        for rank in 0..self.ranks {
            let mut command = Command::new(&self.program);
            command.args(&self.args).stdin(Stdio::null());
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            // An outer launcher may have set these variables for its own store.
            for name in ["TORCHELASTIC_USE_AGENT_STORE", "WARPLINE_MASTER_PORT"] {
                command.env_remove(name);
            }
            command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
            command.env("WORLD_SIZE", self.ranks.to_string());
            command.env("LOCAL_WORLD_SIZE", self.ranks.to_string());
            command.env("MASTER_ADDR", "127.0.0.1");
            command.env("MASTER_PORT", ranks._store.port().to_string());
            command.env("WARPLINE_LAUNCHER_STORE", "1");
            command.env("TORCHELASTIC_RESTART_COUNT", self.restarts.to_string());
            // Other users can read the arguments of a process, but not its environment.
            command.env("WARPLINE_SECRET", secret.to_text().unwrap_or_default());
            command.envs(self.variables.iter().map(|(name, value)| (name, value)));
            let child = command.spawn().map_err(|error| {
                let text = format!("{} cannot be started: {error}", self.program.display());
                io::Error::new(error.kind(), text)
            })?;
            ranks.children.push((child, None));
            let child = &mut ranks.children[rank].0;
            let pipes: [(OutputStream, Option<Box<dyn Read + Send>>); 2] = [
                (OutputStream::Stdout, child.stdout.take().map(|pipe| Box::new(pipe) as _)),
                (OutputStream::Stderr, child.stderr.take().map(|pipe| Box::new(pipe) as _)),
            ];
            for (output, pipe) in pipes {
                let Some(pipe) = pipe else { continue };
                let (on_line, ended) = (Arc::clone(&self.on_line), ended.clone());
                let thread = std::thread::Builder::new().name("warpline-output".into());
                thread.spawn(move || read_lines((rank, output), pipe, &on_line, &ended))?;
                ranks.readers += 1;
            }
        }
        Ok(ranks)
    }
}

impl fmt::Debug for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launcher")
            .field("program", &self.program)
            .field("args", &self.args)
            .field("ranks", &self.ranks)
            .finish_non_exhaustive()
    }
}

fn read_lines(
    (rank, output): (usize, OutputStream),
    pipe: impl Read,
    on_line: &OnLine,
    ended: &Sender<()>,
) {
    let (mut pipe, mut line) = (BufReader::new(pipe), Vec::new());
    while matches!(pipe.read_until(b'\n', &mut line), Ok(1..)) {
        let text = String::from_utf8_lossy(&line);
        on_line(rank, output, text.strip_suffix('\n').unwrap_or(&text));
        line.clear();
    }
    let _ = ended.send(());
}

/// Prints a line in a single write, so that the lines of several ranks do not mix.
fn print_line(rank: usize, output: OutputStream, line: &str) {
    let text = format!("[{rank}]: {line}\n");
    // An error means that the launcher's own output is closed, so it cannot be reported.
    let _ = match output {
        OutputStream::Stdout => io::stdout().lock().write_all(text.as_bytes()),
        OutputStream::Stderr => io::stderr().lock().write_all(text.as_bytes()),
    };
}

/// Running ranks. Dropping `Ranks` kills the ranks that are still running.
#[derive(Debug)]
pub struct Ranks {
    children: Vec<(Child, Option<ExitStatus>)>,
    reader_ends: Receiver<()>,
    readers: usize,
    keep_going: bool,
    first_failed: Option<usize>,
    _store: TcpStore,
}

impl Ranks {
    /// Kills a rank.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there is no such rank; [`ErrorKind::Io`] if the rank cannot be killed.
    #[track_caller]
    pub fn kill(&mut self, rank: usize) -> Result<()> {
        let _call = CallScope::enter("kill");
        let ranks = self.children.len();
        let Some((child, _)) = self.children.get_mut(rank) else {
            let reason = format!("there is no rank {rank}; the number of ranks is {ranks}");
            return Err(Error::invalid("kill", reason));
        };
        Ok(child.kill()?)
    }

    /// Waits until all ranks have ended. If a rank fails, kills the other ranks, unless [`Launcher::keep_going`] is
    /// set.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the state of a rank cannot be queried.
    #[track_caller]
    pub fn wait(mut self) -> Result<Outcome> {
        let _call = CallScope::enter("wait");
        loop {
            let mut running = false;
            for rank in 0..self.children.len() {
                let (child, status) = &mut self.children[rank];
                if status.is_none() {
                    *status = child.try_wait()?;
                    running |= status.is_none();
                    if status.is_some_and(|status| !status.success()) {
                        self.first_failed.get_or_insert(rank);
                    }
                }
            }
            if !running {
                break;
            }
            if self.first_failed.is_some() && !self.keep_going {
                self.kill_all();
            }
            std::thread::sleep(POLL);
        }
        let deadline = Instant::now() + OUTPUT_TIMEOUT;
        for _ in 0..self.readers {
            let left = deadline.saturating_duration_since(Instant::now());
            if self.reader_ends.recv_timeout(left).is_err() {
                break;
            }
        }
        let statuses = self.children.iter().filter_map(|(_, status)| *status).collect();
        Ok(Outcome { statuses, first_failed: self.first_failed })
    }

    fn kill_all(&mut self) {
        for (child, status) in &mut self.children {
            if status.is_none() {
                // An error means that the rank has just ended.
                let _ = child.kill();
            }
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.kill_all();
        for (child, status) in &mut self.children {
            if status.is_none() {
                let _ = child.wait();
            }
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Exit status of each rank.
    pub statuses: Vec<ExitStatus>,
    /// The first rank that failed. `None` if all ranks succeeded.
    pub first_failed: Option<usize>,
}

impl Outcome {
    /// Returns the exit code of the run: that of the first rank that failed, or 0. If a signal has ended that rank, the
    /// exit code is 128 plus the number of the signal, as in a shell.
    #[must_use]
    pub fn code(&self) -> i32 {
        let Some(status) = self.first_failed.and_then(|rank| self.statuses.get(rank)) else {
            return 0;
        };
        #[cfg(unix)]
        if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(status) {
            return 128 + signal;
        }
        status.code().unwrap_or(1)
    }
}
