//! PyTorch's side: a Python process that receives orders to measure, one per line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::spec::{Spec, Timing};

/// The common first part of both Python programs. The text is compiled into the program, so that a GPU host
/// needs no file but the program.
const COMMON: &str = include_str!("common.py");

const PROGRAM: &str = include_str!("torch.py");

/// The program that measures NumPy instead of PyTorch, with the ops that NumPy has.
const NUMPY: &str = include_str!("numpy.py");

/// The process, with its pipes.
pub(crate) struct Torch {
    child: Child,
    /// `None` once the process has been told to end.
    talk: Option<Talk<BufReader<ChildStdout>, ChildStdin>>,
    pub(crate) version: String,
}

struct Talk<R, W> {
    replies: R,
    orders: W,
}

/// The result of an order.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Reply {
    error: Option<String>,
    seconds: Option<f64>,
    version: Option<String>,
    threads: Option<usize>,
}

impl Torch {
    /// Starts the process. `threads` is its number of CPU threads; `None`: the library's default.
    pub(crate) fn start(python: &str, threads: Option<usize>, numpy: bool) -> Result<Self> {
        let mut command = Command::new(python);
        let (program, library) = if numpy { (NUMPY, "NumPy") } else { (PROGRAM, "PyTorch") };
        command.args(["-c", &format!("{COMMON}\n\n{program}"), &threads.unwrap_or(0).to_string()]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {python}"))?;
        let orders = child.stdin.take().context("no pipe to Python")?;
        let replies = BufReader::new(child.stdout.take().context("no pipe from Python")?);
        let mut talk = Talk { replies, orders };
        let hello = talk.reply().with_context(|| format!("{python} cannot run {library}"))?;
        let threads = hello.threads.unwrap_or_default();
        let version = format!("{}, {threads} threads", hello.version.unwrap_or_default());
        Ok(Self { child, talk: Some(talk), version })
    }

    pub(crate) fn prepare(&mut self, spec: &Spec) -> Result<()> {
        self.order(&prepare(spec)).map(drop)
    }

    /// Returns the seconds per call.
    pub(crate) fn measure(&mut self, target_ms: f64) -> Result<f64> {
        self.order(&json!({ "measure": target_ms }))?
            .seconds
            .context("the reply of Python has no time")
    }

    /// Drops the operands, and empties the allocator's cache if `empty` is set.
    pub(crate) fn forget(&mut self, empty: bool) -> Result<()> {
        self.order(&json!({ "drop": empty })).map(drop)
    }

    fn order(&mut self, order: &Value) -> Result<Reply> {
        self.talk.as_mut().context("Python was told to end")?.order(order)
    }
}

impl Drop for Torch {
    fn drop(&mut self) {
        // The process ends when its input pipe is closed.
        self.talk = None;
        let _ = self.child.wait();
    }
}

fn prepare(spec: &Spec) -> Value {
    let graph_calls = if let Timing::Graph(calls) = spec.timing { calls } else { 0 };
    json!({ "prepare": {
        "op": spec.op,
        "dtype": spec.dtype.name(),
        "sizes": spec.sizes,
        "view": spec.view,
        "device": spec.device(),
        "timing": if spec.timing == Timing::Host { "host" } else { "device" },
        "graph_calls": graph_calls,
    } })
}

impl<R: BufRead, W: Write> Talk<R, W> {
    fn order(&mut self, order: &Value) -> Result<Reply> {
        writeln!(self.orders, "{order}").context("Python has ended")?;
        self.orders.flush()?;
        self.reply()
    }

    fn reply(&mut self) -> Result<Reply> {
        let mut line = String::new();
        if self.replies.read_line(&mut line)? == 0 {
            bail!("Python has ended without a reply");
        }
        let reply: Reply =
            serde_json::from_str(&line).with_context(|| format!("reply {line:?}"))?;
        match reply.error {
            Some(error) => bail!(error),
            None => Ok(reply),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::OPS;

    #[test]
    fn both_programs_have_the_same_ops() {
        let theirs =
            PROGRAM.lines().filter_map(|line| line.strip_prefix("op(\"")?.split('"').next());
        let ours: Vec<&str> = OPS.iter().map(|op| op.name).collect();
        assert_eq!(theirs.collect::<Vec<_>>(), ours);
    }

    #[test]
    fn operands_of_an_op_are_the_same_in_both() {
        let ours = include_str!("table.rs");
        for line in PROGRAM.lines().filter(|line| line.starts_with("op(\"")) {
            let name = line.split('"').nth(1).unwrap();
            let theirs: Vec<&str> =
                line.split("s.").skip(1).filter_map(|part| part.split('(').next()).collect();
            let entry =
                ours.lines().find(|l| l.trim().starts_with(&format!("\"{name}\", "))).unwrap();
            let (operands, _) = entry.split_once(" => ").unwrap();
            let operands: Vec<&str> = operands
                .split(": ")
                .skip(1)
                .filter_map(|part| part.split([',', ')', '(']).next())
                .collect();
            assert_eq!(operands, theirs, "{name}");
        }
    }

    #[test]
    fn the_ops_of_numpy_are_among_ours() {
        let theirs =
            NUMPY.lines().filter_map(|line| line.strip_prefix("    \"")?.split_once("\": (lambda"));
        let theirs: Vec<&str> = theirs.map(|(name, _)| name).collect();
        assert!(theirs.len() > 15, "{theirs:?}");
        for name in theirs {
            assert!(OPS.iter().any(|op| op.name == name), "{name}");
        }
    }

    fn talk(replies: &str) -> Talk<&[u8], Vec<u8>> {
        Talk { replies: replies.as_bytes(), orders: Vec::new() }
    }

    #[test]
    fn an_order_is_a_line_and_so_is_the_reply() {
        let mut talk = talk("{\"seconds\": 0.5}\n{\"error\": \"out of memory\"}\n");
        assert_eq!(talk.order(&json!({ "measure": 3.0 })).unwrap().seconds, Some(0.5));
        let refused = talk.order(&json!({ "drop": false })).unwrap_err();
        assert_eq!(refused.to_string(), "out of memory");
        assert_eq!(talk.orders, b"{\"measure\":3.0}\n{\"drop\":false}\n");
        let ended = talk.reply().unwrap_err();
        assert_eq!(ended.to_string(), "Python has ended without a reply");
    }

    #[test]
    fn a_row_is_told_by_its_parts() {
        let row = crate::rows::gpu().into_iter().find(|row| row.part == "sizes").unwrap();
        let expected = json!({ "prepare": {
            "op": "copy_", "dtype": "float32", "sizes": [65536], "view": "contiguous",
            "device": "cuda", "timing": "device", "graph_calls": 32,
        } });
        assert_eq!(prepare(&row), expected);
    }
}
