//! Prints the call stack to standard error when the process crashes.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod linux {
    use std::ffi::c_int;

    const SIGNALS: [c_int; 5] =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT];

    extern "C" fn died(signal: c_int) {
        let mut frames = [std::ptr::null_mut(); 48];
        // SAFETY: an earlier call has loaded everything that these functions need, so they allocate
        // no memory. If they fail, the process dies here instead of below.
        unsafe {
            let count = libc::backtrace(frames.as_mut_ptr(), frames.len() as c_int);
            libc::backtrace_symbols_fd(frames.as_ptr(), count, 2);
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }

    pub(crate) fn report() {
        let mut frames = [std::ptr::null_mut(); 2];
        // SAFETY: the handler takes a signal number. The first call of `backtrace` loads all that
        // the handler needs.
        unsafe {
            libc::backtrace(frames.as_mut_ptr(), 2);
            for signal in SIGNALS {
                libc::signal(signal, died as extern "C" fn(c_int) as libc::sighandler_t);
            }
        }
    }
}

/// Makes the process print its call stack when a signal ends it.
pub(crate) fn report() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    linux::report();
}
