//! The parsers of Warpline on hostile input. `tests/fuzz` runs the targets under a fuzzer, and the test `corpora` runs
//! them on the committed inputs. A target fails by a panic, or by taking more memory than its limit.

mod channel;
mod einsum;
mod files;
mod memory;
mod peak;
mod ptx;
mod scratch;
mod store;
mod text;

use std::sync::{LazyLock, Mutex, PoisonError};

pub use peak::PeakAllocator;

#[global_allocator]
static ALLOCATOR: PeakAllocator = PeakAllocator::new();

/// A parser with the limit on its memory.
#[derive(Debug)]
pub struct Target {
    /// Name of the target, of its fuzzer and of its corpus.
    pub name: &'static str,
    parse: fn(&[u8]),
    /// Allowed bytes of memory per byte of input.
    factor: usize,
    /// Allowed bytes of memory beyond those.
    constant: usize,
}

const fn target(name: &'static str, parse: fn(&[u8]), factor: usize, constant: usize) -> Target {
    Target { name, parse, factor, constant }
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// All targets. The constants cover buffers of fixed size, errors with their messages, threads and servers.
pub const TARGETS: [Target; 13] = [
    target("allocator_options", text::allocator_options, 8, 128 * KIB),
    target("channel", channel::receive, 16, 512 * KIB),
    target("device", text::device, 4, 4 * KIB),
    target("disk_cache", files::disk_cache, 4, 8 * KIB),
    // The sizes of the operands are bounded, and so is the result.
    target("einsum", einsum::einsum, 64, MIB),
    target("ptx", ptx::ptx, 16, 8 * KIB),
    target("safetensors", files::safetensors, 32, 128 * KIB),
    target("settings", text::settings, 16, 4 * MIB),
    // A step of two bytes makes an entry of the history, which is kept twice and written twice.
    target("snapshot", memory::snapshot, 2048, 512 * KIB),
    target("store_client", store::client, 8, 32 * KIB),
    target("store_file", store::file, 32, 32 * KIB),
    target("store_server", store::server, 32, 64 * KIB),
    // A compressed trace is read up to eight times its size.
    target("trace", memory::trace, 512, 256 * KIB),
];

impl Target {
    /// Runs the parser on `input`.
    ///
    /// # Panics
    /// If the parser panics, or takes more memory than the limit of the target.
    pub fn run(&self, input: &[u8]) {
        // One target at a time, because the allocator counts the memory of all threads.
        static RUNNING: Mutex<()> = Mutex::new(());
        let _running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = ALLOCATOR.peak_during(|| (self.parse)(input));
        let limit = self.factor * input.len() + self.constant;
        let (name, bytes) = (self.name, input.len());
        assert!(
            taken <= limit,
            "{name} took {taken} bytes of memory for {bytes}; the limit is {limit}"
        );
    }
}

/// Runs the target of this name on `input`. The first call also runs the target on an empty input, whose memory is not
/// limited, because some state is created on first use.
///
/// # Panics
/// If the target fails, or if there is no such target.
pub fn run(name: &str, input: &[u8]) {
    static USED: LazyLock<Mutex<Vec<&'static str>>> = LazyLock::new(Mutex::default);
    let Some(target) = TARGETS.iter().find(|target| target.name == name) else {
        panic!("there is no target {name}");
    };
    let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
    if !used.contains(&target.name) {
        used.push(target.name);
        (target.parse)(&[]);
    }
    drop(used);
    target.run(input);
}
