//! Each thread's current device, and current stream per device.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use warpline_sync::thread_local;

use crate::devices::DevicesInner;
use crate::{Error, ErrorKind, Result, Stream};

/// The current device and streams of a thread in one `Devices`. A thread without an entry uses
/// device 0 and the default streams.
struct ThreadState {
    id: u64,
    /// Dangles once the `Devices` is dropped. A reference to `SharedState` would not, because this
    /// entry's current streams keep that state alive.
    devices: Weak<DevicesInner>,
    device: usize,
    /// Indexed by device. `None` stands for the default stream, as does an index beyond the end.
    ///
    /// `Rc`, so that a call can use the stream without atomics and without borrowing the table.
    streams: SmallVec<[Option<Rc<Stream>>; 8]>,
}

thread_local! {
    /// One entry per `Devices`. Entries of dropped `Devices` are removed when an entry is added.
    static CURRENT: RefCell<Vec<ThreadState>> = const { RefCell::new(Vec::new()) };

    /// Whether the thread has ever added an entry to `CURRENT`. If not, lookups do not access
    /// `CURRENT`, because the first access registers a destructor.
    static CHOSEN: Cell<bool> = const { Cell::new(false) };
}

// No code outside this module may run while the table is borrowed. Streams are therefore dropped
// after the borrow ends.

/// Runs `f` on the entry of a `Devices`, if there is one.
#[inline]
fn read<R>(id: u64, f: impl FnOnce(&ThreadState) -> R) -> Option<R> {
    if !CHOSEN.with(Cell::get) {
        return None;
    }
    CURRENT.try_with(|table| table.borrow().iter().find(|c| c.id == id).map(f)).ok().flatten()
}

/// Runs `f` on the entry of a `Devices`, mutably, if there is one.
#[inline]
fn change<R>(id: u64, f: impl FnOnce(&mut ThreadState) -> R) -> Option<R> {
    if !CHOSEN.with(Cell::get) {
        return None;
    }
    CURRENT
        .try_with(|table| table.borrow_mut().iter_mut().find(|c| c.id == id).map(f))
        .ok()
        .flatten()
}

/// Runs `f` on the entry of a `Devices`. Creates the entry if there is none.
#[cold]
fn write<R>(
    devices: &Arc<DevicesInner>,
    call: &'static str,
    f: impl FnOnce(&mut ThreadState) -> R,
) -> Result<R> {
    let ending = |_| Error::unlocated(ErrorKind::ThreadEnding).of(call);
    let id = devices.id();
    let (result, dead) = CURRENT
        .try_with(|table| {
            let mut table = table.borrow_mut();
            if let Some(current) = table.iter_mut().find(|c| c.id == id) {
                return (f(current), Vec::new());
            }
            let dead = table.extract_if(.., |c| c.devices.strong_count() == 0).collect();
            let devices = Arc::downgrade(devices);
            let mut new = ThreadState { id, devices, device: 0, streams: SmallVec::new() };
            let result = f(&mut new);
            table.push(new);
            CHOSEN.with(|chosen| chosen.set(true));
            (result, dead)
        })
        .map_err(ending)?;
    drop::<Vec<ThreadState>>(dead);
    Ok(result)
}

/// Returns the current device.
#[inline]
pub(crate) fn device(id: u64) -> usize {
    read(id, |c| c.device).unwrap_or(0)
}

/// Returns the current stream of a device. `None` is the default stream.
#[inline]
pub(crate) fn stream(id: u64, device: usize) -> Option<Rc<Stream>> {
    read(id, |c| c.streams.get(device)?.clone()).flatten()
}

/// Changes the current device and returns the previous one.
#[inline]
pub(crate) fn set_device(devices: &Arc<DevicesInner>, index: usize) -> Result<usize> {
    let set = |c: &mut ThreadState| std::mem::replace(&mut c.device, index);
    match change(devices.id(), set) {
        Some(previous) => Ok(previous),
        // Every thread starts on device 0.
        None if index == 0 => Ok(0),
        None => write(devices, "set_device", set),
    }
}

