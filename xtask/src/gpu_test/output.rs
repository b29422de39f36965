//! Parses the output of test programs.

use std::collections::BTreeSet;

/// The results in the output of one run of a test program.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RunResults {
    pub(super) passed: BTreeSet<String>,
    pub(super) failed: BTreeSet<String>,
    /// The test that was running when the process ended.
    pub(super) interrupted: Option<String>,
}

/// Parses the output of a run of the tests `names`, one at a time.
///
/// Prefers the summary at the end: output of the tests can break the lines of single results.
pub(super) fn results(output: &str, names: &[String]) -> RunResults {
    let lines: Vec<&str> = output.lines().collect();
    let ended = lines.iter().rposition(|line| line.starts_with("test result: "));
    let Some(ended) = ended else { return results_by_line(&lines, names) };
    let mut failed = BTreeSet::new();
    if let Some(list) = lines[..ended].iter().rposition(|line| *line == "failures:") {
        failed.extend(lines[list..ended].iter().map(|l| l.trim().to_owned()));
        failed.retain(|name| names.contains(name));
    }
    let passed: BTreeSet<String> = names.iter().filter(|n| !failed.contains(*n)).cloned().collect();
    let count = |word: &str| {
        let before = lines[ended].split(word).next().unwrap_or_default().trim_end();
        before.rsplit(' ').next().and_then(|n| n.parse::<usize>().ok())
    };
    if (count("passed"), count("failed")) == (Some(passed.len()), Some(failed.len())) {
        return RunResults { passed, failed, interrupted: None };
    }
    // The summary does not cover all requested tests, so only the lines of single results count.
    results_by_line(&lines, names)
}

/// Returns the results in the lines of single tests, for a run without a complete summary.
fn results_by_line(lines: &[&str], names: &[String]) -> RunResults {
    let mut results = RunResults::default();
    for line in lines {
        let Some((name, result)) = line.strip_prefix("test ").and_then(|l| l.split_once(" ... "))
        else {
            continue;
        };
        let name = name.strip_suffix(" - should panic").unwrap_or(name).to_owned();
        if !names.contains(&name) {
            continue;
        }
        results.interrupted = None;
        if result.trim_end().ends_with("ok") {
            results.passed.insert(name);
        } else if result.trim_end().ends_with("FAILED") {
            results.failed.insert(name);
        } else {
            results.interrupted = Some(name);
        }
    }
    results
}

/// Returns the number of errors that compute-sanitizer counted. Its exit status is 0 even with errors, unless
/// `--error-exitcode` is given.
pub(super) fn sanitizer_errors(output: &str) -> usize {
    let count = |line: &str| {
        let rest = line.split_once("ERROR SUMMARY: ")?.1;
        rest.split(' ').next()?.parse::<usize>().ok()
    };
    output.lines().filter_map(count).sum()
}

/// Returns the test names in the output of `--list --format terse`.
pub(super) fn listed(output: &str) -> Vec<String> {
    output.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// Returns the number of GPUs that a test's name declares. `None` if the name is not that of a GPU test.
pub(super) fn gpus_needed(name: &str) -> Option<usize> {
    let own = name.rsplit("::").next()?;
    let (count, _) = own.strip_prefix("gpu")?.split_once('_')?;
    if count.is_empty() { Some(1) } else { count.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(names: &[&str]) -> Vec<String> {
        names.iter().map(|&n| n.to_owned()).collect()
    }

    fn read(output: &str, names: &[&str]) -> (Vec<String>, Vec<String>, Option<String>) {
        let RunResults { passed, failed, interrupted } = results(output, &strings(names));
        (passed.into_iter().collect(), failed.into_iter().collect(), interrupted)
    }

    #[test]
    fn a_run_without_failures_is_read() {
        let output = "\nrunning 2 tests\ntest a::gpu_x ... ok\ntest gpu_y ... noise\nok\n\n\
            test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out; finished in 0.1s\n";
        assert_eq!(
            read(output, &["a::gpu_x", "gpu_y"]),
            (strings(&["a::gpu_x", "gpu_y"]), vec![], None)
        );
    }

    #[test]
    fn failures_of_a_run_are_read() {
        let output = "test gpu_x ... FAILED\ntest gpu_y ... ok\n\nfailures:\n\n\
            ---- gpu_x stdout ----\nfailures:\n    gpu_y\nboom\n\nfailures:\n    gpu_x\n\n\
            test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let expected = (strings(&["gpu_y"]), strings(&["gpu_x"]), None);
        assert_eq!(read(output, &["gpu_x", "gpu_y"]), expected);
    }

    #[test]
    fn an_interrupted_run_names_its_last_test() {
        let output = "test gpu_a ... ok\ntest gpu_b ... FAILED\ntest gpu_c ... thread panicked\n";
        let expected = (strings(&["gpu_a"]), strings(&["gpu_b"]), Some("gpu_c".to_owned()));
        assert_eq!(read(output, &["gpu_a", "gpu_b", "gpu_c", "gpu_d"]), expected);
        assert_eq!(read("", &["gpu_a"]), (vec![], vec![], None));
    }

    #[test]
    fn tests_that_did_not_run_have_not_passed() {
        let output = "test gpu_a ... ok\ntest gpu_b ... ignored, needs a GPU\n\n\
            test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n";
        let (passed, failed, interrupted) = read(output, &["gpu_a", "gpu_b"]);
        assert_eq!((passed, failed), (strings(&["gpu_a"]), vec![]));
        assert_eq!(interrupted.as_deref(), Some("gpu_b"));
    }

    #[test]
    fn names_declare_the_number_of_gpus() {
        assert_eq!(gpus_needed("gpu_add"), Some(1));
        assert_eq!(gpus_needed("a::tests::gpu2_copy"), Some(2));
        assert_eq!(gpus_needed("gpu12_all"), Some(12));
        assert_eq!(gpus_needed("a::gpu_tests::cpu_add"), None);
        assert_eq!(gpus_needed("gpus_add"), None);
        assert_eq!(gpus_needed("not_gpu_add"), None);
    }

    #[test]
    fn benchmarks_are_not_listed() {
        let output = "a::gpu_x: test\nb: benchmark\n\n1 test, 1 benchmark\n";
        assert_eq!(listed(output), ["a::gpu_x"]);
    }

    #[test]
    fn the_sanitizers_errors_are_counted() {
        let output = "ok\n========= ERROR SUMMARY: 3 errors\n========= ERROR SUMMARY: 0 errors\n";
        assert_eq!(sanitizer_errors(output), 3);
        assert_eq!(sanitizer_errors("all well"), 0);
    }
}
