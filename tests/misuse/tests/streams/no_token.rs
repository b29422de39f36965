//! Functions that trust their caller's claims about work need a `LaunchToken`.

use std::sync::Arc;

use warpline_cuda_sys_safe::owned::LaunchToken;
use warpline_cuda_sys_safe::CaptureMode;
use warpline_stream::{CapturedChecks, Stream, Error};

fn forged() -> LaunchToken {
    LaunchToken(())
}

fn waited(stream: &Stream) {
    let _ = stream.submit_waited(|_| Ok(()));
}

fn submitted(stream: &Stream) {
    let _ = stream.submit(|_| Ok::<_, Error>(()));
}

fn checked(stream: &Stream) {
    let _ = stream.mailbox().launch(stream, "op", std::panic::Location::caller());
    let _ = Arc::new(CapturedChecks::default()).begin_replay(stream, 1);
}

fn captured(stream: &Stream) {
    let _ = stream.begin_capture(Arc::new(()));
    let _ = stream.raw().begin_capture(CaptureMode::Relaxed);
    let _ = stream.raw().end_capture();
    let _ = stream.end_capture(true);
}

fn main() {}
