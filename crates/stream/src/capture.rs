//! Stream capture: work is recorded into a graph instead of run.
//!
//! During a capture, each captured stream has a *twin*: a second `Stream` of the same driver's
//! stream, with its own numbers, op events and clock. Waits within the capture use the twin and are
//! captured. Work that the stream enqueued before the capture keeps its numbers, so other streams
//! can still wait for that work. A stream joins the capture when it waits for an event of the
//! capture. Only the `CaptureGuard` of the capture ends it.
//!
//! An operation that would invalidate the capture is refused without a driver call. Streams
//! enter and leave a capture under their locks. An operation of another thread is therefore either
//! captured and numbered by the twin, or run and numbered by the stream.

use std::any::Any;
use std::panic::Location;
use std::sync::{Arc, PoisonError, Weak};

use warpline_cuda_sys_safe::owned::{self, LaunchToken};
use warpline_cuda_sys_safe::{CaptureMode, DriverError, StreamHandle};
use warpline_sync::atomic::{AtomicBool, Ordering};
use warpline_sync::{Mutex, MutexGuard};

use crate::body::OpenBody;
use crate::stream::SubmitGuard;
use crate::{Error, ErrorKind, OpNumber, Result, Stream};

/// Caller-defined data attached to a capture.
pub type CaptureLog = Arc<dyn Any + Send + Sync>;

/// A capture in progress: the stream that it began on and the streams that joined it.
pub(crate) struct OngoingCapture {
    log: CaptureLog,
    /// Token of the caller that began the capture, for the streams that join.
    token: LaunchToken,
    device: usize,
    /// Whether the capture has ended. Set under the locks of all its streams and twins.
    ended: AtomicBool,
    /// The streams with their twins, beginning with the stream that the capture began on. `None`
    /// after the end. Locked before any stream's lock. A stream that joins holds this lock, so that
    /// the capture does not end meanwhile.
    streams: Mutex<Option<Vec<(Stream, Stream)>>>,
    /// The body that is being captured into the graph of this capture. Set only while `streams` is
    /// `Some` and locked.
    body: Mutex<Option<Arc<OpenBody>>>,
    /// In the capture of a body: the stream on which the enclosing graph is captured.
    home: Option<Stream>,
}

/// A stream in a capture.
#[derive(Clone)]
pub struct CapturedStream {
    capture: Arc<OngoingCapture>,
    twin: Stream,
}

impl CapturedStream {
    /// Returns the twin, which stands for the stream in this capture. It numbers its operations, waits
    /// included, from 1.
    #[must_use]
    pub fn twin(&self) -> &Stream {
        &self.twin
    }

    /// Submits as [`Stream::submit`] does, to the twin. If another thread ends the capture first,
    /// nothing is enqueued.
    ///
    /// # Errors
    /// [`ErrorKind::NotCapturing`] if the capture has ended, and errors of `f`.
    pub fn submit<R, E: From<Error>>(
        &self,
        token: LaunchToken,
        f: impl FnOnce(StreamHandle) -> std::result::Result<R, E>,
    ) -> std::result::Result<(R, OpNumber), E> {
        self.twin.submit(token, f)
    }

    /// Returns the log that was passed to [`Stream::begin_capture`].
    #[must_use]
    pub fn log(&self) -> &CaptureLog {
        &self.capture.log
    }

    /// In the body of a conditional node, returns the stream that the node was added on; in nested
    /// bodies, that of the outermost node. The body runs in the order of this stream. `None` outside
    /// bodies.
    #[must_use]
    pub fn home(&self) -> Option<&Stream> {
        self.capture.home.as_ref()
    }

    /// Returns whether the body of a conditional node of this capture is being captured. Work of this
    /// stream would then not be part of the body.
    #[must_use]
    pub fn has_open_body(&self) -> bool {
        self.capture.body().is_some()
    }

    pub(crate) fn capture(&self) -> &Arc<OngoingCapture> {
        &self.capture
    }
}

impl std::fmt::Debug for CapturedStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CapturedStream").field("twin", &self.twin).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for OngoingCapture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OngoingCapture").field("streams", &*self.lock()).finish_non_exhaustive()
    }
}

