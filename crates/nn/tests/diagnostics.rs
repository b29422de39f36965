//! Tests of compiler messages of this crate and of `warpline`. For an argument of a wrong type, the message names the
//! accepted types. A mistake in a derived module is reported once, at the field. The tests of both crates are one
//! project, because each project checks all dependencies anew.

#[test]
fn mistakes_are_reported_once_and_name_the_accepted_types() {
    trybuild::TestCases::new().compile_fail("tests/diagnostics/*.rs");
}
