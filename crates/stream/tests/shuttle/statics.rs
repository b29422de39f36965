//! Statics. Each execution of a test has its own values.

use warpline_sync::LazyLock;

use super::check;

static COUNT: LazyLock<warpline_sync::Mutex<u32>> = LazyLock::new(Default::default);

fn count() -> u32 {
    let mut count = LazyLock::force(&COUNT).lock().unwrap();
    *count += 1;
    *count
}

#[test]
fn threads_of_an_execution_share_a_static_and_executions_do_not() {
    check(|| {
        let thread = shuttle::thread::spawn(count);
        let mut counts = [count(), thread.join().unwrap()];
        counts.sort_unstable();
        assert_eq!(counts, [1, 2]);
    });
}
