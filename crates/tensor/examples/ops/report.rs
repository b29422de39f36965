//! The results: one line per row during the run, and all rows as JSON and Markdown.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::spec::{Spec, Timing, View};
use super::table::Amount;

/// The conditions of a run.
#[derive(Debug, Serialize)]
pub(crate) struct About {
    pub(crate) device: String,
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    /// Requested number of CPU threads. `None`: all cores.
    pub(crate) threads: Option<usize>,
    pub(crate) driver: String,
    pub(crate) commit: String,
    /// The library whose times are in the field `pytorch` of each row.
    pub(crate) beside: &'static str,
    pub(crate) pytorch: Option<String>,
    pub(crate) rounds: u32,
}

/// A row of the table: times in seconds per call, one per round.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    name: String,
    part: &'static str,
    op: &'static str,
    operands: String,
    dtype: &'static str,
    sizes: Vec<usize>,
    view: View,
    timing: &'static str,
    /// Bytes that a call moves, as counted by the table of ops.
    bytes: Option<f64>,
    flops: Option<f64>,
    pub(crate) warpline: Side,
    pub(crate) pytorch: Side,
    /// PyTorch's time divided by Warpline's, as the median over rounds. Above 1, Warpline is faster.
    ratio: Option<f64>,
    /// Warpline's bytes per second divided by those of the faster `copy_` of the run.
    of_copy: Option<f64>,
}

/// The measurements of one of the two libraries ("side").
#[derive(Debug, Default, Serialize)]
pub(crate) struct Side {
    /// Seconds per call, one value per round.
    pub(crate) seconds: Vec<f64>,
    median: Option<f64>,
    pub(crate) error: Option<String>,
}

impl Row {
    pub(crate) fn new(spec: &Spec, amount: Amount) -> Self {
        let (mut bytes, mut flops) = (None, None);
        match amount {
            Amount::Bytes(n) => bytes = Some(n),
            Amount::Flops(n) => flops = Some(n),
            Amount::Nothing => {}
        }
        Self {
            name: spec.name(),
            part: spec.part,
            op: spec.op,
            operands: spec.operands(),
            dtype: spec.dtype.name(),
            sizes: spec.sizes.clone(),
            view: spec.view,
            timing: match spec.timing {
                Timing::Events => "events",
                Timing::Graph(_) => "graph",
                Timing::Host => "host",
            },
            bytes,
            flops,
            warpline: Side::default(),
            pytorch: Side::default(),
            ratio: None,
            of_copy: None,
        }
    }

    /// Computes medians and ratios from the measurements. `copy` is the rate of the copy that this run
    /// measured, in bytes per second.
    pub(crate) fn conclude(&mut self, copy: Option<f64>) {
        for side in [&mut self.warpline, &mut self.pytorch] {
            side.median = median(side.seconds.clone());
        }
        let pairs = self.pytorch.seconds.iter().zip(&self.warpline.seconds);
        self.ratio = median(pairs.map(|(theirs, ours)| theirs / ours).collect());
        let ours = self.rate(self.warpline.median).filter(|_| self.part != "host");
        self.of_copy = ours.zip(copy).map(|(ours, copy)| ours / copy);
    }

    fn rate(&self, seconds: Option<f64>) -> Option<f64> {
        self.bytes.zip(seconds).map(|(bytes, seconds)| bytes / seconds)
    }

    /// Returns the rate of the faster side, in bytes per second.
    pub(crate) fn fastest_rate(&self) -> Option<f64> {
        let sides = [self.warpline.median, self.pytorch.median];
        sides.into_iter().filter_map(|s| self.rate(s)).max_by(f64::total_cmp)
    }

    /// Formats the result of one side.
    fn figure(&self, side: &Side) -> String {
        match (side.median, &side.error) {
            (_, Some(_)) => "failed".to_owned(),
            (None, None) => String::new(),
            (Some(s), None) => match (self.bytes, self.flops) {
                (Some(n), _) if self.timing != "host" || self.part == "cpu" => {
                    format!("{}, {} GB/s", time(s), digits(n / s / 1e9))
                }
                (_, Some(n)) if self.part != "host" => {
                    format!("{}, {} TFLOP/s", time(s), digits(n / s / 1e12))
                }
                _ => time(s),
            },
        }
    }

    /// Formats the row for a Markdown table.
    fn markdown(&self) -> String {
        let number = |v: Option<f64>| v.map_or(String::new(), |v| format!("{v:.2}"));
        format!(
            "| {} | {} | {} | {} | {} | {} |",
            self.op,
            self.operands,
            self.figure(&self.warpline),
            self.figure(&self.pytorch),
            number(self.ratio),
            number(self.of_copy),
        )
    }

    /// Formats the row for the output during the run.
    pub(crate) fn line(&self, beside: &str) -> String {
        let mut line = format!("{}: {}", self.name, self.figure(&self.warpline));
        if let Some(ratio) = self.ratio {
            let _ = write!(line, "; {beside} {}; ratio {ratio:.2}", self.figure(&self.pytorch));
        }
        for (side, name) in [(&self.warpline, "Warpline"), (&self.pytorch, beside)] {
            if let Some(error) = &side.error {
                let _ = write!(line, "; {name} failed: {error}");
            }
        }
        line
    }
}

