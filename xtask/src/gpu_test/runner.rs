//! Runs the GPU tests of a test program.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::build::TestProgram;
use super::compute_sanitizer::SanitizerTool;
use super::output::{self, RunResults};

/// Runs GPU tests with the options of the command line.
#[derive(Debug)]
pub(super) struct TestRunner {
    /// Number of available GPUs.
    pub(super) gpus: usize,
    /// Whether the GPUs are simulated.
    pub(super) simulated: bool,
    /// The tool of compute-sanitizer that the tests run under.
    pub(super) sanitizer: Option<SanitizerTool>,
    /// Runs only tests whose name contains this text.
    pub(super) filter: Option<String>,
    /// The command that each test program runs under. Empty: none.
    pub(super) wrapper: Vec<String>,
    /// Environment variables to set, or to remove (`None`).
    pub(super) env: Vec<(String, Option<String>)>,
    /// Time limit for each run of a test program.
    pub(super) timeout: Duration,
}

/// Results of the GPU tests of one test program or crate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TestCounts {
    pub(super) passed: usize,
    /// Descriptions of the failures.
    pub(super) failed: Vec<String>,
    /// Names of the tests that could not run, each with the missing requirement.
    pub(super) not_run: Vec<(String, String)>,
    /// Number of GPU tests that the filter excluded.
    pub(super) filtered: usize,
    pub(super) time: Duration,
}

/// A finished or killed run of a test program.
struct ProgramRun {
    output: String,
    /// `None` after a timeout.
    status: Option<ExitStatus>,
}

impl TestRunner {
    /// Runs the program's GPU tests one at a time. Tests see only as many GPUs as their names declare, so there is one
    /// process per number of GPUs. If a test ends the process, the remaining tests run in a new process.
    pub(super) fn run(&self, binary: &TestProgram) -> Result<TestCounts> {
        let listed = self.list(binary)?;
        let (mut counts, chosen) = self.choose(&binary.name, &listed);
        let mut by_gpus = BTreeMap::<usize, Vec<String>>::new();
        for name in chosen {
            by_gpus.entry(output::gpus_needed(&name).unwrap_or(1)).or_default().push(name);
        }
        let start = Instant::now();
        for (gpus, mut pending) in by_gpus {
            while !pending.is_empty() {
                let (package, name, count) = (&binary.package, &binary.name, pending.len());
                println!("\n{package} {name}: {count} tests with {gpus} GPUs");
                let run = self.execute(binary, &pending, gpus)?;
                let results = output::results(&run.output, &pending);
                add_run(&mut counts, &mut pending, results, &run, (&binary.name, gpus));
            }
        }
        counts.time = start.elapsed();
        Ok(counts)
    }

    /// Returns an environment variable and a value. They make this many GPUs visible to the tests.
    fn visible(&self, gpus: usize) -> (&'static str, String) {
        let set = |wanted: &str| {
            let value = self.env.iter().rev().find(|(name, _)| name == wanted);
            value.and_then(|(_, value)| value.clone())
        };
        if self.simulated {
            let spec = set("WARPLINE_DRIVER").unwrap_or_default();
            let options =
                spec.split_once(',').map_or(String::new(), |(_, rest)| format!(",{rest}"));
            return ("WARPLINE_DRIVER", format!("sim:{gpus}{options}"));
        }
        const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
        let visible = set(VISIBLE).or_else(|| std::env::var(VISIBLE).ok());
        (VISIBLE, super::gpus::first(gpus, visible.as_deref()))
    }

