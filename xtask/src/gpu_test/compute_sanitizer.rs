//! `cargo xtask gpu-test --sanitizer`: the tests under NVIDIA's compute-sanitizer.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// The tools of compute-sanitizer that the tests support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum SanitizerTool {
    /// Finds out-of-bounds and misaligned accesses of kernels
    Memcheck,
    /// Finds races on shared memory between the threads of a block
    Racecheck,
}

const PROGRAM: &str = "compute-sanitizer";
/// Folders where the CUDA toolkit installs the program.
const FOLDERS: [&str; 2] = ["/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer"];

/// Tests that need a large matrix product to be still running when a later call returns. They fail under the tools,
/// which make each launch synchronous.
const NEED_OVERLAP: [&str; 2] =
    ["gpu_s07_ops_return_before_they_run", "gpu_s12_streams_overlap_past_a_wait"];
/// Tests whose large matrix products take minutes each under racecheck. Racecheck would only check kernels of cuBLAS
/// there, not kernels of this workspace.
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

impl SanitizerTool {
    /// Returns the command that a test program runs under.
    pub(super) fn wrapper(self) -> Result<Vec<String>> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain(FOLDERS.map(PathBuf::from));
        let Some(program) = find(folders) else {
            bail!(
                "{PROGRAM} is neither on the PATH nor in {}; install the CUDA toolkit",
                FOLDERS.join(" or ")
            );
        };
        Ok(self.command(&program))
    }

    /// Returns a requirement of the test with this path that the tool does not meet.
    pub(super) fn unmet_requirement(self, test: &str) -> Option<&'static str> {
        let name = test.rsplit("::").next().unwrap_or(test);
        if NEED_OVERLAP.contains(&name) {
            return Some("asynchronous launches");
        }
        let slow = self == Self::Racecheck && LARGE_PRODUCTS.contains(&name);
        slow.then_some("fast large products")
    }

    fn command(self, program: &Path) -> Vec<String> {
        let tool = match self {
            Self::Memcheck => "memcheck",
            Self::Racecheck => "racecheck",
        };
        let mut command = vec![program.to_string_lossy().into_owned()];
        // Child processes are not checked, because tests start children that fail on purpose.
        let options =
            ["--tool", tool, "--error-exitcode", "86", "--target-processes", "application-only"];
        command.extend(options.map(str::to_owned));
        if self == Self::Memcheck {
            // Tests make driver calls that fail on purpose.
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
    fn the_first_program_on_the_path_is_used() {
        let dir = xshell::Shell::new().unwrap().create_temp_dir().unwrap();
        let folders = || [dir.path().join("none"), dir.path().to_owned()].into_iter();
        assert_eq!(find(folders()), None);
        std::fs::write(dir.path().join(PROGRAM), "").unwrap();
        assert_eq!(find(folders()), Some(dir.path().join(PROGRAM)));
    }

    #[test]
    fn excluded_tests_exist() {
        let root = crate::workspace::root().unwrap();
        let folder = root.join("crates/tensor/tests/semantics");
        let files = crate::workspace::files(&folder, &["rs"]).unwrap();
        let text: String =
            files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
        for name in NEED_OVERLAP.iter().chain(&LARGE_PRODUCTS) {
            assert!(text.contains(name), "{name} is not a test");
        }
    }

    #[test]
    fn memcheck_runs_tests_with_large_products() {
        let of = |tool: SanitizerTool, test: &str| tool.unmet_requirement(&format!("s::{test}"));
        for sanitizer in [SanitizerTool::Memcheck, SanitizerTool::Racecheck] {
            assert!(of(sanitizer, NEED_OVERLAP[0]).is_some());
            assert_eq!(of(sanitizer, "gpu_copies_are_right"), None);
        }
        assert!(of(SanitizerTool::Racecheck, LARGE_PRODUCTS[0]).is_some());
        assert_eq!(of(SanitizerTool::Memcheck, LARGE_PRODUCTS[0]), None);
    }

    #[test]
    fn the_command_exits_with_an_error_if_the_tool_finds_errors() {
        for (sanitizer, tool) in
            [(SanitizerTool::Memcheck, "memcheck"), (SanitizerTool::Racecheck, "racecheck")]
        {
            let command = sanitizer.command(Path::new("/x/compute-sanitizer"));
            assert_eq!(command[..3], ["/x/compute-sanitizer", "--tool", tool]);
            assert!(command.contains(&"--error-exitcode".to_owned()), "{command:?}");
        }
    }
}
