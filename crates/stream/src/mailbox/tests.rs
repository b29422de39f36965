//! Tests of mailboxes and of the outcomes of launches, replays and unions.

use warpline_cuda_sys_safe::sim::SimConfig;

use super::*;
use std::panic::Location;

use warpline_types::CallScope;

use crate::index_check::REPLAYED;
use crate::{CapturedChecks, CheckOutcome, Devices, ErrorKind, KernelSet, ResultExt as _};

fn stream() -> Stream {
    let devices = Devices::new(SimConfig::new(1).build()).unwrap();
    devices.get(0).unwrap().exclusive_stream(0).unwrap()
}

/// Enqueues a wait, which stands in for the launch of a kernel.
fn run(stream: &Stream) {
    let event = stream.record_event(None).unwrap();
    stream.wait_event(&event).unwrap();
}

/// Writes a report as a kernel does, for a dimension of size 0.
fn report(ReportSlot { page, first }: &ReportSlot, index: u64, number: u64) {
    if page.load(*first) == 0 {
        page.store(first + 1, index);
        page.store(*first, number);
    }
}

#[track_caller]
fn failed_index(launch: &CheckedLaunch) -> Option<i64> {
    match launch.outcome() {
        CheckOutcome::Failed(failed) => Some(failed.index),
        CheckOutcome::Passed => None,
        CheckOutcome::Pending => panic!("the launch is complete"),
    }
}

#[test]
fn a_report_stays_when_its_slot_is_reused() {
    let stream = stream();
    let mut launches = Vec::new();
    for i in 0..10 * INITIAL_SLOTS as u64 {
        let (launch, [_, number, _]) = stream.mailbox().begin(&stream, Site::here("test")).unwrap();
        run(&stream);
        if i % 3 == 0 {
            report(launch.slot().unwrap(), i, number);
        }
        assert_eq!(launch.outcome(), CheckOutcome::Pending);
        launches.push(launch);
        if i % 5 == 0 {
            let _ = stream.synchronize();
        }
    }
    let _ = stream.synchronize();
    for (i, launch) in launches.iter().enumerate() {
        assert_eq!(failed_index(launch), (i % 3 == 0).then_some(i as i64));
    }
    stream.synchronize().unwrap();
    // The launches in flight never outnumbered the initial slots.
    let MailboxState { free, running, .. } = &*stream.mailbox().state();
    assert_eq!((free.len(), running.len()), (INITIAL_SLOTS, 0));
}

#[test]
fn a_refused_launch_returns_its_slot() {
    let stream = stream();
    for _ in 0..10 * INITIAL_SLOTS {
        let (launch, _) = stream.mailbox().begin(&stream, Site::here("test")).unwrap();
        stream.mailbox().withdraw(&launch);
    }
    let MailboxState { free, running, .. } = &*stream.mailbox().state();
    assert_eq!((free.len(), running.len()), (INITIAL_SLOTS, 0));
}

#[test]
fn a_refused_replay_leaves_no_failure() {
    let stream = stream();
    let checks = Arc::new(CapturedChecks::default());
    checks.add(&stream, Site::here("test")).unwrap();
    let replay = || checks.begin(&stream, stream.last_op() + 1).unwrap();
    let failed = replay();
    run(&stream);
    checks.with_slot(0, |slot| report(slot, 7, REPLAYED));
    let refused = replay();
    // Another thread could wait at this point, before the refused replay is withdrawn.
    assert!(matches!(stream.synchronize().kind(), Some(ErrorKind::IndexCheck { .. })));
    stream.mailbox().withdraw(&refused);
    let next = replay();
    run(&stream);
    stream.synchronize().unwrap();
    assert_eq!((failed_index(&failed), failed_index(&next)), (Some(7), None));
}

#[test]
fn overlapping_replays_share_their_failure() {
    let stream = stream();
    let checks = Arc::new(CapturedChecks::default());
    checks.add(&stream, Site::here("test")).unwrap();
    let replay = || {
        let replay = checks.begin(&stream, stream.last_op() + 1).unwrap();
        run(&stream);
        replay
    };
    let both = [replay(), replay()];
    checks.with_slot(0, |slot| report(slot, 7, REPLAYED));
    assert!(matches!(stream.synchronize().kind(), Some(ErrorKind::IndexCheck { .. })));
    assert_eq!(both.each_ref().map(failed_index), [Some(7); 2]);
    let next = replay();
    stream.synchronize().unwrap();
    assert_eq!(failed_index(&next), None);
}

fn launch(stream: &Stream) -> (CheckedLaunch, u64) {
    let (launch, [_, number, _]) = stream.mailbox().begin(stream, Site::here("test")).unwrap();
    run(stream);
    (launch, number)
}

