//! Tests of programs that must not compile, for this crate and for `warpline`. For an argument of a wrong type, the
//! message names the accepted types. A mistake in a derived module is reported once, at the field. An op whose gradient
//! was forgotten is an error. The tests of both crates are one project, because each project checks all dependencies
//! anew.

#[test]
fn mistakes_are_reported_once_and_name_the_accepted_types() {
    trybuild::TestCases::new().compile_fail("tests/diagnostics/*.rs");
}
