//! Fuzzes the target `channel` of `tests/parsers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| warpline_parsers::run("channel", input));
