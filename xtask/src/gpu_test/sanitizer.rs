//! `cargo xtask gpu-test --sanitizer`: the tests under NVIDIA's compute-sanitizer.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// Its tools that the tests are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Sanitizer {
    /// Kernels' accesses out of bounds or misaligned
    Memcheck,
    /// Races between a block's threads on shared memory
    Racecheck,
}

const PROGRAM: &str = "compute-sanitizer";
/// Where CUDA's toolkit puts it.
const FOLDERS: [&str; 2] = ["/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer"];

/// Tests that see work of large products still running. Under the tools each launch waits for its end.
const NEED_OVERLAP: [&str; 2] =
    ["gpu_s07_ops_return_before_they_run", "gpu_s12_streams_overlap_past_a_wait"];
/// Tests whose large products take racecheck minutes each. It would check cuBLAS's kernels, not ours.
const LARGE_PRODUCTS: [&str; 8] = [
    "gpu_s13_synchronize_waits_for_all_streams",
    "gpu_s13_an_event_covers_earlier_work",
    "gpu_s13_wait_stream_orders",
    "gpu_s13_wait_event_orders",
    "gpu2_s13_wait_event_orders_across_devices",
    "gpu_s13_elapsed_time",
    "gpu_s14_recorded_streams_finish_with_the_memory",
    "gpu_s14_by_default_nothing_need_be_recorded",
];

impl Sanitizer {
    /// The command that a test binary runs under.
    pub(super) fn wrapper(self) -> Result<Vec<String>> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain(FOLDERS.map(PathBuf::from));
        let Some(program) = find(folders) else {
            bail!(
                "{PROGRAM} is neither on the PATH nor in {}: install it with CUDA's toolkit",
                FOLDERS.join(" or ")
            );
        };
        Ok(self.command(&program))
    }

    /// What a test, by its path, would need that the tool takes away.
    pub(super) fn takes_from(self, test: &str) -> Option<&'static str> {
        let name = test.rsplit("::").next().unwrap_or(test);
        if NEED_OVERLAP.contains(&name) {
            return Some("launches that return at once");
        }
        let slow = self == Self::Racecheck && LARGE_PRODUCTS.contains(&name);
        slow.then_some("large products in reasonable time")
    }

    fn command(self, program: &Path) -> Vec<String> {
        let tool = match self {
            Self::Memcheck => "memcheck",
            Self::Racecheck => "racecheck",
        };
        let mut command = vec![program.to_string_lossy().into_owned()];
        // What tests start as processes of their own is to fail: it is not looked at.
        let options =
            ["--tool", tool, "--error-exitcode", "86", "--target-processes", "application-only"];
        command.extend(options.map(str::to_owned));
        if self == Self::Memcheck {
            // Tests make calls that are refused.
            command.extend(["--report-api-errors", "no"].map(str::to_owned));
        }
        command
    }
}

fn find(folders: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    folders.map(|folder| folder.join(PROGRAM)).find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_on_the_path_is_taken() {
        let dir = xshell::Shell::new().unwrap().create_temp_dir().unwrap();
        let folders = || [dir.path().join("none"), dir.path().to_owned()].into_iter();
        assert_eq!(find(folders()), None);
        std::fs::write(dir.path().join(PROGRAM), "").unwrap();
        assert_eq!(find(folders()), Some(dir.path().join(PROGRAM)));
    }

    #[test]
    fn the_left_out_tests_exist() {
        let root = crate::workspace::root().unwrap();
        let folder = root.join("crates/tensor/tests/semantics");
        let files = crate::workspace::files(&folder, &["rs"]).unwrap();
        let text: String =
            files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
        for name in NEED_OVERLAP.iter().chain(&LARGE_PRODUCTS) {
            assert!(text.contains(name), "{name} is no test");
        }
    }

    #[test]
    fn memcheck_has_time_for_large_products() {
        let of = |sanitizer: Sanitizer, test: &str| sanitizer.takes_from(&format!("s::{test}"));
        for sanitizer in [Sanitizer::Memcheck, Sanitizer::Racecheck] {
            assert!(of(sanitizer, NEED_OVERLAP[0]).is_some());
            assert_eq!(of(sanitizer, "gpu_copy"), None);
        }
        assert!(of(Sanitizer::Racecheck, LARGE_PRODUCTS[0]).is_some());
        assert_eq!(of(Sanitizer::Memcheck, LARGE_PRODUCTS[0]), None);
    }

    #[test]
    fn its_errors_end_the_run() {
        for (sanitizer, tool) in
            [(Sanitizer::Memcheck, "memcheck"), (Sanitizer::Racecheck, "racecheck")]
        {
            let command = sanitizer.command(Path::new("/x/compute-sanitizer"));
            assert_eq!(command[..3], ["/x/compute-sanitizer", "--tool", tool]);
            assert!(command.contains(&"--error-exitcode".to_owned()), "{command:?}");
        }
    }
}
