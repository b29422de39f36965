//! Capturing what streams are given, instead of running it.
//!
//! While a stream is captured, a *twin* with the same driver's stream stands for it: it numbers the
//! captured work, and its table and checkpoints tell what is ordered within the capture. What the
//! stream was given before keeps its numbers and can be waited for by others all the while.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use warpline_cuda_sys_safe::{DriverError, owned};

use crate::{Result, Stream, StreamError};

/// What a capture notes about itself; whoever begins it decides.
pub type CaptureLog = Arc<dyn Any + Send + Sync>;

/// A capture under way: the stream that it began on, and those that joined it since.
pub(crate) struct Capture {
    log: CaptureLog,
    device: usize,
    /// The streams with their twins, the one it began on first; `None` once it is over.
    streams: Mutex<Option<Vec<(Stream, Stream)>>>,
}

/// A stream as part of a capture.
#[derive(Clone)]
pub struct Captured {
    capture: Arc<Capture>,
    twin: Stream,
}

impl Captured {
    /// Stands for the stream: what is submitted to it is captured, and numbered from 1 in this
    /// capture.
    #[must_use]
    pub fn twin(&self) -> &Stream {
        &self.twin
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
    /// Whether that capture is over: what the driver's stream is given now would run.
    over: AtomicBool,
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

    fn set(&self, captured: Option<Captured>) {
        let there = captured.is_some();
        *self.captured.lock().unwrap_or_else(PoisonError::into_inner) = captured;
        self.capturing.store(there, Ordering::Release);
    }
}

impl Stream {
    /// Whether what it is given is captured (`torch.cuda.is_current_stream_capturing`).
    /// Certain for as long as nobody else can enqueue on it, as within [`Stream::submit`].
    #[inline]
    #[must_use]
    pub fn is_capturing(&self) -> bool {
        let slot = self.slot();
        slot.capturing.load(Ordering::Acquire)
            || slot.twin_in.is_some() && !slot.over.load(Ordering::Acquire)
    }

    /// Refuses to act where a capture of the driver's stream has begun or ended since it was asked
    /// who acts for it. The caller holds the stream's lock.
    pub(crate) fn check_acting(&self, call: &'static str) -> Result<()> {
        match (self.twin_in().is_some(), self.is_capturing()) {
            (true, false) => Err(StreamError::NotCapturing { call }),
            (false, true) => Err(StreamError::Capturing { call }),
            _ => Ok(()),
        }
    }

    /// This stream as part of the capture under way, if it takes part in one.
    #[inline]
    #[must_use]
    pub fn captured(&self) -> Option<Captured> {
        self.slot().captured()
    }

    /// What the driver's stream is numbered by now: its twin while it is captured.
    pub(crate) fn acting(&self) -> Stream {
        self.captured().map_or_else(|| self.clone(), |captured| captured.twin)
    }

    pub(crate) fn twin_in(&self) -> Option<&Weak<Capture>> {
        self.slot().twin_in()
    }

    /// Refuses to wait on the host for captured work, which does not run.
    pub(crate) fn refuse_twin(&self, call: &'static str) -> Result<()> {
        if self.twin_in().is_some() { Err(StreamError::Capturing { call }) } else { Ok(()) }
    }

    /// Refuses to ask about a stream, or wait for it, while it is captured.
    pub(crate) fn refuse_capturing(&self, call: &'static str) -> Result<()> {
        if self.is_capturing() { Err(StreamError::Capturing { call }) } else { Ok(()) }
    }

