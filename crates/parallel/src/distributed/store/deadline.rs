//! Deadlines that bound all steps of a call.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Time limit of a call that takes no timeout.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(30);

thread_local! {
    /// Deadline of this thread's calls that take no timeout.
    static CALLS: Cell<Deadline> = const { Cell::new(Deadline(None)) };
}

/// The time at which a call must end. `None`: beyond the range of the clock.
#[derive(Clone, Copy, Debug)]
pub(in crate::distributed) struct Deadline(Option<Instant>);

impl Deadline {
    pub(in crate::distributed) fn after(timeout: Duration) -> Self {
        Self(Instant::now().checked_add(timeout))
    }

    /// Returns the deadline of a call that takes no timeout.
    pub(super) fn of_call() -> Self {
        CALLS.get().at_most(CALL_TIMEOUT)
    }

    /// Runs `f`. For the stores of this crate, this deadline bounds each call in `f` that takes no timeout, such as
    /// `set`.
    pub(in crate::distributed) fn bound<R>(self, f: impl FnOnce() -> R) -> R {
        struct RestoreDeadline(Deadline);
        impl Drop for RestoreDeadline {
            fn drop(&mut self) {
                CALLS.set(self.0);
            }
        }
        let _restore = RestoreDeadline(CALLS.replace(self));
        f()
    }

    /// Returns the remaining time. Zero after the deadline.
    pub(in crate::distributed) fn left(self) -> Duration {
        self.0.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }

    pub(in crate::distributed) fn has_passed(self) -> bool {
        self.left().is_zero()
    }

    /// Returns this deadline or the end of `timeout` from now, whichever is earlier.
    pub(in crate::distributed) fn at_most(self, timeout: Duration) -> Self {
        let other = Self::after(timeout);
        match (self.0, other.0) {
            (Some(a), Some(b)) => Self(Some(a.min(b))),
            (a, b) => Self(a.or(b)),
        }
    }
}

/// A connection whose reads and writes all end at one deadline.
#[derive(Debug)]
pub(super) struct TimedStream<'a> {
    pub(super) stream: &'a TcpStream,
    pub(super) deadline: Deadline,
}

/// Largest size of one write, in bytes. Some systems restart the timeout whenever a part of a write is accepted.
const MAX_WRITE: usize = 64 << 10;

impl TimedStream<'_> {
    /// Returns the timeout of the next system call, which must not be zero.
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.deadline.left() {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left.clamp(Duration::from_millis(1), Duration::from_secs(3600)))),
        }
    }

    /// Repeats a system call if its own timeout, but not the deadline, has passed.
    fn retry(&self, mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
        loop {
            match call() {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock) => {}
                done => return done,
            }
        }
    }
}

impl Read for TimedStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (this, mut stream) = (&*self, self.stream);
        this.retry(|| {
            stream.set_read_timeout(this.left()?)?;
            stream.read(buffer)
        })
    }
}

impl Write for TimedStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (this, mut stream) = (&*self, self.stream);
        this.retry(|| {
            stream.set_write_timeout(this.left()?)?;
            stream.write(&bytes[..bytes.len().min(MAX_WRITE)])
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Returns the two ends of a connection.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (stream, listener.accept().unwrap().0)
    }

    fn ends_in_time(call: impl FnOnce(&mut TimedStream<'_>) -> io::Result<()>, stream: &TcpStream) {
        let begun = Instant::now();
        let deadline = Deadline::after(Duration::from_millis(200));
        let error = call(&mut TimedStream { stream, deadline }).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= Duration::from_millis(200));
        // Without the deadline, each of these calls would take more than a minute.
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    }

    #[test]
    fn a_slow_reader_does_not_extend_the_deadline_of_a_write() {
        let (ours, mut theirs) = pair();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut buffer = vec![0; 64 << 10];
                while matches!(theirs.read(&mut buffer), Ok(1..)) {
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            ends_in_time(|timed| timed.write_all(&vec![0; 256 << 20]), &ours);
            ours.shutdown(std::net::Shutdown::Both).unwrap();
        });
    }

    #[test]
    fn a_slow_writer_does_not_extend_the_deadline_of_a_read() {
        let (ours, mut theirs) = pair();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while theirs.write_all(&[0]).is_ok() {
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            ends_in_time(|timed| timed.read_exact(&mut [0; 4000]), &ours);
            drop(ours);
        });
    }

    #[test]
    fn a_timeout_beyond_the_clock_never_ends() {
        let deadline = Deadline::after(Duration::MAX);
        assert_eq!(deadline.left(), Duration::MAX);
        assert!(deadline.at_most(Duration::from_secs(9)).left() <= Duration::from_secs(9));
        assert!(Deadline::after(Duration::ZERO).at_most(Duration::MAX).has_passed());
    }

    #[test]
    fn calls_without_a_timeout_end_at_the_innermost_bound() {
        let left = || Deadline::of_call().left();
        assert!(left() > CALL_TIMEOUT / 2 && left() <= CALL_TIMEOUT);
        Deadline::after(Duration::ZERO).bound(|| {
            assert!(left().is_zero());
            Deadline::after(Duration::from_secs(20)).bound(|| assert!(left() > CALL_TIMEOUT / 3));
            assert!(left().is_zero());
        });
        assert!(left() > CALL_TIMEOUT / 2);
    }
}
