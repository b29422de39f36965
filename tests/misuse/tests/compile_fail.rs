//! Tests of programs that must not compile. They are one project, because each project checks all dependencies anew.

/// - `tensors`: for an argument of a wrong type, the message names the accepted types. A mistake in a derived module is
///   reported once, at the field. An op whose gradient was forgotten is an error.
/// - `streams`: safe code cannot submit work, declare work complete or captured, replay graphs, load machine code,
///   disable peer access, or wrap a stream's handle.
#[test]
fn mistakes_are_errors_whose_messages_help() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/tensors/*.rs");
    cases.compile_fail("tests/streams/*.rs");
}
