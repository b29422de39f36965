//! Reads recorded traces. A line `a,ID,BYTES,STREAM` allocates a block and `f,ID,,` frees it;
//! `c,ID,,` says that no stream uses the freed memory any more.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::moe;

/// Longest line, in bytes: three numbers of 20 digits fit.
const MAX_LINE: u64 = 128;
/// Most text that is read from one file, in bytes: a small gzip stream can expand without end.
const MAX_TEXT: u64 = 1 << 30;

/// A trace that can be replayed without a look-up.
#[derive(Debug, Default, PartialEq)]
pub struct Trace {
    /// The file's name.
    pub name: String,
    /// The `a` and `f` lines.
    pub ops: Vec<Op>,
    /// The line and the id of each of `ops`.
    pub origins: Vec<Origin>,
    /// Number of slots that `ops` uses.
    pub slots: usize,
    /// The numbers of the streams in the file, in order of appearance.
    pub streams: Vec<u64>,
    /// Frees whose memory was still in use while further blocks were allocated or freed, in the
    /// order of the frees.
    pub late: Vec<Late>,
    /// Whether the file has `c` lines.
    pub completions: bool,
}

/// An allocation or a free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Puts a block into an empty slot.
    Malloc {
        /// Index of the slot.
        slot: u32,
        /// Index into [`Trace::streams`].
        stream: u32,
        /// Size, in bytes.
        bytes: usize,
    },
    /// Empties a slot.
    Free {
        /// Index of the slot.
        slot: u32,
    },
}

/// The line and the id of an event in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The line, from 1.
    pub line: usize,
    /// The block's id.
    pub id: u64,
}

/// A free after which another stream used the memory for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late {
    /// Index of the free in [`Trace::ops`].
    pub free: usize,
    /// Index in [`Trace::ops`] of the first event after the completion, or the number of events if
    /// none follows.
    pub until: usize,
}

/// An error of [`Trace::open`] or [`Trace::read`].
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be opened.
    #[error("{name}: cannot be opened: {source}")]
    Open {
        /// The file's name.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// A `moe:…` name that does not name a trace.
    #[error("{name}: cannot be made: {reason}")]
    Generate {
        /// The `moe:…` name.
        name: String,
        /// The error in the name.
        reason: String,
    },
    /// A line that is not part of a trace.
    #[error("{name}: line {line}: {reason}")]
    Line {
        /// The file's name.
        name: String,
        /// The line, from 1.
        line: usize,
        /// The error in the line, or the reason why it cannot be read.
        reason: String,
    },
}

/// Slots of the live blocks by id, while a file is read.
#[derive(Default)]
struct Slots {
    live: HashMap<u64, u32>,
    /// Frees without a completion so far: their index in [`Trace::ops`] by id.
    freed: HashMap<u64, usize>,
    /// Slots that are free for another block.
    empty: Vec<u32>,
}