    /// Captures what this stream is given from now on, instead of running it, until
    /// [`Stream::end_capture`]. `begin` asks the driver for it. Another stream joins the capture by
    /// waiting for an event that was recorded in it, or for a stream that takes part.
    ///
    /// # Errors
    /// [`StreamError::CannotCapture`] for a default stream and for one that is captured already,
    /// or the driver's own.
    #[track_caller]
    pub fn begin_capture(
        &self,
        log: CaptureLog,
        begin: impl FnOnce(&owned::Stream) -> Result<(), DriverError>,
    ) -> Result<()> {
        let streams = Mutex::new(Some(Vec::new()));
        let capture = Arc::new(Capture { log, device: self.device_index(), streams });
        let captures = &self.core().captures;
        captures.fetch_add(1, Ordering::SeqCst);
        self.enter_capture(&capture, |_| Ok(begin(self.raw())?)).inspect_err(|_| {
            captures.fetch_sub(1, Ordering::SeqCst);
        })
    }

    /// Ends the capture that began on this stream and answers what it holds. It ends even if this
    /// fails. With `join`, the stream first waits for all others that take part.
    ///
    /// # Errors
    /// [`StreamError::NotCapturing`] unless a capture began here, or the driver's own: without
    /// `join`, that streams were not joined.
    #[track_caller]
    pub fn end_capture(&self, join: bool) -> Result<owned::Graph> {
        let not_here = StreamError::NotCapturing { call: "end_capture" };
        let Some(Captured { capture, twin }) = self.captured() else { return Err(not_here) };
        let streams = capture.lock().take_if(|streams| {
            // Only the stream that it began on can end it.
            streams.first().is_some_and(|(first, _)| first == self)
        });
        let Some(streams) = streams else { return Err(not_here) };
        // From here on other threads' work is refused: it would not be part of the capture.
        let end =
            |twin: &Stream| twin.while_locked(|slot| slot.over.store(true, Ordering::Release));
        streams[1..].iter().for_each(|(_, other)| end(other));
        let mut joined = Ok(());
        if join {
            for (_, other) in &streams[1..] {
                joined = joined.and(twin.wait_for(other, other.last_op()));
            }
        }
        end(&twin);
        let graph = self.raw().end_capture();
        for (stream, _) in &streams {
            let _ = stream.change_capture(|slot| {
                slot.set(None);
                Ok(())
            });
        }
        self.core().captures.fetch_sub(1, Ordering::SeqCst);
        joined?;
        Ok(graph?)
    }

    /// Takes this stream into a capture by a wait for an event that was recorded there.
    #[track_caller]
    pub(crate) fn join_capture(
        &self,
        capture: &Weak<Capture>,
        call: &'static str,
        wait: impl FnOnce(&Stream) -> Result<()>,
    ) -> Result<()> {
        let Some(capture) = capture.upgrade() else {
            return Err(StreamError::CapturedEvent { call });
        };
        if capture.lock().is_none() {
            return Err(StreamError::CapturedEvent { call });
        }
        if capture.device != self.device_index() {
            return Err(StreamError::WrongDevice {
                call: "a capture is of one device: the stream that waits",
                expected: capture.device,
                found: self.device_index(),
            });
        }
        self.enter_capture(&capture, wait)
    }

    /// Makes a twin and runs `enter` with it, which is to take the driver's stream into the
    /// capture.
    #[track_caller]
    fn enter_capture(
        &self,
        capture: &Arc<Capture>,
        enter: impl FnOnce(&Stream) -> Result<()>,
    ) -> Result<()> {
        if self.is_default() {
            let reason = "it is the default stream; use another";
            return Err(StreamError::CannotCapture { reason });
        }
        let twin = Stream::twin(self, Arc::downgrade(capture));
        self.change_capture(|slot| {
            if self.is_capturing() {
                let reason = "it is being captured already";
                return Err(StreamError::CannotCapture { reason });
            }
            enter(&twin)?;
            slot.set(Some(Captured { capture: Arc::clone(capture), twin: twin.clone() }));
            Ok(())
        })?;
        if let Some(streams) = &mut *capture.lock() {
            streams.push((self.clone(), twin));
            return Ok(());
        }
        // It has ended meanwhile, without knowing of this stream.
        self.while_locked(|slot| slot.set(None));
        Err(StreamError::CapturedEvent { call: "wait_event" })
    }
}
