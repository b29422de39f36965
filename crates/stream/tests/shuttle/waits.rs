//! Waits of streams for each other.

use std::sync::{Arc, Mutex};

use crate::{RunLog, check, fake_devices, streams, task, together};

#[test]
fn a_wait_covers_its_operation_while_others_submit_work() {
    check(|| {
        let devices = fake_devices(1);
        let [producer, first, second] = streams(&devices);
        let ran = RunLog::default();
        together([(10, first), (20, second)].map(|(tag, consumer)| {
            let (ran, producer) = (ran.clone(), producer.clone());
            task(move || {
                for tag in [tag, tag + 2] {
                    let op = ran.work(&producer, tag);
                    consumer.wait_for(&producer, op).unwrap();
                    assert!(consumer.is_ordered_after(&producer, op).unwrap());
                    ran.work(&consumer, tag + 1);
                }
            })
        }));
        devices.get(0).unwrap().synchronize().unwrap();
        [10, 12, 20, 22].iter().for_each(|tag| ran.assert_order(*tag, tag + 1));
    });
}

#[test]
fn a_wait_is_skipped_only_if_another_wait_is_enqueued() {
    check(|| {
        let devices = fake_devices(1);
        let [producer, consumer] = streams(&devices);
        let ran = RunLog::default();
        let op = ran.work(&producer, 0);
        together([1, 2].map(|tag| {
            let (ran, producer, consumer) = (ran.clone(), producer.clone(), consumer.clone());
            task(move || {
                consumer.wait_for(&producer, op).unwrap();
                ran.work(&consumer, tag);
            })
        }));
        consumer.synchronize().unwrap();
        ran.assert_order(0, 1);
        ran.assert_order(0, 2);
    });
}

#[test]
fn order_passes_through_a_third_stream() {
    check(|| {
        let devices = fake_devices(1);
        let [first, second, third] = streams(&devices);
        let ran = RunLog::default();
        let op = ran.work(&first, 0);
        let passes = {
            let (first, second) = (first.clone(), second.clone());
            move || second.wait_for(&first, op).unwrap()
        };
        let asks = {
            let (ran, first, third) = (ran.clone(), first.clone(), third.clone());
            move || {
                third.wait_stream(&second).unwrap();
                let claimed = third.is_ordered_after(&first, op).unwrap();
                ran.work(&third, 1);
                third.synchronize().unwrap();
                if claimed {
                    ran.assert_order(0, 1);
                }
            }
        };
        together([task(passes), task(asks)]);
    });
}

#[test]
fn two_streams_wait_for_each_other_without_a_deadlock() {
    check(|| {
        let devices = fake_devices(1);
        let [first, second] = streams(&devices);
        let ran = RunLog::default();
        together([(10, &first, &second), (20, &second, &first)].map(|(tag, own, other)| {
            let (ran, own, other) = (ran.clone(), own.clone(), other.clone());
            task(move || {
                ran.work(&own, tag);
                own.wait_for(&other, other.last_op()).unwrap();
                let op = ran.work(&own, tag + 1);
                other.wait_for(&own, op).unwrap();
                own.wait_stream(&other).unwrap();
                own.synchronize().unwrap();
                assert!(ran.has(tag + 1) && own.is_known_done(op));
            })
        }));
    });
}

#[test]
fn a_pooled_event_has_one_user_at_a_time() {
    check(|| {
        let devices = fake_devices(1);
        let [a, b, c, d] = streams(&devices);
        let ran = RunLog::default();
        together([(10, a, b), (20, c, d)].map(|(tag, from, to)| {
            let ran = ran.clone();
            task(move || {
                for tag in [tag, tag + 2] {
                    ran.work(&from, tag);
                    to.wait_stream(&from).unwrap();
                    ran.work(&to, tag + 1);
                }
            })
        }));
        devices.get(0).unwrap().synchronize().unwrap();
        [10, 12, 20, 22].iter().for_each(|tag| ran.assert_order(*tag, tag + 1));
    });
}

/// Two streams wait late for operations of a third stream, while a thread submits more work to the third stream and
/// makes it wait too.
#[test]
fn a_late_wait_covers_its_operation_and_all_that_it_claims() {
    check(|| {
        let devices = fake_devices(1);
        let [producer, awaited, first, second] = streams(&devices);
        let ran = RunLog::default();
        let before = [1, 2].map(|tag| ran.work(&producer, tag));
        // A late wait, so that an event follows each later operation.
        second.wait_for(&producer, before[0]).unwrap();
        let ops = Arc::new(Mutex::new(before.to_vec()));
        let submits = {
            let (ran, producer, ops) = (ran.clone(), producer.clone(), Arc::clone(&ops));
            move || {
                for turn in 0..4 {
                    let tag = producer.last_op() + 1;
                    let op = ran.work(&producer, tag);
                    assert_eq!(op, tag, "no other thread submits work to the stream");
                    ops.lock().unwrap().push(op);
                    if turn == 1 {
                        let op = ran.work(&awaited, 50);
                        producer.wait_for(&awaited, op).unwrap();
                    }
                }
            }
        };
        let claims = Arc::new(Mutex::new(Vec::new()));
        let waits = [(100, first), (200, second)].map(|(tag, consumer)| {
            let (ran, producer) = (ran.clone(), producer.clone());
            let (ops, claims) = (Arc::clone(&ops), Arc::clone(&claims));
            task(move || {
                for tag in [tag, tag + 1] {
                    let known = ops.lock().unwrap().clone();
                    let op = known[known.len() - 1];
                    shuttle::thread::yield_now();
                    consumer.wait_for(&producer, op).unwrap();
                    let claimed = |op: &u64| consumer.is_ordered_after(&producer, *op).unwrap();
                    let claimed: Vec<_> = known.into_iter().filter(claimed).collect();
                    assert!(claimed.contains(&op));
                    ran.work(&consumer, tag);
                    claims.lock().unwrap().extend(claimed.into_iter().map(|op| (op, tag)));
                }
            })
        });
        together(waits.into_iter().chain([task(submits)]));
        devices.get(0).unwrap().synchronize().unwrap();
        claims.lock().unwrap().iter().for_each(|(op, tag)| ran.assert_order(*op, *tag));
    });
}
