//! `warpline-run` and its library.
#![cfg(unix)]

use std::io;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use warpline::ErrorKind;
use warpline_parallel::distributed::launch::{Launcher, OutputStream};

fn warpline_run(args: &[&str]) -> (Option<i32>, String, String) {
    let run = Command::new(env!("CARGO_BIN_EXE_warpline-run")).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (run.status.code(), text(run.stdout), text(run.stderr))
}

#[test]
fn each_rank_gets_its_number_and_its_lines_are_labelled() {
    let script = r#"echo "$RANK $LOCAL_RANK of $WORLD_SIZE, $LOCAL_WORLD_SIZE here, $WARPLINE_DRIVER $1"
        echo "$MASTER_ADDR:$MASTER_PORT" >&2; printf unfinished"#;
    let (code, out, err) =
        warpline_run(&["--nproc", "3", "--driver", "sim", "--", "sh", "-c", script, "x", "-y"]);
    assert_eq!(code, Some(0), "{err}");
    let mut lines: Vec<_> = out.lines().collect();
    lines.sort_unstable();
    let mut wanted = Vec::new();
    for rank in 0..3 {
        wanted.push(format!("[{rank}]: {rank} {rank} of 3, 3 here, sim:3 -y"));
        wanted.push(format!("[{rank}]: unfinished"));
    }
    assert_eq!(lines, wanted);
    assert_eq!(err.lines().filter(|line| line.contains("]: 127.0.0.1:")).count(), 3, "{err}");
}

#[test]
fn when_a_rank_fails_the_others_are_killed_and_its_code_is_returned() {
    let begun = Instant::now();
    let script = r#"if [ "$RANK" = 1 ]; then exit 7; fi; exec sleep 100"#;
    let (code, _, err) = warpline_run(&["-n", "3", "sh", "-c", script]);
    assert_eq!(code, Some(7));
    assert!(err.contains("rank 1 failed"), "{err}");
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_rank_that_a_signal_ends_has_the_exit_code_of_a_shell() {
    let (code, ..) = warpline_run(&["-n", "2", "sh", "-c", "kill -9 $$"]);
    assert_eq!(code, Some(137));
}

#[test]
fn failed_ranks_are_started_again_up_to_a_limit() {
    let script = r#"echo "start $TORCHELASTIC_RESTART_COUNT"
        if [ "$RANK" = 1 ] && [ "$TORCHELASTIC_RESTART_COUNT" -lt 2 ]; then exit 7; fi
        if [ "$TORCHELASTIC_RESTART_COUNT" -lt 2 ]; then exec sleep 100; fi"#;
    for (restarts, expected) in [("0", 7), ("1", 7), ("2", 0), ("5", 0)] {
        let args = ["-n", "2", "--max-restarts", restarts, "sh", "-c", script];
        let (code, out, err) = warpline_run(&args);
        assert_eq!(code, Some(expected), "{restarts}: {out}{err}");
        let started = (0..3).filter(|count| out.contains(&format!("[1]: start {count}"))).count();
        assert_eq!(started, 1 + restarts.parse::<usize>().unwrap().min(2), "{out}");
        assert_eq!(err.matches("all ranks start again").count(), started - 1, "{err}");
    }
}

#[test]
fn a_missing_program_is_named_in_the_error() {
    let (code, _, err) = warpline_run(&["-n", "2", "/no/such/program"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("/no/such/program"), "{err}");
    let (code, _, err) = warpline_run(&["-n", "0", "true"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("at least one rank"), "{err}");
}

#[test]
fn keep_going_lets_the_other_ranks_continue_and_a_rank_can_be_killed() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&lines);
    let launch = Launcher::new("sh", 2).arg("-c");
    let script = r#"if [ "$RANK" = 0 ]; then exec sleep 100; fi; sleep 0.2; echo late"#;
    let launch =
        launch.arg(script).keep_going(true).on_line(Arc::new(move |rank, output, line| {
            seen.lock().unwrap().push((rank, output, line.to_string()));
        }));
    let mut ranks = launch.spawn().unwrap();
    let error = ranks.kill(2).unwrap_err();
    assert!(error.to_string().contains("there is no rank 2"), "{error}");
    ranks.kill(0).unwrap();
    let outcome = ranks.wait().unwrap();
    assert_eq!((outcome.first_failed, outcome.code()), (Some(0), 137));
    assert!(outcome.statuses[1].success());
    assert_eq!(*lines.lock().unwrap(), [(1, OutputStream::Stdout, "late".to_string())]);
}

#[test]
fn a_launch_fails_with_the_error_of_the_call() {
    let (error, line) = (Launcher::new("/no/such/program", 1).run().unwrap_err(), line!());
    assert!(matches!((error.op(), error.kind()), ("run", ErrorKind::Io)), "{error}");
    assert_eq!(error.location().unwrap().line(), line);
    assert_eq!(error.find::<io::Error>().unwrap().kind(), io::ErrorKind::NotFound);
    let error = Launcher::new("true", 0).spawn().unwrap_err();
    assert!(matches!((error.op(), error.kind()), ("spawn", ErrorKind::InvalidArgument { .. })));
}
