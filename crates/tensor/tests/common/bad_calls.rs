//! Calls that must fail, on each kind of device.

use std::cell::Cell;
use std::panic::Location;

use warpline::{Result, SyncPolicy, simulated, with_runtime};

thread_local! {
    /// Whether [`everywhere`] runs on the GPU of [`on_gpu`].
    static ON_GPU: Cell<bool> = const { Cell::new(false) };
}

/// Runs a test on the CPU and on a simulated GPU. Within [`on_gpu`], runs it on that GPU instead.
pub(crate) fn everywhere(test: impl Fn(&str) -> Result<()>) -> Result<()> {
    if ON_GPU.get() {
        return test("cuda");
    }
    with_runtime(&simulated(2)?, || {
        test("cpu")?;
        test("cuda")
    })
}

/// Runs tests that use [`everywhere`] on a GPU.
pub(crate) fn on_gpu(tests: &[fn() -> Result<()>]) {
    super::gpu(1, SyncPolicy::Auto, |_| {
        ON_GPU.set(true);
        let done = tests.iter().try_for_each(|test| test());
        ON_GPU.set(false);
        done
    });
}

/// Asserts that the error names the op and this call's line. Returns the message.
#[track_caller]
pub(crate) fn refused<T>(op: &str, result: Result<T>) -> String {
    let here = Location::caller();
    let error = result.err().unwrap_or_else(|| panic!("{op}: no error"));
    let text = error.to_string();
    let at = error.location().unwrap_or_else(|| panic!("{op}: no line: {text}"));
    assert_eq!((at.file(), at.line()), (here.file(), here.line()), "{op}: {text}");
    let named = text.starts_with(&format!("{op}: "));
    assert!(named || text.contains(&format!("(in {op})")), "{op}: {text}");
    assert!(text.matches(&format!("{op}: ")).count() <= 1, "once: {text}");
    let ends = [format!("(called at {at})"), format!("in the call at {at}")];
    assert!(ends.iter().any(|end| text.ends_with(end)), "{text}");
    text
}
