//! Callbacks at the end of a backward pass.

use std::cell::RefCell;

use super::reclaim::Reclaimed;
#[cfg(doc)]
use crate::ErrorKind;
use crate::{Error, Result};

type Callback = Reclaimed<Box<dyn FnOnce() -> Result<()>>>;

thread_local! {
    /// A list of callbacks for each pass that this thread runs, the innermost last.
    static QUEUED: RefCell<Vec<Vec<Callback>>> = const { RefCell::new(Vec::new()) };
}

/// Queues a function that the running backward pass calls at its end
/// (`Variable._execution_engine.queue_callback`). A hook can use it to process the gradients of all leaves. The pass
/// calls the functions in order on its thread, with the thread's own current streams, after these streams wait for the
/// gradients. A pass that fails drops them. Functions that are queued in a pass within another pass are called by the
/// inner pass.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use warpline::{autograd::queue_callback, ones};
///
/// static DONE: AtomicBool = AtomicBool::new(false);
/// let x = ones([2], ())?.requires_grad_(true)?;
/// x.register_post_accumulate_grad_hook(|_| {
///     queue_callback(|| {
///         DONE.store(true, Ordering::Relaxed);
///         Ok(())
///     })
/// })?;
/// x.sum(())?.backward()?;
/// assert!(DONE.load(Ordering::Relaxed));
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Gradient`] if this thread runs no backward pass.
#[track_caller]
pub fn queue_callback(callback: impl FnOnce() -> Result<()> + 'static) -> Result<()> {
    let mut callback = Some(Callback::new(Box::new(callback)));
    QUEUED.with_borrow_mut(|passes| {
        if let Some(callbacks) = passes.last_mut() {
            callbacks.extend(callback.take());
        }
    });
    // A callback that was not queued is dropped here, after the borrow has ended.
    match callback {
        None => Ok(()),
        Some(_) => Err(Error::gradient(
            "queue_callback",
            "this thread runs no backward pass; call it in a hook",
        )),
    }
}

/// Runs a pass, then the callbacks that were queued during the pass.
pub(super) fn with_callbacks<R>(pass: impl FnOnce() -> Result<R>) -> Result<R> {
    /// Removes the callbacks of the pass, also after a panic.
    struct RunningPass;
    impl RunningPass {
        fn next(&self) -> Vec<Callback> {
            QUEUED
                .with_borrow_mut(|passes| passes.last_mut().map(std::mem::take))
                .unwrap_or_default()
        }
    }
    impl Drop for RunningPass {
        fn drop(&mut self) {
            // Drop the callbacks, which own values of the program, without the borrow.
            let dropped = QUEUED.try_with(|passes| passes.borrow_mut().pop());
            drop(dropped);
        }
    }
    QUEUED.with_borrow_mut(|passes| passes.push(Vec::new()));
    let running = RunningPass;
    let result = pass()?;
    // A callback may queue further callbacks.
    loop {
        let callbacks = running.next();
        if callbacks.is_empty() {
            return Ok(result);
        }
        callbacks.into_iter().try_for_each(|callback| callback.into_inner()())?;
    }
}
