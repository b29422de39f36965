//! Captures that a call invalidates, and the order in which a call checks for errors.

use super::Regression;
use super::captures::*;
use crate::step::Mode::*;
use crate::step::Step::*;
use crate::step::*;

const POOL: Id = 22;

fn memset(at: usize, width: usize, count: usize, stream: Id) -> Step {
    Memset { dst: Place::Buf { buf: BUF, at }, width, value: 7, count, stream }
}

fn nothing(dst: Id, src: Id, by: By) -> Step {
    let place = |buf| Place::Buf { buf, at: 0 };
    Step::Copy { dst: place(dst), src: place(src), bytes: 0, by }
}

fn refused(stream: Id) -> Step {
    LaunchRefused { stream, shape: BadShape::NoThreads }
}

/// Returns a step that invalidates the captures of this thread that are not relaxed.
fn invalidate() -> Step {
    PoolCreate { pool: POOL, device: 0 }
}

fn device() -> Step {
    MemAlloc { buf: BUF, device: 0, bytes: 128 }
}

fn other(mode: Mode) -> Vec<Step> {
    vec![BeginCapture { stream: OTHER, mode }]
}

fn other_status() -> Step {
    CaptureStatus { stream: OTHER }
}

pub(super) fn all() -> Vec<Regression> {
    let mut all = before_arguments();
    all.extend(invalidated_captures());
    all.extend(events());
    all.extend(pools());
    all
}

fn before_arguments() -> Vec<Regression> {
    let mut all = vec![
        Regression {
            name: "the error of an invalidated capture comes before that of bad arguments and before empty work",
            devices: 1,
            steps: after(
                vec![device()],
                true,
                ThreadLocal,
                vec![
                    invalidate(),
                    StreamPriority { stream: STREAM },
                    memset(1, 4, 2, STREAM),
                    memset(0, 1, 0, STREAM),
                    nothing(BUF, BUF, By::Stream(STREAM)),
                    refused(STREAM),
                ],
            ),
            results: &[
                "ok",
                "ok",
                "ok",
                UNSUPPORTED,
                INVALIDATED,
                INVALIDATED,
                INVALIDATED,
                INVALIDATED,
                INVALIDATED,
                "invalidated",
            ],
        },
        Regression {
            name: "the error of an invalidated capture comes before that of a wrong event device",
            devices: 2,
            steps: after(
                vec![EventCreate { event: EVENT, device: 1, timing: true, interprocess: false }],
                true,
                Global,
                vec![invalidate(), EventRecord { event: EVENT, stream: STREAM }],
            ),
            results: &["ok", "ok", "ok", UNSUPPORTED, INVALIDATED, "invalidated"],
        },
        Regression {
            name: "a misaligned memset does not invalidate a capture",
            devices: 1,
            steps: after(vec![device()], true, ThreadLocal, vec![memset(1, 4, 2, STREAM)]),
            results: &["ok", "ok", "ok", "INVALID_VALUE", "active"],
        },
    ];
    // Each of these calls runs on the default stream while a blocking stream is captured.
    let implicit = [
        ("the priority of the default stream cannot be queried", StreamPriority { stream: 0 }),
        ("an empty memset uses the default stream", memset(0, 1, 0, 0)),
        ("a memset at an odd address uses the default stream", memset(1, 2, 2, 0)),
        ("a copy of no bytes uses the default stream", nothing(BUF, BUF, By::Stream(0))),
        (
            "a synchronous copy of no bytes uses the default stream",
            nothing(BUF, BUF, By::Device(0)),
        ),
        ("a refused launch uses the default stream", refused(0)),
        ("the default stream cannot be captured", BeginCapture { stream: 0, mode: ThreadLocal }),
        ("the default stream cannot be synchronized", StreamSynchronize { stream: 0 }),
    ];
    all.extend(implicit.map(|(name, step)| Regression {
        name,
        devices: 1,
        steps: after(vec![device()], false, ThreadLocal, vec![step]),
        results: &["ok", "ok", "ok", IMPLICIT, "invalidated"],
    }));
    all
}

fn invalidated_captures() -> Vec<Regression> {
    let two = |first, second, non_blocking, steps: Vec<Step>| {
        let mut all = vec![device(), create(OTHER, non_blocking)];
        all.extend(other(first));
        let mut steps = steps;
        steps.push(other_status());
        after(all, non_blocking, second, steps)
    };
    vec![
        Regression {
            name: "synchronizing a captured stream invalidates only its own capture",
            devices: 1,
            steps: two(ThreadLocal, Global, true, vec![StreamSynchronize { stream: STREAM }]),
            results: &["ok", "ok", "ok", "ok", "ok", UNSUPPORTED, "active", "invalidated"],
        },
        Regression {
            name: "querying a captured stream invalidates only its own capture",
            devices: 1,
            steps: two(ThreadLocal, ThreadLocal, true, vec![StreamQuery { stream: OTHER }]),
            results: &["ok", "ok", "ok", "ok", "ok", UNSUPPORTED, "invalidated", "active"],
        },
        Regression {
            name: "using the default stream invalidates the captures of all blocking streams",
            devices: 1,
            steps: two(Relaxed, ThreadLocal, false, vec![memset(0, 1, 8, 0)]),
            results: &["ok", "ok", "ok", "ok", "ok", IMPLICIT, "invalidated", "invalidated"],
        },
    ]
}

