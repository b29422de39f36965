//! The modules of the examples `replay` and `memory_map`, for the tests.
#![cfg(feature = "cuda")]
#![allow(dead_code, unreachable_pub)] // the tests use a part

#[path = "../../examples/replay/bytes.rs"]
pub(crate) mod bytes;
#[path = "../../examples/replay/check.rs"]
pub(crate) mod check;
#[path = "../../examples/replay/completion.rs"]
pub(crate) mod completion;
#[path = "../../examples/replay/device.rs"]
pub(crate) mod device;
#[path = "../../examples/replay/moe.rs"]
pub(crate) mod moe;
#[path = "../../examples/replay/policy.rs"]
pub(crate) mod policy;
#[path = "../../examples/replay/report.rs"]
pub(crate) mod report;
#[path = "../../examples/replay/run.rs"]
pub(crate) mod run;
#[path = "../../examples/replay/timeline.rs"]
pub(crate) mod timeline;
#[path = "../../examples/replay/trace.rs"]
pub(crate) mod trace;

pub(crate) use crate::common;
#[path = "../../examples/memory_map/map.rs"]
pub(crate) mod map;
#[path = "../../examples/memory_map/svg.rs"]
pub(crate) mod svg;
