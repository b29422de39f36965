//! Tests of messages, sources and sites of errors.

use std::error::Error as StdError;
use std::sync::Arc;

use warpline_cuda_sys_safe::{CudaCode, DriverError};

use super::*;
use crate::DType;

fn driver_error() -> DriverError {
    DriverError::cuda("cuLaunchKernel", CudaCode::ILLEGAL_ADDRESS, Some(0))
}

#[test]
fn a_message_has_op_text_and_line() {
    let error = ErrorKind::UnsupportedDType { dtype: DType::I64 }.of("exp");
    let (line, text) = (line!() - 1, error.to_string());
    let expected = format!(
        "exp: torch.int64 is not supported; convert with `to` (called at {}:{line}:",
        file!()
    );
    assert!(text.starts_with(&expected), "{text}");
    assert_eq!(format!("{error:?}"), text);
}

#[test]
fn a_message_has_its_source_once() {
    let error = Error::driver("add", driver_error());
    assert_eq!(error.to_string(), format!("add: {}", driver_error()));
    assert!(error.source().is_none());
    assert_eq!(error.driver_error().map(ToString::to_string), Some(driver_error().to_string()));
    let here = Location::caller();
    let both = error.clone().at(here).to_string();
    assert_eq!(both, format!("add: {} (called at {here})", driver_error()));
    // A driver error that has a location prints it, so the outer error does not print it again.
    let known = Error::driver("add", driver_error().at(here)).at(here).to_string();
    assert_eq!(known.matches(&here.to_string()).count(), 1, "{known}");
    // A nested error is found through the outer one.
    let outer = ErrorKind::Collective.of("all_reduce").with_source(Arc::new(error));
    assert!(outer.driver_error().is_some());
}

#[test]
fn errors_of_earlier_calls_keep_their_site() {
    let check = ErrorKind::IndexCheck { index: 9, dim: 0, size: 3 }.of("gather");
    let location = check.location();
    let check = check.of("item").at(Location::caller());
    assert_eq!((check.op(), check.location()), ("gather", location));
    let other = ErrorKind::RuntimeMismatch.of("add").of("mul").at(Location::caller());
    assert_eq!(other.op(), "mul");
    assert_ne!(other.location(), location);
}

#[test]
fn a_result_is_at_most_two_words() {
    assert_eq!(size_of::<Result<Box<u8>>>(), 2 * size_of::<usize>());
    assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
}

/// An error type of a higher layer that contains the error of an op.
#[derive(Debug, thiserror::Error)]
#[error("a.bin: {source}")]
struct Wrapped {
    source: Error,
}

#[test]
fn a_source_is_found_through_the_error_that_wraps_it() {
    let inner = Error::driver("empty", driver_error()).at(Location::caller());
    let location = inner.location().unwrap();
    let outer = ErrorKind::File
        .of("load_file")
        .at(location)
        .with_source(Arc::new(Wrapped { source: inner }));
    assert!(outer.driver_error().is_some());
    assert_eq!(outer.find::<Error>().map(Error::op), Some("empty"));
    assert_eq!(outer.to_string().matches(&location.to_string()).count(), 1, "{outer}");
    assert!(outer.source().is_none(), "the message already contains the source's message: {outer}");
}

#[test]
fn an_error_without_an_op_takes_the_first_op() {
    let error = Error::unlocated(ErrorKind::Race).of("add").of("mul");
    assert_eq!(error.op(), "add");
}

#[test]
fn chains_of_sources_are_dropped_without_recursion() {
    // A drop that recursed would need more than this stack.
    let small = std::thread::Builder::new().stack_size(128 << 10);
    let chain = small.spawn(|| {
        let mut chain = Error::invalid("op", "the first");
        for number in 0..100_000 {
            let source: Arc<dyn StdError + Send + Sync> = match number % 2 {
                0 => Arc::new(chain),
                _ => Arc::new(Wrapped { source: chain }),
            };
            chain = Error::invalid("op", "the next").with_source(source);
        }
        drop(chain);
    });
    chain.unwrap().join().unwrap();
}

#[test]
fn a_source_whose_drop_panics_leaves_no_other_source_behind() {
    #[derive(Debug, thiserror::Error)]
    #[error("a source")]
    struct Panics(Error);
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("on drop");
        }
    }
    #[derive(Debug, thiserror::Error)]
    #[error("a source")]
    struct Shared(Arc<()>);
    let shared = Arc::new(());
    for _ in 0..2 {
        let owner =
            Error::invalid("op", "owner").with_source(Arc::new(Shared(Arc::clone(&shared))));
        let error = Error::invalid("op", "outer").with_source(Arc::new(Panics(owner)));
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(error)));
        assert!(dropped.is_err());
        assert_eq!(Arc::strong_count(&shared), 1);
    }
}
