//! For an argument of a wrong type, the compiler's message names the types that are accepted.

#[test]
fn wrong_arguments_name_the_accepted_types() {
    trybuild::TestCases::new().compile_fail("tests/diagnostics/*.rs");
}
