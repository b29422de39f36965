//! Captures: calls that a capture allows or forbids, and their errors.

use super::Regression;
use crate::step::Mode::*;
use crate::step::Step::*;
use crate::step::*;

pub(super) const STREAM: Id = 9;
pub(super) const OTHER: Id = 10;
pub(super) const BUF: Id = 20;
pub(super) const HOST: Id = 21;
pub(super) const EVENT: Id = 30;
pub(super) const GRAPH: Id = 40;
pub(super) const EXEC: Id = 41;

pub(super) fn create(stream: Id, non_blocking: bool) -> Step {
    StreamCreate { stream, device: 0, non_blocking, priority: 0 }
}

pub(super) fn begin(mode: Mode) -> Step {
    BeginCapture { stream: STREAM, mode }
}

pub(super) fn status() -> Step {
    CaptureStatus { stream: STREAM }
}

pub(super) fn event(event: Id) -> Step {
    EventCreate { event, device: 0, timing: true, interprocess: false }
}

pub(super) fn copy(dst: Id, src: Id, by: By) -> Step {
    let place = |buf, at| Place::Buf { buf, at };
    Step::Copy { dst: place(dst, 0), src: place(src, 64), bytes: 64, by }
}

/// Returns a program that begins a capture and then runs `steps`.
pub(super) fn captured(non_blocking: bool, mode: Mode, steps: Vec<Step>) -> Vec<Step> {
    let mut all = vec![create(STREAM, non_blocking), begin(mode)];
    all.extend(steps);
    all.push(status());
    all
}

/// Returns a program that runs `made` before the capture begins.
pub(super) fn after(
    made: Vec<Step>,
    non_blocking: bool,
    mode: Mode,
    steps: Vec<Step>,
) -> Vec<Step> {
    made.into_iter().chain(captured(non_blocking, mode, steps)).collect()
}

pub(super) const UNSUPPORTED: &str = "STREAM_CAPTURE_UNSUPPORTED";
pub(super) const IMPLICIT: &str = "STREAM_CAPTURE_IMPLICIT";
pub(super) const INVALIDATED: &str = "STREAM_CAPTURE_INVALIDATED";

pub(super) fn all() -> Vec<Regression> {
    let mut all = unsafe_calls();
    all.extend(events());
    all.extend(copies());
    all.extend(refused_work());
    all
}

fn unsafe_calls() -> Vec<Regression> {
    let pool = || PoolCreate { pool: 22, device: 0 };
    vec![
        Regression {
            name: "pools cannot be created during a capture, valid or invalidated",
            devices: 1,
            steps: captured(true, Global, vec![pool(), pool()]),
            results: &["ok", "ok", UNSUPPORTED, UNSUPPORTED, "invalidated"],
        },
        Regression {
            name: "other streams cannot be synchronized during a capture",
            devices: 1,
            steps: after(
                vec![create(OTHER, true)],
                false,
                ThreadLocal,
                vec![StreamSynchronize { stream: OTHER }],
            ),
            results: &["ok", "ok", "ok", UNSUPPORTED, "invalidated"],
        },
        Regression {
            name: "other streams cannot be queried during a capture",
            devices: 1,
            steps: after(
                vec![create(OTHER, true)],
                false,
                Global,
                vec![StreamQuery { stream: OTHER }],
            ),
            results: &["ok", "ok", "ok", UNSUPPORTED, "invalidated"],
        },
        Regression {
            name: "other streams can be synchronized and queried during a relaxed capture",
            devices: 1,
            steps: after(
                vec![create(OTHER, true)],
                false,
                Relaxed,
                vec![StreamSynchronize { stream: OTHER }, StreamQuery { stream: OTHER }, pool()],
            ),
            results: &["ok", "ok", "ok", "ok", "true", "ok", "active"],
        },
        Regression {
            name: "graphs cannot be instantiated during a capture, but can be destroyed",
            devices: 1,
            steps: after(
                vec![
                    create(OTHER, true),
                    BeginCapture { stream: OTHER, mode: Relaxed },
                    EndCapture { stream: OTHER, graph: GRAPH },
                ],
                false,
                ThreadLocal,
                vec![Instantiate { graph: GRAPH, exec: EXEC }, GraphDestroy { graph: GRAPH }],
            ),
            results: &["ok", "ok", "ok", "ok", "ok", UNSUPPORTED, "ok", "invalidated"],
        },
        Regression {
            name: "a device is not its own peer, even during a capture",
            devices: 1,
            steps: captured(true, ThreadLocal, vec![PeerEnable { device: 0, peer: 0 }]),
            results: &["ok", "ok", "PEER_ACCESS_UNSUPPORTED", "active"],
        },
        Regression {
            name: "peer access cannot be enabled during a capture on another device",
            devices: 2,
            steps: vec![
                StreamCreate { stream: STREAM, device: 1, non_blocking: true, priority: 0 },
                begin(Global),
                PeerEnable { device: 0, peer: 1 },
                status(),
            ],
            results: &["ok", "ok", UNSUPPORTED, "invalidated"],
        },
        Regression {
            name: "memory can be mapped and unmapped during a capture",
            devices: 1,
            steps: captured(
                false,
                Global,
                vec![
                    Reserve { range: 23, device: 0, pages: 2, odd: 0 },
                    Create { memory: 24, device: 0, pages: 1, odd: 0 },
                    Map { range: 23, page: 0, at: 0, pages: 1, offset: 0, memory: 24 },
                    SetAccess {
                        range: 23,
                        page: 0,
                        pages: 1,
                        device: 0,
                        access: Access::ReadWrite,
                    },
                    Release { memory: 24 },
                ],
            ),
            results: &["ok", "ok", "ok", "ok", "ok", "ok", "ok", "active"],
        },
    ]
}