#[test]
fn a_union_fails_with_any_of_its_inputs_however_deep() {
    for bad in [None, Some(0), Some(499), Some(999)] {
        let stream = stream();
        let mailbox = stream.mailbox();
        let (mut all, mut apart) = (None, None);
        for i in 0..1000 {
            let (launch, number) = launch(&stream);
            if bad == Some(i) {
                report(launch.slot().unwrap(), i, number);
                apart = Some(launch.clone());
            }
            let inputs = all.into_iter().chain([launch]).collect();
            all = Some(mailbox.union(&stream, stream.last_op(), inputs));
        }
        let all = all.unwrap();
        assert_eq!(all.outcome(), CheckOutcome::Pending);
        let (_, late) = (run(&stream), launch(&stream).0);
        let reported = stream.synchronize().is_err();
        assert_eq!((failed_index(&all), reported), (bad.map(|i| i as i64), bad.is_some()));
        assert_eq!(failed_index(&late), None);
        assert_eq!(apart.and_then(|launch| failed_index(&launch)), bad.map(|i| i as i64));
    }
}

#[test]
fn a_failure_is_known_to_unions_that_are_still_running() {
    let stream = stream();
    let (bad, number) = launch(&stream);
    report(bad.slot().unwrap(), 7, number);
    let event = stream.record_event(None).unwrap();
    let mut all = bad;
    for _ in 0..10 {
        let (next, _) = launch(&stream);
        all = stream.mailbox().union(&stream, stream.last_op(), vec![all, next]);
    }
    assert_eq!(all.outcome(), CheckOutcome::Pending);
    assert!(event.synchronize().is_err(), "this thread owns the failed launch");
    assert_eq!(failed_index(&all), Some(7));
}

#[test]
fn a_long_chain_of_unions_is_dropped_without_recursion() {
    let stream = stream();
    let mut all = launch(&stream).0;
    for _ in 0..100_000 {
        let next = CheckedLaunch::failed(IndexCheck {
            op: "test",
            index: 1,
            dim: 0,
            size: 0,
            location: Location::caller(),
        });
        let at = StreamOp { progress: Arc::clone(stream.progress()), op: stream.last_op() };
        all = CheckedLaunch::union([all, next], at);
    }
    std::thread::Builder::new().stack_size(64 << 10).spawn(|| drop(all)).unwrap().join().unwrap();
}

#[test]
fn only_launches_in_flight_are_kept() {
    let stream = stream();
    let mut all = launch(&stream).0;
    for i in 0..10_000 {
        let (next, _) = launch(&stream);
        all = stream.mailbox().union(&stream, stream.last_op(), vec![all, next]);
        stream.mailbox().watch(&stream);
        if i % 10 == 0 {
            // Completes the work without recording that it is complete.
            stream.raw().synchronize().unwrap();
        }
    }
    let kept = stream.mailbox().state().running.len();
    assert!(kept < 200, "{kept}");
}

#[test]
fn a_failure_is_reported_to_its_owner_only_until_the_owner_ends() {
    let stream = stream();
    let fail = |index| {
        let (launch, number) = launch(&stream);
        report(launch.slot().unwrap(), index, number);
    };
    fail(5);
    let reported = |stream: &Stream| match stream.synchronize() {
        Ok(()) => None,
        Err(error) => match error.kind() {
            ErrorKind::IndexCheck { index, .. } => Some(*index),
            _ => panic!("{error}"),
        },
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let nothing = reported(&stream);
            fail(6);
            nothing
        });
        assert_eq!(other.join().unwrap(), None);
        // A thread that works on behalf of this thread.
        let owner = CheckOwner::current();
        let helper = scope.spawn(move || owner.within(|| fail(7)));
        helper.join().unwrap();
    });
    let all = [(); 3].map(|()| reported(&stream));
    assert_eq!(all, [Some(5), Some(6), None], "this thread's failure, then the ended thread's");
    fail(8);
    assert_eq!(std::thread::scope(|s| s.spawn(|| reported(&stream)).join().unwrap()), None);
    assert_eq!([reported(&stream), reported(&stream)], [Some(8), None]);
}

#[test]
fn one_report_counts_for_all_failures_of_a_call() {
    let stream = stream();
    let call = || {
        let _call = CallScope::enter("test");
        [5, 6].map(|index| {
            let (launch, number) = launch(&stream);
            report(launch.slot().unwrap(), index, number);
            launch
        })
    };
    let failed: Vec<_> = (0..2 * MAX_REPORTED_CALLS).map(|_| call()).collect();
    stream.host_wait(stream.last_op()).unwrap();
    assert!(failed.iter().all(|[_, second]| second.take_failure().is_some()));
    // The owner remembers only the last `MAX_REPORTED_CALLS` calls. The first failure of an earlier call, which was
    // not taken, is therefore still reported.
    assert!(stream.synchronize().is_err());
    stream.synchronize().unwrap();
    let [first, second] = call();
    stream.host_wait(stream.last_op()).unwrap();
    assert_eq!(first.take_failure().map(|check| check.index), Some(5));
    stream.synchronize().unwrap();
    assert_eq!(second.take_failure().map(|check| check.index), Some(6));
    stream.synchronize().unwrap();
}

