//! Where a process was when it died: its call stack on standard error.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod linux {
    use std::ffi::c_int;

    const SIGNALS: [c_int; 5] =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT];

    extern "C" fn died(signal: c_int) {
        let mut frames = [std::ptr::null_mut(); 48];
        // SAFETY: the functions were called before, so that they need no memory now, or at worst
        // the process dies here instead of below.
        unsafe {
            let count = libc::backtrace(frames.as_mut_ptr(), frames.len() as c_int);
            libc::backtrace_symbols_fd(frames.as_ptr(), count, 2);
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }

    pub(crate) fn report() {
        let mut frames = [std::ptr::null_mut(); 2];
        // SAFETY: the handler takes a signal's number; the first call loads what it needs.
        unsafe {
            libc::backtrace(frames.as_mut_ptr(), 2);
            for signal in SIGNALS {
                libc::signal(signal, died as extern "C" fn(c_int) as libc::sighandler_t);
            }
        }
    }
}

/// Has the process print its call stack when a signal ends it.
pub(crate) fn report() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    linux::report();
}
