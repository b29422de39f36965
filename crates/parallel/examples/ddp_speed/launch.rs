//! Starts the ranks of Warpline and of PyTorch.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, ensure};
use serde_json::Value;
use warpline_parallel::distributed::launch::{Launcher, OutputStream};

use super::Args;

/// PyTorch's scripts, embedded so that a single file is enough on a GPU host.
const SCRIPTS: [(&str, &str); 2] = [
    ("pytorch.py", include_str!("../../../nn/examples/model_speed/pytorch.py")),
    ("ddp_speed.py", include_str!("ddp_speed.py")),
];

/// A folder for files of this process. Dropping this value removes the folder.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("warpline-ddp-speed-{}", std::process::id()));
        fs::create_dir(&path)?;
        let folder = Self(path);
        for (name, text) in SCRIPTS {
            fs::write(folder.0.join(name), text)?;
        }
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that is left behind does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Starts Warpline's ranks. Returns the result that rank 0 prints.
pub(super) fn warpline(args: &Args, ranks: usize) -> anyhow::Result<Value> {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&lines);
    let mut launcher = Launcher::new(std::env::current_exe()?, ranks);
    for (flag, value) in args.settings().as_object().into_iter().flatten() {
        let flag = format!("--{flag}");
        launcher = match value {
            Value::Null | Value::Bool(false) => launcher,
            Value::Bool(true) => launcher.arg(flag),
            Value::String(text) => launcher.arg(flag).arg(text),
            other => launcher.arg(flag).arg(other.to_string()),
        };
    }
    if let Some(driver) = &args.driver {
        launcher = launcher.driver(driver);
    }
    let launcher = launcher.on_line(Arc::new(move |rank, output, line: &str| match output {
        OutputStream::Stdout => {
            seen.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
        }
        OutputStream::Stderr => eprintln!("[{rank}]: {line}"),
    }));
    let outcome = launcher.run()?;
    ensure!(outcome.code() == 0, "rank {:?} of {ranks} failed", outcome.first_failed);
    let lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    result(lines.iter().map(String::as_str))
}

/// Starts PyTorch's ranks. Returns the result that rank 0 prints.
pub(super) fn pytorch(
    args: &Args,
    python: &Path,
    folder: &Folder,
    ranks: usize,
) -> anyhow::Result<Value> {
    let output = Command::new(python)
        .args(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"])
        .arg(ranks.to_string())
        .arg(folder.path().join("ddp_speed.py"))
        .arg(args.settings().to_string())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| python.display().to_string())?;
    ensure!(output.status.success(), "PyTorch with {ranks} ranks: {}", output.status);
    result(String::from_utf8(output.stdout)?.lines())
}

fn result<'a>(mut lines: impl Iterator<Item = &'a str>) -> anyhow::Result<Value> {
    let line = lines.find(|line| line.starts_with('{')).context("rank 0 printed no result")?;
    Ok(serde_json::from_str(line)?)
}