#[test]
fn a_replay_covers_the_earlier_replays_that_it_overlaps() {
    let devices = Devices::new(SimConfig::new(1).build()).unwrap();
    let stream = devices.get(0).unwrap().exclusive_stream(0).unwrap();
    let checks = Arc::new(CapturedChecks::default());
    for _ in 0..3 {
        checks.add(&stream, Site::here("test")).unwrap();
    }
    let replay = |stream: &Stream| {
        let replay = checks.begin(stream, stream.last_op() + 1).unwrap();
        run(stream);
        replay
    };
    let kernel = KernelSet::of;
    let absorbs = |a: &CheckedLaunch, b: &CheckedLaunch| {
        let mut both = a.clone();
        both.absorb(b).then_some(both)
    };
    let first = replay(&stream);
    let event = stream.record_event(None).unwrap();
    let second = replay(&stream);
    assert_eq!(absorbs(&first, &second).as_ref(), Some(&second));
    assert_eq!(absorbs(&second, &first).as_ref(), Some(&second));
    let [one, other] = [0, 1].map(|k| second.of_kernels(&kernel(k)));
    assert_eq!(absorbs(&one, &first), None, "`first` includes other kernels");
    assert_eq!(absorbs(&one, &first.of_kernels(&kernel(0))).as_ref(), Some(&one));
    let both = absorbs(&one, &other).unwrap();
    assert!(absorbs(&both, &first.of_kernels(&kernel(1))).is_some_and(|it| it == both));
    let union = stream.mailbox().union(&stream, stream.last_op(), vec![both, launch(&stream).0]);
    for input in [&one, &other, &first.of_kernels(&kernel(1))] {
        assert_eq!(absorbs(&union, input).as_ref(), Some(&union));
    }
    assert_eq!(absorbs(&union, &first), None);

    // The later replay is known to fail as soon as the earlier replay is known to have failed.
    checks.with_slot(1, |slot| report(slot, 7, REPLAYED));
    assert!(event.synchronize().is_err());
    assert_eq!(failed_index(&first), Some(7));
    assert_eq!(failed_index(&second), Some(7));
    assert_eq!(failed_index(&other), Some(7));
    assert_eq!(one.outcome(), CheckOutcome::Pending);
    assert_eq!(failed_index(&union), Some(7));
    let _ = stream.synchronize();
    assert_eq!((failed_index(&one), failed_index(&other)), (None, Some(7)));

    // A replay covers neither replays of an earlier period nor replays on another stream.
    let third = replay(&stream);
    assert!(absorbs(&third, &second).is_none());
    let apart = devices.get(0).unwrap().exclusive_stream(0).unwrap();
    assert!(absorbs(&replay(&apart), &third).is_none());
}

#[test]
fn failures_of_many_ended_threads_are_bounded() {
    let stream = stream();
    for _ in 0..2 * MAX_UNREPORTED {
        // The owner's thread ends only after its failure was recorded.
        std::thread::scope(|scope| {
            let ended = scope.spawn(|| {
                let (failed, number) = launch(&stream);
                report(failed.slot().unwrap(), 7, number);
                // Records the failure without reporting it.
                stream.host_wait(stream.last_op()).unwrap();
                assert_eq!(stream.mailbox().state().running.len(), 0);
            });
            ended.join().unwrap();
        });
        assert!(stream.mailbox().state().failed.len() <= MAX_UNREPORTED + 1);
    }
    assert!(stream.synchronize().is_err());
    stream.synchronize().unwrap();
}

#[test]
fn shared_inputs_of_unions_are_examined_once() {
    let (stream, other) = (stream(), stream());
    // This launch stays pending, because nothing waits for its stream.
    let (open, _) = launch(&other);
    let mut last = [open.clone(), open.clone(), open];
    for _ in 0..60 {
        let (own, _) = launch(&stream);
        let union = |a: &CheckedLaunch, b: &CheckedLaunch| {
            let at = StreamOp { progress: Arc::clone(stream.progress()), op: stream.last_op() };
            CheckedLaunch::union([a.clone(), b.clone(), own.clone()], at)
        };
        let [a, b, c] = &last;
        last = [union(b, c), union(a, c), union(a, b)];
        stream.synchronize().unwrap();
    }
    assert!(last.iter().all(|union| union.outcome() == CheckOutcome::Pending));
}
