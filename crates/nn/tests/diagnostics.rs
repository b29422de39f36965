//! Tests that the compiler reports a mistake in a derived module once, at the field, and names the accepted
//! types.

#[test]
fn mistakes_in_modules_are_reported_once_at_the_field() {
    trybuild::TestCases::new().compile_fail("tests/diagnostics/*.rs");
}
