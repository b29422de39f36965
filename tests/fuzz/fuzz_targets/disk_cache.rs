//! Fuzzes the target `disk_cache` of `tests/parsers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| warpline_parsers::run("disk_cache", input));
