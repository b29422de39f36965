//! Checks that safe code cannot claim that work is done or captured, what is replayed, or that
//! bytes are machine code for the driver.

#[test]
fn safe_code_cannot_vouch_for_work() {
    trybuild::TestCases::new().compile_fail("tests/misuse/*.rs");
}
