//! Tests of compiler messages: for an argument of a wrong type, the message names the accepted
//! types.

#[test]
fn wrong_arguments_name_the_accepted_types() {
    trybuild::TestCases::new().compile_fail("tests/diagnostics/*.rs");
}
