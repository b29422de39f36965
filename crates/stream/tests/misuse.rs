//! What safe code must not be able to say: that work is done or captured, what is replayed, and what
//! the driver takes for machine code.

#[test]
fn safe_code_cannot_vouch_for_work() {
    trybuild::TestCases::new().compile_fail("tests/misuse/*.rs");
}