impl OngoingCapture {
    pub(crate) fn new(
        log: CaptureLog,
        token: LaunchToken,
        device: usize,
        home: Option<Stream>,
    ) -> Self {
        Self {
            log,
            token,
            device,
            ended: AtomicBool::new(false),
            streams: Mutex::new(Some(Vec::new())),
            body: Mutex::default(),
            home,
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Vec<(Stream, Stream)>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn log(&self) -> &CaptureLog {
        &self.log
    }

    pub(crate) fn body(&self) -> MutexGuard<'_, Option<Arc<OpenBody>>> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the capture, which `end` ends in the driver. With `join`, the first stream first waits
    /// for all other streams of the capture. Ends an open body before.
    #[track_caller]
    pub(crate) fn finish<R>(
        &self,
        join: bool,
        end: impl FnOnce() -> std::result::Result<R, DriverError>,
    ) -> Result<R> {
        let location = Location::caller();
        let Some(streams) = self.lock().take() else {
            return Err(ErrorKind::NotCapturing.of("end_capture").at(location));
        };
        // The body belongs to the graph, so its capture must not outlive the capture of the graph.
        let body = self.body().take();
        if let Some(body) = body {
            let _ = body.finish(false);
        }
        // The locks are held until the capture has ended. Otherwise another thread could enqueue
        // captured work after the joins, or number work as captured that runs after the end.
        let mut held: Vec<_> = streams.iter().map(|(s, twin)| (s.hold(), twin.hold())).collect();
        let mut joined = Ok(());
        if join {
            joined = join_streams(&streams, &mut held);
        }
        self.ended.store(true, Ordering::Release);
        let ended = end();
        streams.iter().for_each(|(stream, _)| stream.capture_state().set(None));
        drop(held);
        joined?;
        Ok(ended?)
    }
}

/// Makes the first stream of a capture wait for the others. The locks of all are held.
fn join_streams(
    streams: &[(Stream, Stream)],
    held: &mut [(SubmitGuard<'_>, SubmitGuard<'_>)],
) -> Result<()> {
    let mut joined = Ok(());
    if let (Some(((_, twin), others)), Some(((_, first), rest))) =
        (streams.split_first(), held.split_first_mut())
    {
        for ((_, other), (_, held)) in others.iter().zip(rest) {
            joined = joined.and(twin.wait_held(first, other, held));
        }
    }
    joined
}

/// Capture state of a stream.
#[derive(Debug, Default)]
pub(crate) struct StreamCaptureState {
    /// Whether `captured` is `Some`.
    capturing: AtomicBool,
    captured: Mutex<Option<CapturedStream>>,
    /// The capture in which this stream is a twin.
    twin_in: Option<Weak<OngoingCapture>>,
}

impl StreamCaptureState {
    pub(crate) fn new(twin_in: Option<Weak<OngoingCapture>>) -> Self {
        Self { twin_in, ..Self::default() }
    }

    pub(crate) fn twin_in(&self) -> Option<&Weak<OngoingCapture>> {
        self.twin_in.as_ref()
    }

    #[inline]
    pub(crate) fn captured(&self) -> Option<CapturedStream> {
        if !self.capturing.load(Ordering::Acquire) {
            return None;
        }
        self.captured.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fails for a twin of an ended capture, because its driver's stream runs work again instead of
    /// capturing it. The result stays valid while the caller holds the submit lock.
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
        let under_way = |capture: &Weak<OngoingCapture>| {
            capture.upgrade().is_some_and(|capture| !capture.ended.load(Ordering::Acquire))
        };
        self.capturing.load(Ordering::Acquire) || self.twin_in.as_ref().is_some_and(under_way)
    }

    fn set(&self, captured: Option<CapturedStream>) {
        let capturing = captured.is_some();
        let mut current = self.captured.lock().unwrap_or_else(PoisonError::into_inner);
        // Drop the former state only after the lock is released, because it may hold the last
        // reference to the log, and dropping the log runs code of the caller.
        let _former = std::mem::replace(&mut *current, captured);
        drop(current);
        self.capturing.store(capturing, Ordering::Release);
    }
}

impl Stream {
    /// Returns whether work enqueued on this stream is captured
    /// (`torch.cuda.is_current_stream_capturing`).
    #[inline]
    #[must_use]
    pub fn is_capturing(&self) -> bool {
        self.capture_state().is_capturing()
    }

    /// Returns this stream's part in the capture in progress. `None` if the stream is not captured.
    #[inline]
    #[must_use]
    pub fn captured(&self) -> Option<CapturedStream> {
        self.capture_state().captured()
    }

    /// Returns whether this is the twin of a stream in a capture ([`CapturedStream::twin`]). A twin only
    /// numbers captured operations; use it for nothing else, during the capture or after.
    #[inline]
    #[must_use]
    pub fn is_twin(&self) -> bool {
        self.twin_in().is_some()
    }

    /// Returns whether both streams are twins in the same capture. The body of a conditional node is
    /// a capture of its own.
    #[must_use]
    pub fn shares_capture(&self, other: &Self) -> bool {
        match (self.twin_in(), other.twin_in()) {
            (Some(own), Some(other)) => own.ptr_eq(other),
            _ => false,
        }
    }

    pub(crate) fn twin_in(&self) -> Option<&Weak<OngoingCapture>> {
        self.capture_state().twin_in()
    }

    /// Fails for a twin: captured work does not run, so the host would wait forever.
    #[track_caller]
    pub(crate) fn refuse_twin(&self, call: &'static str) -> Result<()> {
        if self.is_twin() { Err(ErrorKind::Capturing.of(call)) } else { Ok(()) }
    }

    /// Fails while the stream is captured. The host can neither query nor wait for captured work.
    #[track_caller]
    pub(crate) fn refuse_capturing(&self, call: &'static str) -> Result<()> {
        if self.is_capturing() { Err(ErrorKind::Capturing.of(call)) } else { Ok(()) }
    }

    /// Captures the work enqueued on this stream from now on, instead of running it, until the
    /// guard is [ended](CaptureGuard::end) or dropped. Another stream joins the capture when it
    /// waits for an event that was recorded in the capture, or for a stream of the capture.
    ///
    /// The driver's capture mode is relaxed: all threads may make potentially unsafe calls, such as
    /// memory allocation. Queries of captured work, and host waits for it, still fail.
    ///
    /// # Errors
    /// - [`ErrorKind::CannotCapture`] if the stream is a default stream, a twin, or captured
    ///   already.
    /// - [`ErrorKind::Driver`] if the driver cannot begin the capture.
    #[track_caller]
    pub fn begin_capture(&self, log: CaptureLog, token: LaunchToken) -> Result<CaptureGuard> {
        let capture = Arc::new(OngoingCapture::new(log, token, self.device_index(), None));
        let captures = &self.core().captures;
        captures.fetch_add(1, Ordering::SeqCst);
        let begun = match &mut *capture.lock() {
            Some(streams) => self.enter_capture(&capture, streams, |_| {
                Ok(Some(self.raw().begin_capture(CaptureMode::Relaxed, token)?))
            }),
            // Unreachable, because no other thread has the capture yet.
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

    /// Adds this stream to a capture. `wait` makes the twin wait for an event of the capture.
    #[track_caller]
    pub(crate) fn join_capture(
        &self,
        capture: &Weak<OngoingCapture>,
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
            let object = "the stream that joins the capture";
            let (expected, found) = (capture.device, self.device_index());
            return Err(ErrorKind::WrongDevice { object, expected, found }.of(call));
        }
        self.enter_capture(&capture, streams, |twin| wait(twin, capture.token))
    }

    /// Creates a twin and calls `enter` with the twin. `enter` begins the driver's capture, or makes
    /// the driver's stream join.
    #[track_caller]
    pub(crate) fn enter_capture<R>(
        &self,
        capture: &Arc<OngoingCapture>,
        streams: &mut Vec<(Stream, Stream)>,
        enter: impl FnOnce(&Stream) -> Result<R>,
    ) -> Result<R> {
        if self.is_default() {
            let reason = "it is the default stream; use another stream";
            return Err(ErrorKind::CannotCapture { reason }.of("begin_capture"));
        }
        if self.is_twin() {
            // Without this refusal, the driver would capture the work, but the stream would number
            // it as work that runs.
            let reason = "it is the twin of a captured stream; use the captured stream";
            return Err(ErrorKind::CannotCapture { reason }.of("begin_capture"));
        }
        let twin = Stream::twin(self, Arc::downgrade(capture));
        let location = Location::caller();
        self.change_capture(|state| {
            // Another thread may have added the stream to this capture meanwhile.
            if let Some(captured) = state.captured().filter(|c| Arc::ptr_eq(&c.capture, capture)) {
                return enter(&captured.twin);
            }
            if self.is_capturing() {
                let reason = "another capture of the stream is in progress";
                return Err(ErrorKind::CannotCapture { reason }.of("begin_capture").at(location));
            }
            let entered = enter(&twin)?;
            state.set(Some(CapturedStream { capture: Arc::clone(capture), twin: twin.clone() }));
            streams.push((self.clone(), twin));
            Ok(entered)
        })
    }
}

/// A capture in progress. Only the guard can end the capture. Dropping the guard ends the capture
/// and discards the captured work.
#[derive(Debug)]
pub struct CaptureGuard {
    stream: Stream,
    /// `None` after the end.
    raw: Option<owned::Capture>,
    capture: Arc<OngoingCapture>,
}

impl CaptureGuard {
    /// Returns the stream that the capture began on.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Ends the capture and returns its graph. The capture ends even if this call fails. With `join`,
    /// the stream that the capture began on first waits for all other streams of the capture.
    ///
    /// # Errors
    /// [`ErrorKind::Driver`] if a driver call fails; without `join`, also if the stream that the
    /// capture began on does not wait for all other streams of the capture.
    #[track_caller]
    pub fn end(mut self, join: bool) -> Result<owned::Graph> {
        self.finish(join)
    }

    #[track_caller]
    fn finish(&mut self, join: bool) -> Result<owned::Graph> {
        let Some(raw) = self.raw.take() else {
            return Err(ErrorKind::NotCapturing.of("end_capture"));
        };
        let graph = self.capture.finish(join, || raw.end());
        self.stream.core().captures.fetch_sub(1, Ordering::SeqCst);
        graph
    }
}

impl Drop for CaptureGuard {
    fn drop(&mut self) {
        if self.raw.is_some() {
            let _ = self.finish(false);
        }
    }
}