fn events() -> Vec<Regression> {
    let record = EventRecord { event: EVENT, stream: STREAM };
    let untimed = |event| EventCreate { event, device: 0, timing: false, interprocess: false };
    let query = EventQuery { event: EVENT };
    let synchronize = EventSynchronize { event: EVENT };
    vec![
        Regression {
            name: "querying a captured event invalidates its capture in every mode",
            devices: 1,
            steps: after(
                vec![event(EVENT)],
                true,
                Global,
                vec![record.clone(), query, synchronize.clone()],
            ),
            results: &["ok", "ok", "ok", "ok", "CAPTURED_EVENT", "INVALID_VALUE", "invalidated"],
        },
        Regression {
            name: "synchronizing with an event of an ended capture invalidates no other capture",
            devices: 1,
            steps: after(
                vec![
                    event(EVENT),
                    create(OTHER, true),
                    BeginCapture { stream: OTHER, mode: Relaxed },
                    EventRecord { event: EVENT, stream: OTHER },
                    EndCapture { stream: OTHER, graph: GRAPH },
                ],
                true,
                ThreadLocal,
                vec![synchronize],
            ),
            results: &["ok", "ok", "ok", "ok", "ok", "ok", "ok", "INVALID_VALUE", "active"],
        },
        Regression {
            name: "a captured event has no elapsed time, and asking for one invalidates nothing",
            devices: 1,
            steps: after(
                vec![event(EVENT)],
                false,
                Global,
                vec![record.clone(), EventElapsed { start: EVENT, end: EVENT }],
            ),
            results: &["ok", "ok", "ok", "ok", "CAPTURED_EVENT", "active"],
        },
        Regression {
            name: "the error of an event without timing comes before that of a captured event",
            devices: 1,
            steps: after(
                vec![untimed(EVENT), untimed(EVENT + 1)],
                false,
                Relaxed,
                vec![record.clone(), EventElapsed { start: EVENT + 1, end: EVENT }],
            ),
            results: &["ok", "ok", "ok", "ok", "ok", "INVALID_HANDLE", "active"],
        },
        Regression {
            name: "an interprocess event cannot be recorded in a capture",
            devices: 1,
            steps: after(
                vec![EventCreate { event: EVENT, device: 0, timing: false, interprocess: true }],
                true,
                Global,
                vec![record],
            ),
            results: &["ok", "ok", "ok", UNSUPPORTED, "active"],
        },
    ]
}

fn pools() -> Vec<Regression> {
    let pool = || PoolCreate { pool: POOL, device: 0 };
    let alloc = |stream| AllocAsync { buf: HOST, pool: POOL, bytes: 64, stream };
    vec![
        Regression {
            name: "no pool memory can be allocated during a capture of another stream",
            devices: 1,
            steps: after(vec![pool(), create(OTHER, true)], true, Global, vec![alloc(OTHER)]),
            results: &["ok", "ok", "ok", "ok", UNSUPPORTED, "invalidated"],
        },
        Regression {
            name: "no memory can be allocated on the default stream during a capture",
            devices: 1,
            steps: after(vec![pool()], true, Global, vec![alloc(0)]),
            results: &["ok", "ok", "ok", UNSUPPORTED, "invalidated"],
        },
        Regression {
            name: "no memory can be freed on another stream during a capture",
            devices: 1,
            steps: after(
                vec![device(), create(OTHER, false)],
                true,
                ThreadLocal,
                vec![FreeAsync { buf: BUF, stream: OTHER }],
            ),
            results: &["ok", "ok", "ok", "ok", UNSUPPORTED, "invalidated"],
        },
        Regression {
            name: "pools cannot be changed during a capture",
            devices: 1,
            steps: after(
                vec![pool()],
                true,
                ThreadLocal,
                vec![PoolThreshold { pool: 22, bytes: 0 }],
            ),
            results: &["ok", "ok", "ok", UNSUPPORTED, "invalidated"],
        },
        Regression {
            name: "pools cannot be destroyed during a capture",
            devices: 1,
            steps: after(vec![pool()], true, ThreadLocal, vec![PoolDestroy { pool: POOL }]),
            results: &["ok", "ok", "ok", UNSUPPORTED, "invalidated"],
        },
    ]
}
