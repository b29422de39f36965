//! Calls that are unsafe, because only the caller can guarantee their soundness.

use std::sync::Arc;

use warpline_cuda_sys_safe::owned::{GraphExec, LaunchToken, Module, Stream};
use warpline_cuda_sys_safe::{Driver, StreamHandle};

fn token() -> LaunchToken {
    LaunchToken::new()
}

fn replay(graph: &GraphExec, stream: &warpline_stream::Stream) {
    let _ = graph.launch(stream.raw());
}

fn machine_code(driver: &Arc<dyn Driver>) {
    let _ = Module::load_image(driver, 0, b"\x7fELF");
    let _ = driver.module_load(0, b"\x7fELF");
}

fn peers(driver: &dyn Driver) {
    let _ = driver.disable_peer_access(0, 1);
}

fn external_stream(driver: &Arc<dyn Driver>, handle: StreamHandle) -> Stream {
    Stream::from_external(driver, handle)
}

fn main() {}
