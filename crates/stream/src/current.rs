//! Each thread's current device, and current stream per device.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;

use crate::devices::Inner;
use crate::{Result, Stream, StreamError};

/// What a thread has chosen in one world. Without an entry it is at device 0 and the default
/// streams.
struct Current {
    id: u64,
    /// Not the `World` that streams share: a current stream would keep that alive.
    devices: Weak<Inner>,
    device: usize,
    /// By device; `None`, and any device beyond the end, is the default stream.
    ///
    /// Counted without atomics, so that handing one out for the length of a call is cheap and
    /// holds no borrow of the table.
    streams: SmallVec<[Option<Rc<Stream>>; 8]>,
}

thread_local! {
    /// One entry per world that still exists; nearly always there is one.
    static CURRENT: RefCell<Vec<Current>> = const { RefCell::new(Vec::new()) };

    /// Whether the thread has ever chosen anything. It needs no drop, so that a thread that has
    /// not pays next to nothing.
    static CHOSEN: Cell<bool> = const { Cell::new(false) };
}

// No function here runs foreign code while the table is borrowed: streams are dropped afterwards.

/// Runs `f` on a world's entry, if there is one.
#[inline]
fn read<R>(id: u64, f: impl FnOnce(&Current) -> R) -> Option<R> {
    if !CHOSEN.get() {
        return None;
    }
    CURRENT.try_with(|table| table.borrow().iter().find(|c| c.id == id).map(f)).ok().flatten()
}

/// Runs `f` on a world's entry, which is made if there is none.
fn write<R>(
    devices: &Arc<Inner>,
    call: &'static str,
    f: impl FnOnce(&mut Current) -> R,
) -> Result<R> {
    let ending = |_| StreamError::ThreadEnding { call };
    let id = devices.id();
    let (result, dead) = CURRENT
        .try_with(|table| {
            let mut table = table.borrow_mut();
            if let Some(current) = table.iter_mut().find(|c| c.id == id) {
                return (f(current), Vec::new());
            }
            let dead = table.extract_if(.., |c| c.devices.strong_count() == 0).collect();
            let devices = Arc::downgrade(devices);
            let mut new = Current { id, devices, device: 0, streams: SmallVec::new() };
            let result = f(&mut new);
            table.push(new);
            CHOSEN.set(true);
            (result, dead)
        })
        .map_err(ending)?;
    drop::<Vec<Current>>(dead);
    Ok(result)
}

/// The current device.
#[inline]
pub(crate) fn device(id: u64) -> usize {
    read(id, |c| c.device).unwrap_or(0)
}

/// The current stream of a device; `None` is the default stream.
#[inline]
pub(crate) fn stream(id: u64, device: usize) -> Option<Rc<Stream>> {
    read(id, |c| c.streams.get(device)?.clone()).flatten()
}

/// Changes the current device and answers the previous one.
pub(crate) fn set_device(devices: &Arc<Inner>, index: usize) -> Result<usize> {
    let previous = device(devices.id());
    if previous != index {
        write(devices, "set_device", |c| c.device = index)?;
    }
    Ok(previous)
}

/// Changes the current stream of the stream's own device.
pub(crate) fn set_stream(devices: &Arc<Inner>, new: &Stream) -> Result<()> {
    let index = new.device_index();
    let unchanged = match stream(devices.id(), index) {
        Some(old) => *old == *new,
        None => new.is_default(),
    };
    if unchanged {
        return Ok(());
    }
    let new = (!new.is_default()).then(|| Rc::new(new.clone()));
    let old = write(devices, "set_current_stream", |c| replace(c, index, new))?;
    drop(old);
    Ok(())
}

fn replace(current: &mut Current, device: usize, new: Option<Rc<Stream>>) -> Option<Rc<Stream>> {
    if current.streams.len() <= device {
        current.streams.resize(device + 1, None);
    }
    std::mem::replace(&mut current.streams[device], new)
}

/// Puts back what a guard saved. Nothing if the world or the thread's state is gone.
pub(crate) fn restore_device(id: u64, device: usize) {
    restore(id, |c| c.device = device);
}

/// Puts back what a guard saved. Nothing if the world or the thread's state is gone.
pub(crate) fn restore_stream(id: u64, device: usize, mut stream: Option<Rc<Stream>>) {
    restore(id, |c| stream = replace(c, device, stream.take()));
}

fn restore(id: u64, f: impl FnOnce(&mut Current)) {
    // Without its table the thread is ending, and nothing is current any more.
    let _ = CURRENT.try_with(|table| table.borrow_mut().iter_mut().find(|c| c.id == id).map(f));
}