fn events() -> Vec<Regression> {
    let record = |event, stream| EventRecord { event, stream };
    let wait = |stream, event| EventWait { stream, event };
    vec![
        Regression {
            name: "an event of an ended capture can be neither waited for nor timed, until it is recorded again",
            devices: 1,
            steps: vec![
                create(STREAM, false),
                create(OTHER, true),
                event(EVENT),
                begin(Relaxed),
                record(EVENT, STREAM),
                EndCapture { stream: STREAM, graph: GRAPH },
                wait(OTHER, EVENT),
                EventElapsed { start: EVENT, end: EVENT },
                record(EVENT, OTHER),
                wait(STREAM, EVENT),
            ],
            results: &[
                "ok",
                "ok",
                "ok",
                "ok",
                "ok",
                "ok",
                "INVALID_VALUE",
                "INVALID_VALUE",
                "ok",
                "ok",
            ],
        },
        Regression {
            name: "an event of an invalidated capture can be neither queried nor timed",
            devices: 1,
            steps: after(
                vec![create(OTHER, true), event(EVENT)],
                true,
                Relaxed,
                vec![
                    record(EVENT, STREAM),
                    wait(OTHER, EVENT),
                    StreamQuery { stream: OTHER },
                    EventQuery { event: EVENT },
                    EventElapsed { start: EVENT, end: EVENT },
                ],
            ),
            results: &[
                "ok",
                "ok",
                "ok",
                "ok",
                "ok",
                "ok",
                UNSUPPORTED,
                "INVALID_VALUE",
                "INVALID_VALUE",
                "invalidated",
            ],
        },
        Regression {
            name: "the default stream cannot wait for an event while a blocking stream is captured",
            devices: 1,
            steps: after(vec![event(EVENT)], false, Global, vec![wait(0, EVENT)]),
            results: &["ok", "ok", "ok", IMPLICIT, "invalidated"],
        },
        Regression {
            name: "streams of an invalidated capture cannot wait for an event, even one that was never recorded",
            devices: 1,
            steps: after(
                vec![
                    create(OTHER, true),
                    event(EVENT),
                    event(EVENT + 1),
                    BeginCapture { stream: OTHER, mode: ThreadLocal },
                ],
                true,
                Relaxed,
                vec![record(EVENT, STREAM), wait(OTHER, EVENT), wait(STREAM, EVENT + 1)],
            ),
            results: &[
                "ok",
                "ok",
                "ok",
                "ok",
                "ok",
                "ok",
                "ok",
                "STREAM_CAPTURE_MERGE",
                INVALIDATED,
                "invalidated",
            ],
        },
        Regression {
            name: "a capture cannot wait for an interprocess event",
            devices: 1,
            steps: after(
                vec![EventCreate { event: EVENT, device: 0, timing: false, interprocess: true }],
                false,
                ThreadLocal,
                vec![wait(STREAM, EVENT)],
            ),
            results: &["ok", "ok", "ok", UNSUPPORTED, "invalidated"],
        },
    ]
}

