//! Checks that safe code cannot submit work, declare work complete or captured, replay graphs, load machine code,
//! disable peer access, or wrap a stream's handle.

#[test]
fn safe_code_cannot_make_claims_about_work() {
    trybuild::TestCases::new().compile_fail("tests/misuse/*.rs");
}
