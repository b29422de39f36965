//! Fuzzes the target `allocator_options` of `tests/parsers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| warpline_parsers::run("allocator_options", input));
