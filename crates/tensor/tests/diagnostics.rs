//! Tests of programs that must not compile. For an argument of a wrong type, the message names the accepted types.
//! An op whose gradient was forgotten is an error.

#[test]
fn wrong_arguments_and_forgotten_gradients_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/diagnostics/*.rs");
}
