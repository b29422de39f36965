//! Stream capture: work is recorded into a graph instead of run.
//!
//! During a capture, a *twin* stands for each captured stream: the same driver's stream with its
//! own numbers, checkpoints and clock. Waits within the capture use the twin and are captured.
//! Earlier work of the stream keeps its numbers, so other streams can still wait for it. A stream
//! joins the capture when it waits for an event of the capture. Only the `CaptureGuard` that began
//! the capture ends it.
//!
//! An operation that would invalidate the capture is refused before the driver hears of it. A
//! capture begins, ends and takes streams in under locks, so an operation of another thread is
//! either captured and numbered by the twin, or run and numbered by the stream.

use std::any::Any;
use std::panic::Location;
use std::sync::{Arc, PoisonError, Weak};

use warpline_cuda_sys_safe::owned::{self, LaunchToken};
use warpline_cuda_sys_safe::{CaptureMode, StreamHandle};
use warpline_sync::atomic::{AtomicBool, Ordering};
use warpline_sync::{Mutex, MutexGuard};

use crate::{Error, ErrorKind, OpNumber, Result, Stream};

/// What a capture notes about itself; whoever begins it decides.
pub type CaptureLog = Arc<dyn Any + Send + Sync>;

/// A capture under way: the stream that it began on, and those that joined it since.
pub(crate) struct Capture {
    log: CaptureLog,
    /// Of whoever began it, for the streams that join.
    token: LaunchToken,
    device: usize,
    /// Whether it has ended. Set under the locks of all its streams and twins.
    over: AtomicBool,
    /// The streams with their twins, the one it began on first; `None` once it is over. Taken before
    /// any stream's lock, and held while one joins: it does not end meanwhile.
    streams: Mutex<Option<Vec<(Stream, Stream)>>>,
}

/// A stream as part of a capture.
#[derive(Clone)]
pub struct Captured {
    capture: Arc<Capture>,
    twin: Stream,
}

impl Captured {
    /// Stands for the stream: what is [submitted](Captured::submit) is numbered from 1 in this
    /// capture, as an operation of the twin.
    #[must_use]
    pub fn twin(&self) -> &Stream {
        &self.twin
    }

    /// [`Stream::submit`] on the twin, which another thread may be about to take out of the capture:
    /// what comes too late is not enqueued.
    ///
    /// # Errors
    /// [`ErrorKind::NotCapturing`] once the capture has ended, or what `f` returns.
    pub fn submit<R, E: From<Error>>(
        &self,
        token: LaunchToken,
        f: impl FnOnce(StreamHandle) -> std::result::Result<R, E>,
    ) -> std::result::Result<(R, OpNumber), E> {
        self.twin.submit(token, f)
    }

    /// What was given to [`Stream::begin_capture`].
    #[must_use]
    pub fn log(&self) -> &CaptureLog {
        &self.capture.log
    }
}

impl std::fmt::Debug for Captured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Captured").field("twin", &self.twin).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture").field("streams", &*self.lock()).finish_non_exhaustive()
    }
}

impl Capture {
    fn lock(&self) -> MutexGuard<'_, Option<Vec<(Stream, Stream)>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a stream knows of captures.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// Whether `captured` is there.
    capturing: AtomicBool,
    captured: Mutex<Option<Captured>>,
    /// The capture in which this is a stream's twin.
    twin_in: Option<Weak<Capture>>,
}

impl Slot {
    pub(crate) fn new(twin_in: Option<Weak<Capture>>) -> Self {
        Self { twin_in, ..Self::default() }
    }

    pub(crate) fn twin_in(&self) -> Option<&Weak<Capture>> {
        self.twin_in.as_ref()
    }