fn copies() -> Vec<Regression> {
    let device = || MemAlloc { buf: BUF, device: 0, bytes: 128 };
    let pinned = || HostAlloc { buf: HOST, device: 0, bytes: 128 };
    let pageable = |buf| Pageable { buf, bytes: 128 };
    let now = By::Device(0);
    vec![
        Regression {
            name: "a synchronous copy is refused while a blocking stream is captured",
            devices: 1,
            steps: after(vec![device()], false, ThreadLocal, vec![copy(BUF, BUF, now)]),
            results: &["ok", "ok", "ok", IMPLICIT, "invalidated"],
        },
        Regression {
            name: "a synchronous copy is allowed while a non-blocking stream is captured",
            devices: 1,
            steps: after(
                vec![device(), pinned(), pageable(22)],
                true,
                Global,
                vec![copy(HOST, 22, now), copy(BUF, 22, now), copy(HOST, BUF, now)],
            ),
            results: &["ok", "ok", "ok", "ok", "ok", "ok", "ok", "ok", "active"],
        },
        Regression {
            name: "copies from and to pageable memory can be captured",
            devices: 1,
            steps: after(
                vec![device(), pinned(), pageable(22), pageable(23)],
                true,
                Global,
                vec![
                    copy(HOST, 22, By::Stream(STREAM)),
                    copy(BUF, 22, By::Stream(STREAM)),
                    copy(23, BUF, By::Stream(STREAM)),
                ],
            ),
            results: &["ok", "ok", "ok", "ok", "ok", "ok", "ok", "ok", "ok", "active"],
        },
        Regression {
            name: "copies between devices cannot be captured",
            devices: 2,
            steps: after(
                vec![device(), MemAlloc { buf: 22, device: 1, bytes: 128 }],
                false,
                ThreadLocal,
                vec![copy(BUF, 22, By::Stream(STREAM))],
            ),
            results: &["ok", "ok", "ok", "ok", UNSUPPORTED, "invalidated"],
        },
    ]
}

fn refused_work() -> Vec<Regression> {
    let executable = || {
        vec![
            create(OTHER, true),
            BeginCapture { stream: OTHER, mode: Relaxed },
            EndCapture { stream: OTHER, graph: GRAPH },
            Instantiate { graph: GRAPH, exec: EXEC },
        ]
    };
    let memset = |stream| {
        let dst = Place::Buf { buf: BUF, at: 0 };
        Memset { dst, width: 1, value: 7, count: 64, stream }
    };
    vec![
        Regression {
            name: "a refused launch invalidates the capture",
            devices: 1,
            steps: captured(
                true,
                Relaxed,
                vec![LaunchRefused { stream: STREAM, shape: BadShape::NoBlocks }],
            ),
            results: &["ok", "ok", "INVALID_VALUE", "invalidated"],
        },
        Regression {
            name: "graphs cannot be launched in a capture, valid or invalidated",
            devices: 1,
            steps: after(
                executable(),
                false,
                ThreadLocal,
                vec![
                    GraphLaunch { exec: EXEC, stream: STREAM },
                    GraphLaunch { exec: EXEC, stream: STREAM },
                ],
            ),
            results: &["ok", "ok", "ok", "ok", "ok", "ok", UNSUPPORTED, UNSUPPORTED, "invalidated"],
        },
        Regression {
            name: "host functions cannot be captured, in a valid or invalidated capture",
            devices: 1,
            steps: after(
                vec![MemAlloc { buf: BUF, device: 0, bytes: 64 }],
                false,
                ThreadLocal,
                vec![
                    HostFunction { stream: STREAM, panics: false },
                    status(),
                    memset(0),
                    HostFunction { stream: STREAM, panics: false },
                    memset(STREAM),
                ],
            ),
            results: &[
                "ok",
                "ok",
                "ok",
                UNSUPPORTED,
                "active",
                IMPLICIT,
                UNSUPPORTED,
                INVALIDATED,
                "invalidated",
            ],
        },
    ]
}
