//! The plan of an ending: the objects that a process has alive, and the place and kind of its end. The parent and the
//! process compute the same plan from a seed.

use std::time::Duration;

/// Exit code of [`Ending::Exit`].
pub(super) const CODE: i32 = 7;
/// Message of planned panics.
pub(super) const PLANNED: &str = "a planned panic";
/// Exit code of a program whose `main` panics.
pub(super) const FAILED: i32 = 101;

/// Pseudo-random numbers (SplitMix64).
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end as u64) as usize
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// A kind of object that is alive at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    CpuTensors,
    /// Tensors of several streams with work in flight.
    Streams,
    /// Page-locked tensors and copies that do not block.
    Pinned,
    Events,
    /// A graph with replays in flight.
    Graph,
    /// An iteration of a loader with workers.
    Loader,
    /// Threads that compute until the process ends.
    BusyThreads,
    /// Tensors of GPUs and of the host in shared memory.
    Shared,
    /// A channel whose other end is in this process.
    Channel,
    /// A channel to another process, which has a tensor of this one.
    Peer,
    /// The host of a store, and a client with a thread that waits for a key.
    Store,
    /// A result with a graph of gradients and hooks.
    Gradients,
    /// A process group with a collective in flight.
    Group,
}

const PARTS: [Part; 13] = [
    Part::CpuTensors,
    Part::Streams,
    Part::Pinned,
    Part::Events,
    Part::Graph,
    Part::Loader,
    Part::BusyThreads,
    Part::Shared,
    Part::Channel,
    Part::Peer,
    Part::Store,
    Part::Gradients,
    Part::Group,
];

/// The owner of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Local,
    Static,
    /// A thread-local of the main thread.
    ThreadLocal,
    /// A thread-local of a thread that lives as long as the process.
    OtherThread,
    /// A thread-local of a thread that has ended.
    EndedThread,
}

const OWNERS: [Owner; 6] = [
    Owner::Local,
    Owner::Local,
    Owner::Static,
    Owner::ThreadLocal,
    Owner::OtherThread,
    Owner::EndedThread,
];

/// The code that ends the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Main,
    /// Another thread. The main thread joins it.
    Thread,
    /// The body of a capture.
    Capture,
    /// A hook of a backward pass.
    Hook,
    /// A worker of a loader.
    Worker,
}

const PLACES: [Place; 7] = [
    Place::Main,
    Place::Main,
    Place::Main,
    Place::Thread,
    Place::Capture,
    Place::Hook,
    Place::Worker,
];

/// The end of a forked child. Its parent waits for it, and then returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForkedEnding {
    /// Returns from the place, and from there from `main`.
    Return,
    Exit,
    /// `_exit`, which runs no destructors.
    EndNow,
    Panic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Return,
    Exit,
    Abort,
    Panic,
    /// A destructor panics after `main` has returned.
    DropPanics,
    /// A destructor panics while a panic unwinds.
    PanicsTwice,
    /// The process sends itself a signal.
    Raise(i32),
    /// The parent sends a signal this long after the start.
    Signalled(i32, Duration),
    /// Another program replaces this one.
    Exec,
    Fork(ForkedEnding),
}

/// The end of a process as its parent sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Code(i32),
    Signal(i32),
}

#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Schedule of simulated devices.
    pub(super) schedule: String,
    /// Whether the objects are in a runtime of their own, which is dropped, or in the runtime of the process.
    pub(super) own_runtime: bool,
    pub(super) parts: Vec<(Part, Owner)>,
    pub(super) place: Place,
    pub(super) ending: Ending,
}

impl Plan {
    pub(super) fn new(seed: u64) -> Self {
        let mut numbers = Numbers(seed);
        let seeded = format!("seed={}", numbers.below(1000));
        let schedule = numbers.of(&["lazy", "lazy", "eager", "blocking", &seeded]).to_owned();
        let own_runtime = numbers.below(3) == 0;
        let count = numbers.below(5);
        let parts = (0..count).map(|_| (numbers.of(&PARTS), numbers.of(&OWNERS))).collect();
        let ending = ending(&mut numbers);
        let place = match ending {
            // Destructors of the main thread's values.
            Ending::DropPanics | Ending::PanicsTwice => Place::Main,
            // The thread to which a forked worker would return does not exist in the child.
            Ending::Fork(ForkedEnding::Return | ForkedEnding::Panic) => {
                numbers.of(&[Place::Main, Place::Main, Place::Thread, Place::Capture, Place::Hook])
            }
            _ => numbers.of(&PLACES),
        };
        Self { schedule, own_runtime, parts, place, ending }
    }

    /// Returns the expected end of the process.
    pub(super) fn status(&self) -> Status {
        match self.ending {
            Ending::Return | Ending::Exec | Ending::Fork(_) => Status::Code(0),
            Ending::Exit => Status::Code(CODE),
            Ending::Panic => self.status_of_panic(),
            Ending::DropPanics => Status::Code(FAILED),
            Ending::Abort | Ending::PanicsTwice => Status::Signal(libc::SIGABRT),
            Ending::Raise(signal) | Ending::Signalled(signal, _) => Status::Signal(signal),
        }
    }

    /// Returns the expected end of the forked child.
    pub(super) fn status_of_forked(&self, ending: ForkedEnding) -> Status {
        match ending {
            ForkedEnding::Return => Status::Code(0),
            ForkedEnding::Exit | ForkedEnding::EndNow => Status::Code(CODE),
            ForkedEnding::Panic => self.status_of_panic(),
        }
    }

    fn status_of_panic(&self) -> Status {
        match self.place {
            Place::Main | Place::Capture | Place::Hook => Status::Code(FAILED),
            Place::Thread | Place::Worker => Status::Code(0),
        }
    }

    /// Returns whether a line of the process's standard error belongs to the plan.
    pub(super) fn says(&self, line: &str) -> bool {
        let panics = matches!(
            self.ending,
            Ending::Panic
                | Ending::DropPanics
                | Ending::PanicsTwice
                | Ending::Fork(ForkedEnding::Panic)
        );
        // The standard library's messages before it aborts.
        let aborts = line.contains("library/core/src/panicking.rs")
            || line.starts_with("panic in a destructor during cleanup")
            || line.starts_with("thread caused non-unwinding panic");
        panics && line == PLANNED || self.ending == Ending::PanicsTwice && aborts
    }
}

/// Signals that the parent may send.
pub(super) const SIGNALS: [i32; 5] =
    [libc::SIGTERM, libc::SIGINT, libc::SIGKILL, libc::SIGHUP, libc::SIGQUIT];

fn ending(numbers: &mut Numbers) -> Ending {
    match numbers.below(14) {
        0 | 1 => Ending::Return,
        2 | 3 => Ending::Exit,
        4 => Ending::Abort,
        5 | 6 => Ending::Panic,
        7 => Ending::DropPanics,
        8 => Ending::PanicsTwice,
        9 => Ending::Raise(numbers.of(&[libc::SIGSEGV, libc::SIGBUS, libc::SIGTERM])),
        10 => {
            let after = Duration::from_millis(numbers.below(150) as u64);
            Ending::Signalled(numbers.of(&SIGNALS), after)
        }
        11 => Ending::Exec,
        _ => Ending::Fork(numbers.of(&[
            ForkedEnding::Return,
            ForkedEnding::Exit,
            ForkedEnding::EndNow,
            ForkedEnding::Panic,
        ])),
    }
}