impl Trace {
    /// Reads a file, plain or gzipped (by its first bytes). A path `moe:…` names a generated trace
    /// instead ([`moe::generate`]).
    ///
    /// # Errors
    /// [`TraceError::Open`] if the file cannot be opened, [`TraceError::Generate`] if
    /// [`moe::generate`] does not know the `moe:…` name, and [`TraceError::Line`] with the first
    /// line that cannot be read.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Real files with this prefix can be opened by a path with a folder.
        if path.to_string_lossy().starts_with(moe::PREFIX) {
            return match moe::generate(&name) {
                Ok(text) => Self::read(&name, text.as_bytes()),
                Err(reason) => Err(TraceError::Generate { name, reason }),
            };
        }
        match File::open(path) {
            Ok(file) => Self::read(&name, file),
            Err(source) => Err(TraceError::Open { name, source }),
        }
    }

    /// Reads a trace from `input`; `name` is the name of its file.
    ///
    /// # Errors
    /// [`TraceError::Line`] with the first line that cannot be read, also if `name` ends with `.gz`
    /// and the input is not a gzip stream.
    pub fn read(name: &str, input: impl Read) -> Result<Self, TraceError> {
        Self::read_at_most(MAX_TEXT, name, input)
    }

    /// Reads a trace from `input`, of at most `most` bytes of text after decompression.
    ///
    /// # Errors
    /// The same as [`Trace::read`]; [`TraceError::Line`] if the text is longer than `most` bytes.
    pub fn read_at_most(most: u64, name: &str, input: impl Read) -> Result<Self, TraceError> {
        let mut trace = Self { name: name.to_owned(), ..Self::default() };
        let mut line = 0;
        match trace.read_lines(most, input, &mut line) {
            Ok(()) => Ok(trace),
            Err(reason) => Err(TraceError::Line { name: trace.name, line, reason }),
        }
    }

    fn read_lines(&mut self, most: u64, input: impl Read, line: &mut usize) -> Result<(), String> {
        *line = 1;
        let mut input = BufReader::new(input);
        let zipped = input.fill_buf().map_err(|e| e.to_string())?.starts_with(&[0x1f, 0x8b]);
        if !zipped && self.name.ends_with(".gz") {
            return Err(String::from("not a gzip stream"));
        }
        let lines: Box<dyn BufRead> = match zipped {
            true => Box::new(BufReader::new(MultiGzDecoder::new(input))),
            false => Box::new(input),
        };
        let mut slots = Slots::default();
        let mut text = String::new();
        let mut lines = lines.take(most.saturating_add(1));
        loop {
            let read = lines.by_ref().take(MAX_LINE).read_line(&mut text);
            let read = read.map_err(|e| read_error(&e, zipped))?;
            if lines.limit() == 0 {
                return Err(format!("the text goes on after {most} bytes, more than is read"));
            }
            if read == 0 {
                break;
            }
            if read as u64 == MAX_LINE && !text.ends_with('\n') {
                return Err(format!("the line is longer than {MAX_LINE} bytes"));
            }
            let record = text.trim_end_matches(['\n', '\r']);
            if !record.is_empty() {
                self.read_line(record, *line, &mut slots)?;
            }
            text.clear();
            *line += 1;
        }
        // Frees without a completion stay in use until the end.
        let until = self.ops.len();
        self.late.extend(slots.freed.into_values().map(|free| Late { free, until }));
        self.late.retain(|late| late.until > late.free + 1);
        self.late.sort_unstable_by_key(|late| late.free);
        Ok(())
    }

    fn read_line(&mut self, text: &str, line: usize, slots: &mut Slots) -> Result<(), String> {
        let fields: Vec<&str> = text.split(',').collect();
        let op = fields[0];
        let wanted = match op {
            "a" => 4,
            "f" | "c" => 2,
            _ => return Err(format!("unknown operation `{op}`: expected `a`, `f` or `c`")),
        };
        if fields.len() < wanted || fields[..wanted].iter().any(|field| field.is_empty()) {
            let names = ["the operation", "an id", "a number of bytes", "a stream"];
            let missing = (0..wanted).find(|&i| fields.get(i).is_none_or(|f| f.is_empty()));
            return Err(format!("`{op}` lacks {}", names[missing.unwrap_or_default()]));
        }
        if fields.len() > 4 || fields[wanted..].iter().any(|field| !field.is_empty()) {
            return Err(format!("`{op}` has more than {wanted} fields"));
        }
        let id = number(fields[1], "the id")?;
        match op {
            "a" => {
                let bytes = number(fields[2], "the number of bytes")?;
                let bytes = usize::try_from(bytes).map_err(|e| e.to_string())?;
                let stream = self.stream(number(fields[3], "the stream")?);
                let slot = slots.empty.pop().unwrap_or(self.slots as u32);
                if slots.live.insert(id, slot).is_some() {
                    return Err(format!("id {id} is allocated twice"));
                }
                self.slots = self.slots.max(slot as usize + 1);
                self.push(Op::Malloc { slot, stream, bytes }, Origin { line, id });
            }
            "f" => {
                let Some(slot) = slots.live.remove(&id) else {
                    return Err(match slots.freed.contains_key(&id) || self.frees(id) {
                        true => format!("id {id} is freed twice"),
                        false => format!("id {id} is freed but was never allocated"),
                    });
                };
                slots.freed.insert(id, self.ops.len());
                slots.empty.push(slot);
                self.push(Op::Free { slot }, Origin { line, id });
            }
            _ => {
                let Some(free) = slots.freed.remove(&id) else {
                    return Err(format!("id {id} is completed but no free of it is pending"));
                };
                self.completions = true;
                self.late.push(Late { free, until: self.ops.len() });
            }
        }
        Ok(())
    }

    fn push(&mut self, op: Op, origin: Origin) {
        self.ops.push(op);
        self.origins.push(origin);
    }

    /// Returns whether an event of this id was read before.
    fn frees(&self, id: u64) -> bool {
        self.origins.iter().any(|origin| origin.id == id)
    }

    fn stream(&mut self, number: u64) -> u32 {
        let index = self.streams.iter().position(|&s| s == number).unwrap_or_else(|| {
            self.streams.push(number);
            self.streams.len() - 1
        });
        index as u32
    }
}

fn number(text: &str, what: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{what} `{text}` is not a whole number from 0"))
}

fn read_error(error: &io::Error, zipped: bool) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof if zipped => String::from("the gzip stream is cut short"),
        io::ErrorKind::InvalidInput if zipped => format!("damaged gzip stream: {error}"),
        io::ErrorKind::InvalidData => format!("not text: {error}"),
        _ => error.to_string(),
    }
}
