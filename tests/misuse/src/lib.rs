//! Programs that must not compile. The test is `tests/compile_fail.rs`.