    fn list(&self, binary: &TestProgram) -> Result<Vec<String>> {
        let output = self
            .command(binary, &[])
            .args(["--list", "--format", "terse", "--include-ignored"])
            .output()
            .with_context(|| format!("cannot start {}", binary.path.display()))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "listing the tests failed: {errors}");
        Ok(output::listed(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Returns the tests of a program to run, and counts the filtered tests and those that cannot run.
    fn choose(&self, binary: &str, listed: &[String]) -> (TestCounts, Vec<String>) {
        let (mut counts, mut chosen) = (TestCounts::default(), Vec::new());
        for name in listed {
            let Some(needed) = output::gpus_needed(name) else { continue };
            if self.filter.as_ref().is_some_and(|filter| !name.contains(filter)) {
                counts.filtered += 1;
            } else if self.simulated && binary.starts_with("gpu_") {
                counts.not_run.push((name.clone(), "a real GPU".to_owned()));
            } else if let Some(unmet) = self.sanitizer.and_then(|tool| tool.unmet_requirement(name))
            {
                counts.not_run.push((name.clone(), unmet.to_owned()));
            } else if needed > self.gpus {
                counts.not_run.push((name.clone(), format!("{needed} GPUs")));
            } else {
                chosen.push(name.clone());
            }
        }
        (counts, chosen)
    }

    pub(super) fn command(&self, binary: &TestProgram, wrapper: &[String]) -> Command {
        let mut command = match wrapper {
            [] => Command::new(&binary.path),
            [program, args @ ..] => {
                let mut command = Command::new(program);
                command.args(args).arg(&binary.path);
                command
            }
        };
        command.current_dir(&binary.dir).stdin(Stdio::null());
        command.env("CARGO_MANIFEST_DIR", &binary.dir).env("WARPLINE_TEST_DATA", &binary.dir);
        for (name, value) in &self.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    fn execute(&self, binary: &TestProgram, names: &[String], gpus: usize) -> Result<ProgramRun> {
        let (variable, value) = self.visible(gpus);
        let mut child = self
            .command(binary, &self.wrapper)
            .env(variable, value)
            .args(["--include-ignored", "--exact", "--test-threads=1"])
            .args(names)
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {:?}", self.wrapper.first()))?;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let reader = child.stdout.take().map(|mut pipe| {
            let seen = Arc::clone(&seen);
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = pipe.read(&mut buffer) {
                    // Use `print!`, because the test harness captures its output in the tests of this module.
                    print!("{}", String::from_utf8_lossy(&buffer[..count]));
                    let _ = std::io::stdout().flush();
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.extend_from_slice(&buffer[..count]);
                }
            })
        });
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if start.elapsed() > self.timeout {
                child.kill()?;
                child.wait()?;
                break None;
            }
            thread::sleep(Duration::from_millis(5));
        };
        // After a kill, a grandchild may keep the pipe open forever. Use the output so far.
        if status.is_some()
            && let Some(reader) = reader
        {
            let _ = reader.join();
        }
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(ProgramRun { output: String::from_utf8_lossy(&seen).into_owned(), status })
    }
}

