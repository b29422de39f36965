//! Waits of streams for each other.

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
