//! Tests of the numbers that a semaphore may wait for.

use super::*;
use crate::RuntimeConfig;
use crate::testing::small_sim;

const HALF: u32 = 1 << 31;

/// Storing the last awaited number must release all waits, so pending numbers span at most half of the range.
#[test]
fn a_number_outside_the_half_range_above_the_passed_numbers_is_refused() {
    let runtime = Runtime::new(small_sim(1).build(), RuntimeConfig::default()).unwrap();
    let own = OwnSemaphore::new(&runtime, 0).unwrap();
    let peer = PeerSemaphore::import(&runtime, 0, own.export().unwrap()).unwrap();
    let begin = |number| {
        let (semaphore, location) = (peer.clone(), Location::caller());
        peer.begin_wait(&AwaitedSignal { semaphore, number, limit: None, op: "recv", location })
    };
    let state = || {
        let state = peer.state();
        (state.passed, state.awaited, state.enqueueing)
    };
    begin(5).unwrap();
    begin(3).unwrap();
    assert_eq!(state(), (0, 5, 2), "an earlier number changes nothing");
    begin(HALF - 1).unwrap();
    let error = begin(HALF).unwrap_err().to_string();
    assert!(error.contains("named operation 2147483648, but operation 0 is"), "{error}");
    assert_eq!(state(), (0, HALF - 1, 3), "a refused wait leaves no trace");
    // All waits are enqueued, and the idle stream has passed them.
    (0..3).for_each(|_| peer.end_wait());
    begin(HALF).unwrap();
    assert_eq!(state(), (HALF - 1, HALF, 1));
    // Numbers wrap around.
    for number in [u32::MAX, 2] {
        peer.end_wait();
        begin(number).unwrap();
    }
    assert_eq!(state(), (u32::MAX, 2, 1));
    peer.end();
    assert!(!begin(0).unwrap(), "the number had arrived before the other process ended");
    assert_eq!(state(), (u32::MAX, 2, 1), "so nothing waits for it");
    assert!(matches!(begin(3).unwrap_err().kind(), crate::ErrorKind::PeerGone { .. }));
}
