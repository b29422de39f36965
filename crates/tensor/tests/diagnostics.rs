//! What the compiler says of arguments of the wrong type: what would be right, not which traits there are.

#[test]
fn wrong_arguments_are_told_what_would_be_right() {
    trybuild::TestCases::new().compile_fail("tests/diagnostics/*.rs");
}
