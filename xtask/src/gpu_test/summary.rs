//! The table of results at the end of a run.

use std::fmt;
use std::time::Duration;

use super::runner::TestCounts;

/// The results of all crates' GPU tests.
#[derive(Debug)]
pub(super) struct Summary {
    /// Crates in the order of their runs.
    crates: Vec<(String, TestCounts)>,
}

impl Summary {
    pub(super) fn new(outcomes: Vec<(String, TestCounts)>) -> Self {
        let mut crates: Vec<(String, TestCounts)> = Vec::new();
        for (name, outcome) in outcomes {
            match crates.iter_mut().find(|(known, _)| *known == name) {
                None => crates.push((name, outcome)),
                Some((_, sum)) => add(sum, outcome),
            }
        }
        Self { crates }
    }

    pub(super) fn passed(&self) -> usize {
        self.crates.iter().map(|(_, o)| o.passed).sum()
    }

    pub(super) fn failed(&self) -> usize {
        self.crates.iter().map(|(_, o)| o.failed.len()).sum()
    }
}

fn add(sum: &mut TestCounts, other: TestCounts) {
    sum.passed += other.passed;
    sum.failed.extend(other.failed);
    sum.not_run.extend(other.not_run);
    sum.filtered += other.filtered;
    sum.time += other.time;
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.crates.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(5);
        writeln!(
            f,
            "{:<width$}  {:>6}  {:>6}  {:>7}  {:>8}  {:>9}",
            "crate", "passed", "failed", "not run", "filtered", "time"
        )?;
        let mut total = TestCounts::default();
        for (name, outcome) in &self.crates {
            row(f, width, name, outcome)?;
            add(&mut total, outcome.clone());
        }
        row(f, width, "total", &total)?;
        for (name, needed) in &total.not_run {
            writeln!(f, "not run (needs {needed}): {name}")?;
        }
        for name in &total.failed {
            writeln!(f, "failed: {name}")?;
        }
        Ok(())
    }
}

fn row(f: &mut fmt::Formatter<'_>, width: usize, name: &str, outcome: &TestCounts) -> fmt::Result {
    let TestCounts { passed, failed, not_run, filtered, time } = outcome;
    let (failed, not_run, time) = (failed.len(), not_run.len(), seconds(*time));
    writeln!(f, "{name:<width$}  {passed:>6}  {failed:>6}  {not_run:>7}  {filtered:>8}  {time:>9}")
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crates_binaries_are_one_row() {
        let outcome = |passed, failed: &[&str]| TestCounts {
            passed,
            failed: failed.iter().map(|&n| n.to_owned()).collect(),
            not_run: vec![("gpu2_c".to_owned(), "2 GPUs".to_owned())],
            filtered: 1,
            time: Duration::from_millis(1500),
        };
        let summary = Summary::new(vec![
            ("low".to_owned(), outcome(2, &[])),
            ("warpline".to_owned(), outcome(1, &["gpu_x"])),
            ("low".to_owned(), outcome(3, &[])),
        ]);
        assert_eq!((summary.passed(), summary.failed()), (6, 1));
        let text = summary.to_string();
        let rows: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["low", "5", "0", "2", "2", "3.0", "s"]);
        assert_eq!(rows[2], ["warpline", "1", "1", "1", "1", "1.5", "s"]);
        assert_eq!(rows[3], ["total", "6", "1", "3", "3", "4.5", "s"]);
        assert!(text.contains("not run (needs 2 GPUs): gpu2_c\n"));
        assert!(text.contains("failed: gpu_x\n"));
    }
}
