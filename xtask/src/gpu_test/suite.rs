//! Running the GPU tests of one binary.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::build::Binary;
use super::output::{self, Report};
use super::sanitizer::Sanitizer;

/// How the tests are run.
#[derive(Debug)]
pub(super) struct Suite {
    /// GPUs that the tests see.
    pub(super) gpus: usize,
    /// Whether they are simulated.
    pub(super) simulated: bool,
    /// The tool of compute-sanitizer they run under, if any.
    pub(super) sanitizer: Option<Sanitizer>,
    /// Only tests whose name contains this.
    pub(super) filter: Option<String>,
    /// The command that each test binary runs under, if any.
    pub(super) wrapper: Vec<String>,
    /// Variables to set, or to take away.
    pub(super) env: Vec<(String, Option<String>)>,
    /// How long one test binary may run.
    pub(super) timeout: Duration,
}

/// What came of one binary's GPU tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) passed: usize,
    /// What failed, and how.
    pub(super) failed: Vec<String>,
    /// Tests that need what is not here, and what they need.
    pub(super) not_run: Vec<(String, String)>,
    /// GPU tests that the filter left out.
    pub(super) filtered: usize,
    pub(super) time: Duration,
}

/// One run of a binary, ended or killed.
struct Ran {
    output: String,
    /// `None` when it ran out of time.
    status: Option<ExitStatus>,
}

impl Suite {
    /// Runs the binary's GPU tests one at a time. Tests see only as many GPUs as their names declare, so each number
    /// of GPUs has a process of its own. After a test that takes the process with it, the rest runs in a new process.
    pub(super) fn run(&self, binary: &Binary) -> Result<Outcome> {
        let listed = self.list(binary)?;
        let (mut outcome, chosen) = self.choose(&binary.name, &listed);
        let mut by_gpus = BTreeMap::<usize, Vec<String>>::new();
        for name in chosen {
            by_gpus.entry(output::gpus_needed(&name).unwrap_or(1)).or_default().push(name);
        }
        let start = Instant::now();
        for (gpus, mut pending) in by_gpus {
            while !pending.is_empty() {
                let (package, name, count) = (&binary.package, &binary.name, pending.len());
                println!("\n{package} {name}: {count} tests of {gpus} GPUs");
                let ran = self.execute(binary, &pending, gpus)?;
                let report = output::report(&ran.output, &pending);
                settle(&mut outcome, &mut pending, report, &ran, (&binary.name, gpus));
            }
        }
        outcome.time = start.elapsed();
        Ok(outcome)
    }

    /// The variable that shows the tests this many GPUs, and its value.
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

