//! Location of a read that prints a tensor. Formatting code does not know its caller.

use std::backtrace::Backtrace;
use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    static PRINTED: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// Runs `read`, which reads a tensor for printing, so that races are reported at the line that
/// prints. `own` is the end of the path of the formatting code's file. The printing line is the
/// first caller after that file that is not in the standard library. Slow: use it only while races
/// are detected.
#[doc(hidden)]
pub fn printed<R>(own: &str, read: impl FnOnce() -> R) -> R {
    struct RestorePrinted(Option<Arc<str>>);
    impl Drop for RestorePrinted {
        fn drop(&mut self) {
            let _ = PRINTED.try_with(|printed| printed.replace(self.0.take()));
        }
    }
    let line = line_of(&Backtrace::force_capture().to_string(), own);
    let line = line.unwrap_or_else(|| "a line known only with debug information".to_owned());
    let former = PRINTED.try_with(|printed| printed.replace(Some(line.into()))).ok().flatten();
    let _restore = RestorePrinted(former);
    read()
}

/// Returns the line of the program that is printing a tensor in this thread. `None` if there is none.
pub(super) fn current() -> Option<Arc<str>> {
    PRINTED.try_with(|printed| printed.borrow().clone()).ok().flatten()
}

/// Returns the first line of a backtrace after the formatting code's file that is not in the
/// standard library.
fn line_of(backtrace: &str, own: &str) -> Option<String> {
    let places = backtrace.lines().filter_map(|line| line.trim().strip_prefix("at "));
    let of_std = |place: &&str| {
        let parts = ["/rustc/", "/library/core/", "/library/alloc/", "/library/std/"];
        parts.iter().any(|part| place.contains(part))
    };
    let mut callers = places.skip_while(|place| !place.contains(own));
    callers.find(|place| !place.contains(own) && !of_std(place)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printing_line_is_found_behind_the_standard_library() {
        let backtrace = "   3: <w::Tensor as core::fmt::Display>::fmt
             at /src/print.rs:20:5
   4: core::fmt::write
             at /rustc/5980/library/core/src/fmt/mod.rs:1:1
   5: std::io::stdio::_print
             at /home/me/.rustup/toolchains/x/lib/rustlib/src/rust/library/std/src/io/stdio.rs:1:1
   6: app::main
             at ./src/main.rs:7:5
   7: main
             at ./other.rs:1:1";
        let line = line_of(backtrace, "src/print.rs");
        assert_eq!(line.as_deref(), Some("./src/main.rs:7:5"));
        assert_eq!(line_of("   0: app::main", "print.rs"), None);
    }
}
