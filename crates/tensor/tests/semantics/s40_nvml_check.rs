//! S40: with `PYTORCH_NVML_BASED_CUDA_CHECK=1`, a check for GPUs leaves CUDA usable in children that are forked later.

use warpline::{Result, cuda, ones};

use crate::common;

/// Environment variable that is set in the process that checks for GPUs and forks.
const ROLE: &str = "WARPLINE_TEST_NVML_CHECK";
const CHECK: &str = "PYTORCH_NVML_BASED_CUDA_CHECK";

/// Exit status of a forked child that may not use CUDA.
const REFUSED: i32 = 7;

/// The program of the other process: checks for GPUs, forks, and uses a GPU in the forked child.
#[test]
fn program_that_asks_and_forks() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let (available, count) = (cuda::is_available().unwrap(), cuda::device_count().unwrap());
    assert_eq!(available, count > 0);
    // SAFETY: the child runs only the code below, and leaves without the parent's destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let sum = || -> Result<f32> { ones([3], "cuda")?.sum(())?.item() };
        let status = match sum() {
            Ok(sum) => i32::from(sum != 3.0),
            Err(error) if error.to_string().contains("forked") => REFUSED,
            Err(_) => 2,
        };
        // SAFETY: `_exit` has no conditions; it ends the child at once.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: `child` was forked here and not reaped yet, and `status` is valid for writes.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    println!("[{count} devices, status {}]", libc::WEXITSTATUS(status));
}

/// Returns the line that the other process prints.
fn asked(driver: &str, settings: &[(&str, &str)]) -> String {
    let mut program = common::own_test(module_path!(), "program_that_asks_and_forks");
    program.env_remove("CUDA_VISIBLE_DEVICES").env_remove(CHECK).env(ROLE, "");
    let output = program.env("WARPLINE_DRIVER", driver).envs(settings.iter().copied()).output();
    let output = output.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    let failed = || panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr));
    line.unwrap_or_else(failed).0.to_owned()
}

#[test]
fn s40_a_child_forked_after_the_question_uses_cuda() {
    assert_eq!(asked("sim:2", &[(CHECK, "1")]), "2 devices, status 0");
    let hidden = [(CHECK, "1"), ("CUDA_VISIBLE_DEVICES", "1")];
    assert_eq!(asked("sim:2", &hidden), "1 devices, status 0");
    // Without the setting, the check uses the driver.
    for settings in [&[][..], &[(CHECK, "0")]] {
        assert_eq!(asked("sim:2", settings), format!("2 devices, status {REFUSED}"));
    }
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_s40_a_child_forked_after_the_question_uses_cuda() {
    let count = cuda::device_count().unwrap();
    // The other process has as many devices as this one.
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let visible = visible.iter().map(|devices| ("CUDA_VISIBLE_DEVICES", &**devices));
    let checked: Vec<_> = visible.clone().chain([(CHECK, "1")]).collect();
    assert_eq!(asked("cuda", &checked), format!("{count} devices, status 0"));
    let visible: Vec<_> = visible.collect();
    assert_eq!(asked("cuda", &visible), format!("{count} devices, status {REFUSED}"));
    let hidden = [(CHECK, "1"), ("CUDA_VISIBLE_DEVICES", "0")];
    assert_eq!(asked("cuda", &hidden), "1 devices, status 0");
}
