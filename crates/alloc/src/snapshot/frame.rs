//! Source locations and stack frames.

use std::backtrace::Backtrace;
use std::panic::Location;

/// Placeholder for an unknown name, as in PyTorch.
const UNKNOWN: &str = "??";

/// A stack frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Name of the function. `??` if it is not known.
    pub name: String,
    /// Name of the source file. `??` if it is not known.
    pub filename: String,
    /// Line number, from 1. 0 if it is not known.
    pub line: u32,
}

impl From<&Location<'_>> for Frame {
    fn from(site: &Location<'_>) -> Self {
        Self { name: UNKNOWN.into(), filename: site.file().into(), line: site.line() }
    }
}

impl Frame {
    /// Returns the frames of a captured backtrace, innermost first, starting at the program's call
    /// at `site`. Slow when a backtrace is converted for the first time, because its symbols are
    /// resolved then.
    pub(crate) fn of_backtrace(backtrace: &Backtrace, site: Option<&Location<'_>>) -> Vec<Self> {
        let mut frames = parse(&backtrace.to_string());
        let first = site
            .and_then(|site| frames.iter().position(|frame| frame.is_at(site)))
            .or_else(|| frames.iter().position(|frame| !frame.is_own()));
        frames.drain(..first.unwrap_or(0));
        frames
    }

    /// Compares line and file name only, because the frame and the location may name the file
    /// relative to different folders.
    fn is_at(&self, site: &Location<'_>) -> bool {
        let name = |path: &str| path.rsplit(['/', '\\']).next().map(String::from);
        self.line == site.line() && name(&self.filename) == name(site.file())
    }

    /// Returns whether the frame's name is one of `std::backtrace` or of this crate. Used if no
    /// frame matches the call site, for example without line numbers; names then include the full
    /// path.
    fn is_own(&self) -> bool {
        let name = self.name.trim_start_matches('<');
        ["std::backtrace", "warpline_alloc::"].iter().any(|own| name.starts_with(own))
    }
}

/// Parses the text of a backtrace, because stable Rust gives no other access to its frames:
/// `3: name`, and on the next line, if known, `at file:line:column`.
fn parse(text: &str) -> Vec<Frame> {
    let mut frames: Vec<Frame> = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(place) = line.strip_prefix("at ") {
            if let Some(frame) = frames.last_mut() {
                (frame.filename, frame.line) = split_place(place);
            }
        } else if let Some((index, name)) = line.split_once(": ")
            && index.parse::<u32>().is_ok()
        {
            frames.push(Frame { name: name.into(), filename: UNKNOWN.into(), line: 0 });
        }
    }
    frames
}

/// Splits `file:line:column` or `file:line`. File names may contain colons.
fn split_place(place: &str) -> (String, u32) {
    let mut file = place;
    let mut line = 0;
    for _ in 0..2 {
        match file.rsplit_once(':').map(|(file, number)| (file, number.parse())) {
            Some((rest, Ok(number))) => (file, line) = (rest, number),
            _ => break,
        }
    }
    (file.into(), line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(name: &str, filename: &str, line: u32) -> Frame {
        Frame { name: name.into(), filename: filename.into(), line }
    }

    #[test]
    fn a_backtraces_text_becomes_frames() {
        let text = "   0: a::b::{{closure}}\n             at ./src/a b.rs:12:5\n   1: <T as U>::c\n   \
                    2: d\n             at C:\\d.rs:7\n";
        assert_eq!(
            parse(text),
            [
                frame("a::b::{{closure}}", "./src/a b.rs", 12),
                frame("<T as U>::c", "??", 0),
                frame("d", "C:\\d.rs", 7)
            ]
        );
        assert_eq!(parse("disabled backtrace"), []);
    }

    #[test]
    fn a_real_backtrace_begins_at_the_site() {
        #[track_caller]
        fn deeper() -> (&'static Location<'static>, Backtrace) {
            (Location::caller(), Backtrace::force_capture())
        }
        let (site, backtrace) = deeper();
        let frames = Frame::of_backtrace(&backtrace, Some(site));
        assert!(frames.len() > 1 && frames.iter().all(|frame| !frame.name.is_empty()));
        assert_eq!(frames[0].line, site.line(), "{frames:#?}");
    }

    #[test]
    fn own_frames_are_left_out_where_lines_are_not_known() {
        let own = |name: &str| frame(name, "??", 0).is_own();
        assert!(own("std::backtrace::Backtrace::create"));
        assert!(own("<warpline_alloc::trace::TraceRing>::push"));
        assert!(!own("std::rt::lang_start") && !own("main"));
    }

    #[test]
    fn a_site_names_file_and_line() {
        let site = Location::caller();
        assert_eq!(Frame::from(site), frame("??", file!(), site.line()));
        assert!(site.file().ends_with("frame.rs"));
    }
}