/// Adds the results of a run to the counts. Removes the tests that have a result from the list `pending`.
fn add_run(
    counts: &mut TestCounts,
    pending: &mut Vec<String>,
    results: RunResults,
    run: &ProgramRun,
    (binary, gpus): (&str, usize),
) {
    let (before, failed_before) = (pending.len(), counts.failed.len());
    let mut finished: BTreeSet<String> = results.passed;
    counts.passed += finished.len();
    for name in results.failed {
        counts.failed.push(format!("{name} (visible GPUs: {gpus}, as its name declares)"));
        finished.insert(name);
    }
    pending.retain(|name| !finished.contains(name));
    let how = match &run.status {
        None => "timed out".to_owned(),
        Some(status) => format!("ended with {status}"),
    };
    let errors = output::sanitizer_errors(&run.output);
    if !pending.is_empty() {
        // The process ended early. The interrupted test counts as failed and does not run again.
        let interrupted = results.interrupted.unwrap_or_else(|| pending[0].clone());
        pending.retain(|name| *name != interrupted);
        counts.failed.push(format!("{interrupted}: the process {how} during this test"));
    } else if counts.failed.len() == failed_before && !run.status.is_some_and(|s| s.success()) {
        counts.failed.push(format!("{binary}: all {before} tests passed, but the process {how}"));
    }
    if errors > 0 {
        counts.failed.push(format!("{binary}: the sanitizer counted {errors} errors"));
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn runner(gpus: usize) -> TestRunner {
        TestRunner {
            gpus,
            simulated: false,
            sanitizer: None,
            filter: None,
            wrapper: Vec::new(),
            env: vec![("WARPLINE_DRIVER".to_owned(), None)],
            timeout: Duration::from_secs(20),
        }
    }

    /// Creates a shell script that stands in for a test program. `$*` are the names of the tests to run.
    fn binary(dir: &xshell::TempDir, list: &str, body: &str) -> TestProgram {
        let path = dir.path().join("fake");
        let text = format!(
            "#!/bin/sh\nif [ \"$1\" = --list ]; then printf '{list}'; exit 0; fi\nshift 3\n{body}\n"
        );
        // A child writes the script, because a child that another test starts would keep a file of this process open for
        // writing, and such a file cannot run.
        let write = ["-c", "printf %s \"$1\" > \"$0\" && chmod +x \"$0\""];
        let written = Command::new("sh").args(write).arg(&path).arg(text).status().unwrap();
        assert!(written.success());
        TestProgram {
            package: "warpline".to_owned(),
            name: "fake".to_owned(),
            path,
            dir: dir.path().to_owned(),
        }
    }

    fn temp() -> xshell::TempDir {
        xshell::Shell::new().unwrap().create_temp_dir().unwrap()
    }

    const LIST: &str = "gpu_a: test\\ngpu_b: test\\ngpu2_c: test\\nother: test\\n";
    const ALL_PASS: &str =
        "for n; do echo \"test $n ... ok\"; done; echo \"test result: ok. $# passed; 0 failed;\"";

    #[test]
    fn tests_that_need_more_gpus_are_listed_as_not_run() {
        let dir = temp();
        let outcome = runner(1).run(&binary(&dir, LIST, ALL_PASS)).unwrap();
        assert_eq!((outcome.passed, outcome.failed.len()), (2, 0));
        assert_eq!(outcome.not_run, [("gpu2_c".to_owned(), "2 GPUs".to_owned())]);
        let outcome = runner(2).run(&binary(&dir, LIST, ALL_PASS)).unwrap();
        assert_eq!((outcome.passed, outcome.not_run.len()), (3, 0));
    }

    /// A fake test that passes if it sees at least two GPUs.
    const NEEDS_TWO: &str = "case \"$CUDA_VISIBLE_DEVICES|$WARPLINE_DRIVER\" in \
        *,*\\|*|*sim:[23]*) for n; do echo \"test $n ... ok\"; done; \
        echo \"test result: ok. $# passed; 0 failed;\";; \
        *) echo; echo failures:; for n; do echo \"    $n\"; done; echo; \
        echo \"test result: FAILED. 0 passed; $# failed;\"; exit 101;; esac";

    #[test]
    fn a_test_that_opens_more_gpus_than_its_name_declares_fails() {
        let dir = temp();
        let binary = binary(&dir, "gpu_a: test\\ngpu2_b: test\\n", NEEDS_TWO);
        let mut simulated = TestRunner { simulated: true, ..runner(3) };
        simulated.env = vec![("WARPLINE_DRIVER".to_owned(), Some("sim:3,lazy".to_owned()))];
        assert_eq!(simulated.visible(2), ("WARPLINE_DRIVER", "sim:2,lazy".to_owned()));
        for runner in [runner(3), simulated] {
            let outcome = runner.run(&binary).unwrap();
            assert_eq!(outcome.passed, 1);
            assert_eq!(outcome.failed, ["gpu_a (visible GPUs: 1, as its name declares)"]);
        }
    }

    #[test]
    fn tests_of_the_real_driver_are_not_run_on_the_simulated_one() {
        let dir = temp();
        let real = TestProgram { name: "gpu_driver".to_owned(), ..binary(&dir, LIST, ALL_PASS) };
        assert_eq!(runner(2).run(&real).unwrap().passed, 3);
        let outcome = TestRunner { simulated: true, ..runner(2) }.run(&real).unwrap();
        assert_eq!((outcome.passed, outcome.not_run.len()), (0, 3));
        assert_eq!(outcome.not_run[0].1, "a real GPU");
    }

    #[test]
    fn tests_that_a_sanitizer_cannot_run_are_listed_as_not_run() {
        let dir = temp();
        let name = "here::gpu_s07_ops_return_before_they_run";
        let binary = binary(&dir, &format!("gpu_a: test\\n{name}: test\\n"), ALL_PASS);
        assert_eq!(runner(1).run(&binary).unwrap().passed, 2);
        let sanitized = TestRunner { sanitizer: Some(SanitizerTool::Memcheck), ..runner(1) };
        let outcome = sanitized.run(&binary).unwrap();
        assert_eq!((outcome.passed, outcome.not_run.len()), (1, 1));
        assert_eq!(outcome.not_run[0].0, name);
    }

    #[test]
    fn filtered_tests_are_counted() {
        let dir = temp();
        let runner = TestRunner { filter: Some("_b".to_owned()), ..runner(1) };
        let outcome = runner.run(&binary(&dir, LIST, ALL_PASS)).unwrap();
        assert_eq!((outcome.passed, outcome.filtered), (1, 2));
    }

    #[test]
    fn after_a_crash_the_remaining_tests_run() {
        let dir = temp();
        let body = format!("[ $1 = gpu_a ] && printf 'test gpu_a ... ' && kill -9 $$\n{ALL_PASS}");
        let outcome = runner(2).run(&binary(&dir, LIST, &body)).unwrap();
        assert_eq!(outcome.passed, 2);
        assert_eq!(outcome.failed.len(), 1);
        assert!(outcome.failed[0].contains("gpu_a") && outcome.failed[0].contains("signal"));
    }

    #[test]
    fn a_hang_is_a_failure() {
        let dir = temp();
        let runner = TestRunner { timeout: Duration::from_millis(100), ..runner(1) };
        let body = "echo 'test gpu_a ... ok'; printf 'test gpu_b ... '; exec sleep 30";
        let outcome = runner.run(&binary(&dir, LIST, body)).unwrap();
        assert_eq!(outcome.passed, 1);
        assert_eq!(outcome.failed, ["gpu_b: the process timed out during this test"]);
    }

    #[test]
    fn a_failed_process_after_passed_tests_is_a_failure() {
        let dir = temp();
        let outcome = runner(1).run(&binary(&dir, LIST, &format!("{ALL_PASS}; exit 3"))).unwrap();
        assert_eq!(outcome.failed.len(), 1, "{outcome:?}");
        let body = format!("{ALL_PASS}; echo '========= ERROR SUMMARY: 2 errors'");
        let outcome = runner(1).run(&binary(&dir, LIST, &body)).unwrap();
        assert!(outcome.failed[0].contains("2 errors"), "{outcome:?}");
    }

    #[test]
    fn tests_run_in_their_folder_with_the_variables_and_the_wrapper() {
        let dir = temp();
        let body = format!(
            "[ \"$PWD|$CARGO_MANIFEST_DIR|$A|$WRAPPED\" = \"{0}|{0}|b|yes\" ] || exit 9\n{ALL_PASS}",
            dir.path().display()
        );
        let mut runner = runner(1);
        runner.env.push(("A".to_owned(), Some("b".to_owned())));
        runner.wrapper = ["env", "WRAPPED=yes"].map(str::to_owned).to_vec();
        let outcome = runner.run(&binary(&dir, LIST, &body)).unwrap();
        assert_eq!((outcome.passed, outcome.failed.len()), (2, 0), "{outcome:?}");
    }
}
