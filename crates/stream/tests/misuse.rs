//! Checks that safe code cannot declare work complete or captured, replay graphs, or load machine
//! code.

#[test]
fn safe_code_cannot_make_claims_about_work() {
    trybuild::TestCases::new().compile_fail("tests/misuse/*.rs");
}