    fn list(&self, binary: &Binary) -> Result<Vec<String>> {
        let output = self
            .command(binary, &[])
            .args(["--list", "--format", "terse", "--include-ignored"])
            .output()
            .with_context(|| format!("cannot start {}", binary.path.display()))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "listing the tests failed: {errors}");
        Ok(output::listed(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Sorts the tests of a binary into those to run and those that are only counted.
    fn choose(&self, binary: &str, listed: &[String]) -> (Outcome, Vec<String>) {
        let (mut outcome, mut chosen) = (Outcome::default(), Vec::new());
        for name in listed {
            let Some(needed) = output::gpus_needed(name) else { continue };
            if self.filter.as_ref().is_some_and(|filter| !name.contains(filter)) {
                outcome.filtered += 1;
            } else if self.simulated && binary.starts_with("gpu_") {
                outcome.not_run.push((name.clone(), "a real GPU".to_owned()));
            } else if let Some(needed) = self.sanitizer.and_then(|tool| tool.takes_from(name)) {
                outcome.not_run.push((name.clone(), needed.to_owned()));
            } else if needed > self.gpus {
                outcome.not_run.push((name.clone(), format!("{needed} GPUs")));
            } else {
                chosen.push(name.clone());
            }
        }
        (outcome, chosen)
    }

    pub(super) fn command(&self, binary: &Binary, wrapper: &[String]) -> Command {
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

    fn execute(&self, binary: &Binary, names: &[String], gpus: usize) -> Result<Ran> {
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
                    // By print!, which a test of ours captures.
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
        // After a kill a grandchild may hold the pipe for ever: take what has come so far.
        if status.is_some()
            && let Some(reader) = reader
        {
            let _ = reader.join();
        }
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Ran { output: String::from_utf8_lossy(&seen).into_owned(), status })
    }
}

/// Adds a run to the outcome and takes what is settled off `pending`.
fn settle(
    outcome: &mut Outcome,
    pending: &mut Vec<String>,
    report: Report,
    ran: &Ran,
    (binary, gpus): (&str, usize),
) {
    let (before, failed_before) = (pending.len(), outcome.failed.len());
    let mut settled: BTreeSet<String> = report.passed;
    outcome.passed += settled.len();
    for name in report.failed {
        outcome.failed.push(format!("{name} (shown as many GPUs as its name declares: {gpus})"));
        settled.insert(name);
    }
    pending.retain(|name| !settled.contains(name));
    let how = match &ran.status {
        None => "ran out of time".to_owned(),
        Some(status) => format!("ended with {status}"),
    };
    let errors = output::sanitizer_errors(&ran.output);
    if !pending.is_empty() {
        // It broke off. The one it broke in is not run again.
        let broke = report.broke.unwrap_or_else(|| pending[0].clone());
        pending.retain(|name| *name != broke);
        outcome.failed.push(format!("{broke}: the process {how} in it"));
    } else if outcome.failed.len() == failed_before && !ran.status.is_some_and(|s| s.success()) {
        outcome.failed.push(format!("{binary}: its {before} tests passed, but the process {how}"));
    }
    if errors > 0 {
        outcome.failed.push(format!("{binary}: the sanitizer counted {errors} errors"));
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn suite(gpus: usize) -> Suite {
        Suite {
            gpus,
            simulated: false,
            sanitizer: None,
            filter: None,
            wrapper: Vec::new(),
            env: vec![("WARPLINE_DRIVER".to_owned(), None)],
            timeout: Duration::from_secs(20),
        }
    }

    /// A shell script in the place of a test binary. `$*` are the names to run.
    fn binary(dir: &xshell::TempDir, list: &str, body: &str) -> Binary {
        let path = dir.path().join("fake");
        let text = format!(
            "#!/bin/sh\nif [ \"$1\" = --list ]; then printf '{list}'; exit 0; fi\nshift 3\n{body}\n"
        );
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Binary {
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
    fn tests_without_their_gpus_are_not_run_and_said_so() {
        let dir = temp();
        let outcome = suite(1).run(&binary(&dir, LIST, ALL_PASS)).unwrap();
        assert_eq!((outcome.passed, outcome.failed.len()), (2, 0));
        assert_eq!(outcome.not_run, [("gpu2_c".to_owned(), "2 GPUs".to_owned())]);
        let outcome = suite(2).run(&binary(&dir, LIST, ALL_PASS)).unwrap();
        assert_eq!((outcome.passed, outcome.not_run.len()), (3, 0));
    }

    /// A fake test that passes if it is shown two GPUs.
    const NEEDS_TWO: &str = "case \"$CUDA_VISIBLE_DEVICES|$WARPLINE_DRIVER\" in \
        *,*\\|*|*sim:[23]*) for n; do echo \"test $n ... ok\"; done; \
        echo \"test result: ok. $# passed; 0 failed;\";; \
        *) echo; echo failures:; for n; do echo \"    $n\"; done; echo; \
        echo \"test result: FAILED. 0 passed; $# failed;\"; exit 101;; esac";

    #[test]
    fn a_test_that_opens_more_gpus_than_its_name_declares_fails() {
        let dir = temp();
        let binary = binary(&dir, "gpu_a: test\\ngpu2_b: test\\n", NEEDS_TWO);
        let mut simulated = Suite { simulated: true, ..suite(3) };
        simulated.env = vec![("WARPLINE_DRIVER".to_owned(), Some("sim:3,lazy".to_owned()))];
        assert_eq!(simulated.visible(2), ("WARPLINE_DRIVER", "sim:2,lazy".to_owned()));
        for suite in [suite(3), simulated] {
            let outcome = suite.run(&binary).unwrap();
            assert_eq!(outcome.passed, 1);
            assert_eq!(outcome.failed, ["gpu_a (shown as many GPUs as its name declares: 1)"]);
        }
    }

    #[test]
    fn tests_of_the_real_driver_are_not_run_on_the_simulated_one() {
        let dir = temp();
        let real = Binary { name: "gpu_driver".to_owned(), ..binary(&dir, LIST, ALL_PASS) };
        assert_eq!(suite(2).run(&real).unwrap().passed, 3);
        let outcome = Suite { simulated: true, ..suite(2) }.run(&real).unwrap();
        assert_eq!((outcome.passed, outcome.not_run.len()), (0, 3));
        assert_eq!(outcome.not_run[0].1, "a real GPU");
    }

    #[test]
    fn tests_that_a_sanitizer_leaves_nothing_to_see_are_not_run() {
        let dir = temp();
        let name = "here::gpu_s07_ops_return_before_they_run";
        let binary = binary(&dir, &format!("gpu_a: test\\n{name}: test\\n"), ALL_PASS);
        assert_eq!(suite(1).run(&binary).unwrap().passed, 2);
        let sanitized = Suite { sanitizer: Some(Sanitizer::Memcheck), ..suite(1) };
        let outcome = sanitized.run(&binary).unwrap();
        assert_eq!((outcome.passed, outcome.not_run.len()), (1, 1));
        assert_eq!(outcome.not_run[0].0, name);
    }

    #[test]
    fn the_filter_counts_filtered_tests() {
        let dir = temp();
        let suite = Suite { filter: Some("_b".to_owned()), ..suite(1) };
        let outcome = suite.run(&binary(&dir, LIST, ALL_PASS)).unwrap();
        assert_eq!((outcome.passed, outcome.filtered), (1, 2));
    }

    #[test]
    fn after_a_crash_the_rest_runs() {
        let dir = temp();
        let body = format!("[ $1 = gpu_a ] && printf 'test gpu_a ... ' && kill -9 $$\n{ALL_PASS}");
        let outcome = suite(2).run(&binary(&dir, LIST, &body)).unwrap();
        assert_eq!(outcome.passed, 2);
        assert_eq!(outcome.failed.len(), 1);
        assert!(outcome.failed[0].contains("gpu_a") && outcome.failed[0].contains("signal"));
    }

    #[test]
    fn a_hang_is_a_failure() {
        let dir = temp();
        let suite = Suite { timeout: Duration::from_millis(100), ..suite(1) };
        let body = "echo 'test gpu_a ... ok'; printf 'test gpu_b ... '; exec sleep 30";
        let outcome = suite.run(&binary(&dir, LIST, body)).unwrap();
        assert_eq!(outcome.passed, 1);
        assert_eq!(outcome.failed, ["gpu_b: the process ran out of time in it"]);
    }

    #[test]
    fn a_bad_end_after_good_tests_is_a_failure() {
        let dir = temp();
        let outcome = suite(1).run(&binary(&dir, LIST, &format!("{ALL_PASS}; exit 3"))).unwrap();
        assert_eq!(outcome.failed.len(), 1, "{outcome:?}");
        let body = format!("{ALL_PASS}; echo '========= ERROR SUMMARY: 2 errors'");
        let outcome = suite(1).run(&binary(&dir, LIST, &body)).unwrap();
        assert!(outcome.failed[0].contains("2 errors"), "{outcome:?}");
    }

    #[test]
    fn tests_see_their_folder_their_variables_and_the_wrapper() {
        let dir = temp();
        let body = format!(
            "[ \"$PWD|$CARGO_MANIFEST_DIR|$A|$WRAPPED\" = \"{0}|{0}|b|yes\" ] || exit 9\n{ALL_PASS}",
            dir.path().display()
        );
        let mut suite = suite(1);
        suite.env.push(("A".to_owned(), Some("b".to_owned())));
        suite.wrapper = ["env", "WRAPPED=yes"].map(str::to_owned).to_vec();
        let outcome = suite.run(&binary(&dir, LIST, &body)).unwrap();
        assert_eq!((outcome.passed, outcome.failed.len()), (2, 0), "{outcome:?}");
    }
}