    #[inline]
    pub(crate) fn captured(&self) -> Option<Captured> {
        if !self.capturing.load(Ordering::Acquire) {
            return None;
        }
        self.captured.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Refuses to act for a stream in a capture that is over: what the driver's stream is given now
    /// runs. Certain while nobody else can enqueue.
    pub(crate) fn refuse_ended(
        &self,
        call: &'static str,
        location: &'static Location<'static>,
    ) -> Result<()> {
        if self.twin_in.is_some() && !self.is_capturing() {
            return Err(ErrorKind::NotCapturing.of(call).at(location));
        }
        Ok(())
    }

    #[inline]
    fn is_capturing(&self) -> bool {
        let under_way = |capture: &Weak<Capture>| {
            capture.upgrade().is_some_and(|capture| !capture.over.load(Ordering::Acquire))
        };
        self.capturing.load(Ordering::Acquire) || self.twin_in.as_ref().is_some_and(under_way)
    }

    fn set(&self, captured: Option<Captured>) {
        let there = captured.is_some();
        let mut slot = self.captured.lock().unwrap_or_else(PoisonError::into_inner);
        // Dropped without the lock, because a capture owns its caller's log.
        let _former = std::mem::replace(&mut *slot, captured);
        drop(slot);
        self.capturing.store(there, Ordering::Release);
    }
}

impl Stream {
    /// Whether what it is given is captured (`torch.cuda.is_current_stream_capturing`).
    #[inline]
    #[must_use]
    pub fn is_capturing(&self) -> bool {
        self.slot().is_capturing()
    }

    /// This stream as part of the capture under way, if it takes part in one.
    #[inline]
    #[must_use]
    pub fn captured(&self) -> Option<Captured> {
        self.slot().captured()
    }

    /// Whether it stands for a stream in a capture ([`Captured::twin`]), to number what the capture
    /// holds. Nothing else is to be done with it, during the capture or after.
    #[inline]
    #[must_use]
    pub fn is_twin(&self) -> bool {
        self.twin_in().is_some()
    }

    pub(crate) fn twin_in(&self) -> Option<&Weak<Capture>> {
        self.slot().twin_in()
    }

    /// Refuses to wait on the host for captured work, which does not run.
    #[track_caller]
    pub(crate) fn refuse_twin(&self, call: &'static str) -> Result<()> {
        if self.is_twin() { Err(ErrorKind::Capturing.of(call)) } else { Ok(()) }
    }

    /// Refuses to ask about a stream, or wait for it, while it is captured.
    #[track_caller]
    pub(crate) fn refuse_capturing(&self, call: &'static str) -> Result<()> {
        if self.is_capturing() { Err(ErrorKind::Capturing.of(call)) } else { Ok(()) }
    }

    /// Captures what this stream is given from now on, instead of running it, until the result is
    /// [ended](CaptureGuard::end) or dropped. Another stream joins the capture by waiting for an event
    /// that was recorded in it, or for a stream that takes part.
    ///
    /// The driver's mode is the relaxed one, in which other threads, and this one, may do as ever.
    ///
    /// # Errors
    /// [`ErrorKind::CannotCapture`] for a default stream and for one that is captured already,
    /// or the driver's own.
    #[track_caller]
    pub fn begin_capture(&self, log: CaptureLog, token: LaunchToken) -> Result<CaptureGuard> {
        let streams = Mutex::new(Some(Vec::new()));
        let (device, over) = (self.device_index(), AtomicBool::new(false));
        let capture = Arc::new(Capture { log, token, device, over, streams });
        let captures = &self.core().captures;
        captures.fetch_add(1, Ordering::SeqCst);
        let begun = match &mut *capture.lock() {
            Some(streams) => self.enter_capture(&capture, streams, |_| {
                Ok(Some(self.raw().begin_capture(CaptureMode::Relaxed, token)?))
            }),
            // Not reached: nobody else knows of it.
            None => Ok(None),
        };
        match begun {
            Ok(Some(raw)) => Ok(CaptureGuard { stream: self.clone(), raw: Some(raw), capture }),
            Ok(None) => Err(ErrorKind::NotCapturing.of("begin_capture")),
            Err(error) => Err(error),
        }
        .inspect_err(|_| {
            captures.fetch_sub(1, Ordering::SeqCst);
        })
    }

