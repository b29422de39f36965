//! Fuzzes the target `store_server` of `tests/parsers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| warpline_parsers::run("store_server", input));