fn time(seconds: f64) -> String {
    let us = seconds * 1e6;
    if us < 1000.0 { format!("{} µs", digits(us)) } else { format!("{} ms", digits(us / 1e3)) }
}

/// Formats a number with at least three significant digits, or below 1 with three decimals.
fn digits(v: f64) -> String {
    let decimals = match v {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{v:.decimals$}")
}

/// Returns the median of the positive measurements. The times of simulated devices are 0 and are left out.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.retain(|v| v.is_finite() && *v > 0.0);
    values.sort_unstable_by(f64::total_cmp);
    let n = values.len();
    (n > 0).then(|| (values[(n - 1) / 2] + values[n / 2]) / 2.0)
}

/// Writes `ops.json` and `ops.md`.
pub(crate) fn write(dir: &Path, about: &About, rows: &[Row]) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let put = |name: &str, text: String| {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    let json = serde_json::json!({ "about": about, "rows": rows });
    put("ops.json", serde_json::to_string_pretty(&json)? + "\n")?;
    put("ops.md", markdown(about, rows))
}

fn markdown(about: &About, rows: &[Row]) -> String {
    let beside = about.beside;
    let mut text = format!("# Ops beside {beside}\n\n");
    let threads = about.threads.map_or(String::new(), |n| format!(", {n} threads"));
    let _ = writeln!(
        text,
        "{}, driver {}, {} ({} cores{threads}), commit {}, {beside} {}. Medians of {} interleaved rounds.\n\
         *Ratio* is {beside}'s time ÷ Warpline's, *of copy_* Warpline's bytes in a second ÷ those of the run's `copy_`.",
        about.device,
        about.driver,
        about.cpu,
        about.cores,
        about.commit,
        about.pytorch.as_deref().unwrap_or("not run"),
        about.rounds,
    );
    let ratios: Vec<f64> = rows.iter().filter_map(|row| row.ratio).collect();
    let below = |limit: f64| ratios.iter().filter(|ratio| **ratio < limit).count();
    if !ratios.is_empty() {
        let (n, slower, far) = (ratios.len(), below(1.0), below(0.9));
        let _ = writeln!(
            text,
            "Of {n} rows beside {beside}, {slower} have a ratio below 1.00, {far} below 0.90."
        );
    }
    let mut part = "";
    for row in rows {
        if row.part != part {
            part = row.part;
            let _ = write!(
                text,
                "\n## {part}\n\n| op | operands | Warpline | {beside} | ratio | of copy_ |\n|---|---|---|---|---|---|\n"
            );
        }
        let _ = writeln!(text, "{}", row.markdown());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_its_rates_and_ratios() {
        let mut row = Row::new(&crate::rows::copy(), Amount::Bytes(2e9));
        row.warpline.seconds = vec![1e-3, 4e-3, 2e-3];
        row.pytorch.seconds = vec![2e-3, 2e-3, 2e-3];
        row.conclude(Some(2e12));
        assert_eq!((row.ratio, row.of_copy), (Some(1.0), Some(0.5)));
        assert_eq!(row.fastest_rate(), Some(1e12));
        let line =
            "| copy_ | float32 2^28 | 2.00 ms, 1000 GB/s | 2.00 ms, 1000 GB/s | 1.00 | 0.50 |";
        assert_eq!(row.markdown(), line);
        row.pytorch.error = Some("out of memory".into());
        assert!(row.line("PyTorch").ends_with("PyTorch failed: out of memory"), "{row:?}");
    }

    #[test]
    fn slower_rows_are_counted() {
        let row = |ours: f64| {
            let mut row = Row::new(&crate::rows::copy(), Amount::Nothing);
            (row.warpline.seconds, row.pytorch.seconds) = (vec![ours], vec![1.0]);
            row.conclude(None);
            row
        };
        let about = About {
            device: "a GPU".into(),
            cpu: "a CPU".into(),
            cores: 4,
            threads: Some(2),
            driver: "1.2".into(),
            commit: "abc".into(),
            beside: "PyTorch",
            pytorch: Some("2.11".into()),
            rounds: 1,
        };
        let text = markdown(&about, &[row(0.5), row(1.05), row(1.5)]);
        assert!(
            text.contains(
                "a GPU, driver 1.2, a CPU (4 cores, 2 threads), commit abc, PyTorch 2.11."
            )
        );
        assert!(
            text.contains("Of 3 rows beside PyTorch, 2 have a ratio below 1.00, 1 below 0.90.")
        );
    }

    #[test]
    fn a_call_without_duration_gives_no_figure() {
        let mut row = Row::new(&crate::rows::copy(), Amount::Bytes(2e9));
        row.warpline.seconds = vec![0.0, 0.0];
        row.conclude(None);
        assert_eq!(row.markdown(), "| copy_ | float32 2^28 |  |  |  |  |");
    }
}