    /// Takes this stream into a capture by a wait for an event that was recorded there.
    #[track_caller]
    pub(crate) fn join_capture(
        &self,
        capture: &Weak<Capture>,
        call: &'static str,
        wait: impl FnOnce(&Stream, LaunchToken) -> Result<()>,
    ) -> Result<()> {
        let Some(capture) = capture.upgrade() else {
            return Err(ErrorKind::CapturedEvent.of(call));
        };
        let mut streams = capture.lock();
        let Some(streams) = &mut *streams else {
            return Err(ErrorKind::CapturedEvent.of(call));
        };
        if capture.device != self.device_index() {
            let object = "a capture is of one device: the stream that waits";
            let (expected, found) = (capture.device, self.device_index());
            return Err(ErrorKind::WrongDevice { object, expected, found }.of(call));
        }
        self.enter_capture(&capture, streams, |twin| wait(twin, capture.token))
    }

    /// Makes a twin and runs `enter` with it, which is to take the driver's stream into the
    /// capture.
    #[track_caller]
    fn enter_capture<R>(
        &self,
        capture: &Arc<Capture>,
        streams: &mut Vec<(Stream, Stream)>,
        enter: impl FnOnce(&Stream) -> Result<R>,
    ) -> Result<R> {
        if self.is_default() {
            let reason = "it is the default stream; use another";
            return Err(ErrorKind::CannotCapture { reason }.of("begin_capture"));
        }
        if self.is_twin() {
            // The stream that it stood for would not know, and what that is given would be captured.
            let reason = "it stands for a stream in a capture; use that stream";
            return Err(ErrorKind::CannotCapture { reason }.of("begin_capture"));
        }
        let twin = Stream::twin(self, Arc::downgrade(capture));
        let location = Location::caller();
        self.change_capture(|slot| {
            if let Some(there) = slot.captured().filter(|c| Arc::ptr_eq(&c.capture, capture)) {
                // Another thread took it in just now.
                return enter(&there.twin);
            }
            if self.is_capturing() {
                let reason = "it is being captured already";
                return Err(ErrorKind::CannotCapture { reason }.of("begin_capture").at(location));
            }
            let entered = enter(&twin)?;
            slot.set(Some(Captured { capture: Arc::clone(capture), twin: twin.clone() }));
            streams.push((self.clone(), twin));
            Ok(entered)
        })
    }
}

/// A capture under way, which only this can end. Dropping it ends the capture and forgets what was
/// captured.
#[derive(Debug)]
pub struct CaptureGuard {
    stream: Stream,
    /// There until it has ended.
    raw: Option<owned::Capture>,
    capture: Arc<Capture>,
}

impl CaptureGuard {
    /// The stream that it began on.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Ends the capture and returns what it holds. It ends even if this fails. With `join`, the
    /// stream first waits for all others that take part.
    ///
    /// # Errors
    /// The driver's own: without `join`, that streams were not joined.
    #[track_caller]
    pub fn end(mut self, join: bool) -> Result<owned::Graph> {
        self.finish(join)
    }

    #[track_caller]
    fn finish(&mut self, join: bool) -> Result<owned::Graph> {
        let not_capturing = ErrorKind::NotCapturing.of("end_capture");
        let (Some(raw), Some(streams)) = (self.raw.take(), self.capture.lock().take()) else {
            return Err(not_capturing);
        };
        // Nobody gives them more than is joined, or takes for captured what is enqueued afterwards.
        let mut held: Vec<_> = streams.iter().map(|(s, twin)| (s.hold(), twin.hold())).collect();
        let mut joined = Ok(());
        if let (true, Some(((_, twin), others)), Some(((_, first), rest))) =
            (join, streams.split_first(), held.split_first_mut())
        {
            for ((_, other), (_, held)) in others.iter().zip(rest) {
                joined = joined.and(twin.wait_held(first, other, held));
            }
        }
        self.capture.over.store(true, Ordering::Release);
        let graph = raw.end();
        streams.iter().for_each(|(stream, _)| stream.slot().set(None));
        drop(held);
        self.stream.core().captures.fetch_sub(1, Ordering::SeqCst);
        joined?;
        Ok(graph?)
    }
}

impl Drop for CaptureGuard {
    fn drop(&mut self) {
        if self.raw.is_some() {
            let _ = self.finish(false);
        }
    }
}
