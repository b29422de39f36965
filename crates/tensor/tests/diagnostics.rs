//! For an argument of a wrong type, the compiler's message names the types that are accepted.

#[test]
fn wrong_arguments_are_told_what_would_be_right() {
    trybuild::TestCases::new().compile_fail("tests/diagnostics/*.rs");
}