/// Changes the current stream of the stream's own device, and returns the previous one.
#[inline]
pub(crate) fn set_stream(devices: &Arc<DevicesInner>, new: &Stream) -> Result<Option<Rc<Stream>>> {
    let set = |c: &mut ThreadState| set_if_different(c, new);
    match change(devices.id(), set) {
        Some(previous) => Ok(previous),
        None if new.is_default() => Ok(None),
        None => write(devices, "set_current_stream", set),
    }
}

/// State that a guard restores: the current device, and the current stream of the device on which
/// the guard changed the stream.
pub(crate) type SavedState = (usize, Option<Rc<Stream>>);

/// Makes a stream the current stream of its device, and that device the current device.
#[inline(always)]
pub(crate) fn enter(devices: &Arc<DevicesInner>, new: &Stream) -> Result<SavedState> {
    let set = |c: &mut ThreadState| {
        let device = std::mem::replace(&mut c.device, new.device_index());
        (device, set_if_different(c, new))
    };
    match change(devices.id(), set) {
        Some(former) => Ok(former),
        None if new.is_default() && new.device_index() == 0 => Ok((0, None)),
        None => write(devices, "stream_guard", set),
    }
}

/// Replaces the current stream of a device. Clones the stream only if it differs.
#[inline(always)]
fn set_if_different(current: &mut ThreadState, new: &Stream) -> Option<Rc<Stream>> {
    let index = new.device_index();
    match current.streams.get(index) {
        Some(Some(old)) if **old == *new => return Some(Rc::clone(old)),
        None | Some(None) if new.is_default() => return None,
        _ => {}
    }
    replace(current, index, (!new.is_default()).then(|| Rc::new(new.clone())))
}

#[inline]
fn replace(
    current: &mut ThreadState,
    device: usize,
    new: Option<Rc<Stream>>,
) -> Option<Rc<Stream>> {
    if current.streams.len() <= device {
        current.streams.resize(device + 1, None);
    }
    std::mem::replace(&mut current.streams[device], new)
}

/// Restores the device that a guard saved. Does nothing if the thread has no entry for the `Devices`: the guard changed
/// nothing, the `Devices` is gone, or the thread is ending.
#[inline]
pub(crate) fn restore_device(id: u64, device: usize) {
    change(id, |c| c.device = device);
}

/// Restores the current device, and the current stream of device `on`.
#[inline]
pub(crate) fn restore(id: u64, on: usize, (device, mut stream): SavedState) {
    change(id, |c| {
        c.device = device;
        stream = replace(c, on, stream.take());
    });
}

/// Runs `f` as in a new thread, with no chosen device and no chosen stream. Restores the thread's
/// choices afterwards, even if `f` panics. With this function, a thread that runs several jobs starts
/// each job without the choices of the previous jobs.
///
/// ```
/// use std::sync::Arc;
/// use warpline_cuda_sys_safe::{Driver, sim::SimConfig};
/// use warpline_stream::{Devices, apart};
///
/// let driver: Arc<dyn Driver> = SimConfig::new(2).build();
/// let devices = Devices::new(driver)?;
/// devices.set_device(1)?;
/// apart(|| {
///     assert_eq!(devices.current_device(), 0);
///     devices.set_current_stream(&devices.get(1)?.stream_from_pool(0)?)
/// })?;
/// assert_eq!(devices.current_device(), 1);
/// assert!(devices.current_stream(1)?.is_default());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn apart<R>(f: impl FnOnce() -> R) -> R {
    struct RestoreThreadStates(Vec<ThreadState>);
    impl Drop for RestoreThreadStates {
        fn drop(&mut self) {
            swap(&mut self.0);
        }
    }
    fn swap(other: &mut Vec<ThreadState>) {
        // Fails if the thread is ending and its table is destroyed.
        let _ = CURRENT.try_with(|table| std::mem::swap(&mut *table.borrow_mut(), other));
    }
    let mut restore = RestoreThreadStates(Vec::new());
    swap(&mut restore.0);
    let result = f();
    drop(restore);
    result
}
