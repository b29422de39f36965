//! Helpers for the programs: a rank, its memory, and a transcript.

use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use warpline_cuda_sys_safe::nccl::{Collective, UniqueId};
use warpline_cuda_sys_safe::owned::{Communicator, DeviceMemory, Stream};
use warpline_cuda_sys_safe::*;

/// Time limit of every wait.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) type Program = fn(&Rank, &mut Transcript) -> Result<()>;

/// The observations of a rank, line by line.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    pub(crate) lines: Vec<String>,
    right: usize,
}

impl Transcript {
    pub(crate) fn say(&mut self, what: &str, seen: impl std::fmt::Debug) {
        self.lines.push(format!("{what}: {seen:?}"));
    }

    /// Records the result of a call: `ok`, or the kind of its error.
    pub(crate) fn call<T>(&mut self, what: &str, result: Result<T>) {
        let seen = result.map_or_else(|error| kind(&error), |_| "ok".into());
        self.lines.push(format!("{what}: {seen}"));
    }

    /// Counts a correct value, and records a wrong one.
    pub(crate) fn check<T: PartialEq + std::fmt::Debug>(
        &mut self,
        what: impl FnOnce() -> String,
        got: &[T],
        expected: &[T],
    ) {
        if got == expected {
            self.right += 1;
        } else {
            self.lines.push(format!("{}: {got:?} instead of {expected:?}", what()));
        }
    }

    /// Records `right` if values were correct since the last tally, otherwise `not checked`.
    pub(crate) fn tally(&mut self, what: &str) {
        let right = std::mem::take(&mut self.right);
        self.lines.push(format!("{what}: {}", if right > 0 { "right" } else { "not checked" }));
    }
}

/// Describes an error: the library's status, the refused call, the driver's code, or the message.
pub(crate) fn kind(error: &DriverError) -> String {
    match error {
        DriverError::LibraryCall { status, .. } => status.clone(),
        DriverError::InvalidArgument { call, .. } => format!("{call} refused"),
        _ => error.code().map_or_else(|| error.to_string(), |code| code.name().into()),
    }
}

/// A barrier for ranks that are threads.
#[derive(Default)]
pub(crate) struct Meeting {
    arrived: Mutex<usize>,
    changed: Condvar,
}

impl Meeting {
    pub(crate) fn wait(&self, ranks: usize) {
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        *arrived += 1;
        let all = arrived.next_multiple_of(ranks);
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(arrived, LIMIT, |arrived| *arrived < all);
        let timed_out = waited.unwrap_or_else(PoisonError::into_inner).1.timed_out();
        assert!(!timed_out, "other ranks did not arrive");
    }
}

/// A rank, with a stream and memory for its inputs and outputs.
pub(crate) struct Rank {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) comm: Communicator,
    pub(crate) stream: Stream,
    pub(crate) memory: DeviceMemory,
    /// `None` if ranks are processes.
    pub(crate) meeting: Option<Arc<Meeting>>,
}

/// Size of a rank's memory, in bytes.
pub(crate) const MEMORY: usize = 1 << 18;

/// Offset of outputs that are not in place.
pub(crate) const RECV: usize = MEMORY / 2;

impl Rank {
    pub(crate) fn new(driver: &Arc<dyn Driver>, comm: Communicator) -> Result<Self> {
        let device = comm.device();
        let stream = stream(driver, device)?;
        let memory = DeviceMemory::new(driver, device, MEMORY)?;
        Ok(Self { driver: Arc::clone(driver), comm, stream, memory, meeting: None })
    }

    /// Returns the rank and the number of ranks.
    pub(crate) fn me(&self) -> (usize, usize) {
        (self.comm.rank(), self.comm.ranks())
    }

    pub(crate) fn at(&self, offset: usize) -> DevicePtr {
        self.memory.range(offset, 0).expect("within the memory")
    }

    pub(crate) fn put(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.put_from(&self.stream, offset, bytes)
    }

    pub(crate) fn put_from(&self, stream: &Stream, offset: usize, bytes: &[u8]) -> Result<()> {
        let src = CopyEnd::Host(NonNull::from(bytes).cast());
        self.copy(stream, self.end(offset), src, bytes.len())
    }

    pub(crate) fn get(&self, offset: usize, bytes: usize) -> Result<Vec<u8>> {
        self.get_from(&self.stream, offset, bytes)
    }

    pub(crate) fn get_from(&self, from: &Stream, offset: usize, bytes: usize) -> Result<Vec<u8>> {
        let mut out = vec![0u8; bytes];
        let dst = CopyEnd::Host(NonNull::from(&mut out[..]).cast());
        self.copy(from, dst, self.end(offset), bytes)?;
        Ok(out)
    }

    fn end(&self, offset: usize) -> CopyEnd {
        CopyEnd::Device { device: self.comm.device(), ptr: self.at(offset) }
    }

    fn copy(&self, stream: &Stream, dst: CopyEnd, src: CopyEnd, bytes: usize) -> Result<()> {
        let copy = Copy { dst, src, bytes };
        // SAFETY: the memory is alive. The call has finished with pageable memory when it returns.
        unsafe { self.driver.memcpy_async(&copy, stream.handle()) }
    }

    /// Enqueues a group on the rank's communicator and stream.
    pub(crate) fn enqueue(&self, calls: &[Collective]) -> Result<()> {
        self.enqueue_on(&self.comm, calls, &self.stream)
    }

    pub(crate) fn enqueue_on(
        &self,
        comm: &Communicator,
        calls: &[Collective],
        stream: &Stream,
    ) -> Result<()> {
        // SAFETY: the stream is alive, and the memory stays alive until the work is done or
        // aborted.
        unsafe { comm.enqueue(calls, stream.handle()) }
    }

    /// Waits for the other ranks, if ranks are threads.
    pub(crate) fn meet(&self) {
        if let Some(meeting) = &self.meeting {
            meeting.wait(self.comm.ranks());
        }
    }

    /// Creates an id on one rank and sends it to all.
    pub(crate) fn new_id(&self) -> Result<UniqueId> {
        let mut bytes = [0; UniqueId::BYTES];
        if self.comm.rank() == 0 {
            bytes = *self.driver.nccl()?.unique_id()?.as_bytes();
        }
        self.put(0, &bytes)?;
        let (send, dtype) = (self.at(0), nccl::NcclType::U8);
        let count = bytes.len();
        self.enqueue(&[Collective::Broadcast { send, recv: send, count, dtype, root: 0 }])?;
        bytes.copy_from_slice(&self.get(0, count)?);
        Ok(UniqueId::from_bytes(bytes))
    }

    /// Waits until the stream is idle, with a time limit.
    pub(crate) fn is_soon_idle(&self) -> Result<bool> {
        let began = Instant::now();
        while began.elapsed() < LIMIT {
            if self.stream.query()? {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(false)
    }
}

pub(crate) fn stream(driver: &Arc<dyn Driver>, device: usize) -> Result<Stream> {
    Stream::new(driver, device, StreamFlags { non_blocking: true, ..StreamFlags::default() })
}

/// Runs a program as one rank, and compares its transcript.
pub(crate) fn check(rank: &Rank, program: Program, expected: &[&str], on: &str) {
    let mut transcript = Transcript::default();
    let result = program(rank, &mut transcript);
    let (seen, who) =
        (transcript.lines, format!("rank {} of {} on {on}", rank.me().0, rank.me().1));
    if let Err(error) = result {
        panic!("{who}: {error}\nafter {seen:#?}");
    }
    assert_eq!(seen, expected, "{who}");
}

/// Converts bytes to numbers.
pub(crate) fn elements<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}
