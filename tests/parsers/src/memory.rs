//! Traces that the allocator's tools replay, and snapshots of the allocator.

use serde::Deserialize;
use serde_pickle::DeOptions;
use warpline_alloc::{AllocatorConfig, CudaAllocator, CudaBackend, TraceConfig};
use warpline_cuda_sys_safe::owned::Stream;

use crate::text::DRIVER;

#[allow(dead_code, unreachable_pub)] // a module of the example `replay`
#[path = "../../../crates/alloc/examples/replay/moe.rs"]
mod moe;
/// The reader of traces of the example `replay`. Uses [`flate2::read::MultiGzDecoder`] and [`thiserror::Error`].
#[allow(dead_code, unreachable_pub)]
#[path = "../../../crates/alloc/examples/replay/trace.rs"]
mod trace;

use trace::{Op, Trace};

/// Reads a trace. Each operation of a valid trace uses a slot and a stream of the trace.
pub(crate) fn trace(input: &[u8]) {
    // A small compressed file may hold a long text.
    match Trace::read_at_most(8 * input.len() as u64, "input.csv", input) {
        Ok(trace) => {
            for op in &trace.ops {
                match *op {
                    Op::Malloc { slot, stream, .. } => {
                        assert!(
                            (slot as usize) < trace.slots
                                && (stream as usize) < trace.streams.len()
                        );
                    }
                    Op::Free { slot } => assert!((slot as usize) < trace.slots),
                }
            }
        }
        Err(error) => drop(error.to_string()),
    }
}

/// Writes the snapshot of an allocator after the steps of the input, one a line, and reads both formats. A step is a
/// size to allocate (`1024`), a free (`-`), the text of an annotation (`=text`), or metadata (any other text).
pub(crate) fn snapshot(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let backend = CudaBackend::new(DRIVER.clone(), 0);
    let allocator = CudaAllocator::new(backend, AllocatorConfig::default());
    let stream = Stream::default_of(&DRIVER, 0);
    allocator.record_memory_history(Some(TraceConfig::default()));
    let (mut blocks, mut annotations) = (Vec::new(), Vec::new());
    for step in text.split('\n') {
        if let Ok(size) = step.parse::<u32>() {
            blocks.extend(allocator.malloc(size as usize, &stream).ok());
        } else if step == "-" {
            blocks.pop();
        } else if let Some(annotation) = step.strip_prefix('=') {
            allocator.annotate(annotation);
            annotations.push(annotation);
        } else {
            allocator.set_memory_metadata(step);
        }
    }
    let snapshot = allocator.snapshot();
    let (mut json, mut pickle) = (Vec::new(), Vec::new());
    snapshot.write_json(&mut json).expect("JSON");
    snapshot.write_pickle(&mut pickle).expect("a pickle");
    let json: Written = serde_json::from_slice(&json).expect("valid JSON");
    let pickle = serde_pickle::from_slice::<Written>(&pickle, DeOptions::new());
    for written in [json, pickle.expect("a valid pickle")] {
        let names = written.external_annotations.iter().map(|annotation| &*annotation.name);
        assert!(names.eq(annotations.iter().copied()), "{annotations:?}");
    }
}

/// The part of a written snapshot that is text of the program.
#[derive(Deserialize)]
struct Written {
    external_annotations: Vec<Annotation>,
}

#[derive(Deserialize)]
struct Annotation {
    name: String,
}
