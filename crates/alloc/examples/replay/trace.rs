//! Reads recorded traces: `a,ID,BYTES,STREAM` allocates, `f,ID,,` frees, `c,ID,,` says that the
//! memory of a free is no longer used by any stream.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::moe;

/// No line is longer: three numbers of 20 digits have room.
const MAX_LINE: u64 = 128;
/// Text that is read of a file, in bytes: a small gzip stream can expand without end.
const MAX_TEXT: u64 = 1 << 30;

/// A trace, ready to be replayed without a look-up.
#[derive(Debug, Default, PartialEq)]
pub struct Trace {
    /// The file's name.
    pub name: String,
    /// Its `a` and `f` lines.
    pub ops: Vec<Op>,
    /// Where each of `ops` stands.
    pub origins: Vec<Origin>,
    /// Slots that `ops` put blocks in.
    pub slots: usize,
    /// The numbers of the streams in the file, in order of appearance.
    pub streams: Vec<u64>,
    /// Frees whose memory stayed in use while further blocks were allocated or freed, in the order
    /// of the frees.
    pub late: Vec<Late>,
    /// Whether there are `c` lines.
    pub completions: bool,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Puts a block into an empty slot.
    Malloc {
        /// Where to.
        slot: u32,
        /// Which of [`Trace::streams`].
        stream: u32,
        /// How many bytes.
        bytes: usize,
    },
    /// Empties a slot.
    Free {
        /// Which.
        slot: u32,
    },
}

/// What an event is called in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The line, from 1.
    pub line: usize,
    /// The block's id.
    pub id: u64,
}

/// A free whose memory was used by another stream for some time after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late {
    /// Which of [`Trace::ops`] frees it.
    pub free: usize,
    /// Which of them is the first after its completion; their number if none is.
    pub until: usize,
}

/// Why a file is not a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// There is no such file, or it may not be read.
    #[error("{name}: cannot be opened: {source}")]
    Open {
        /// The file's name.
        name: String,
        /// What the system says.
        source: io::Error,
    },
    /// It was to be made up, and is not one that can be.
    #[error("{name}: cannot be made: {reason}")]
    Generate {
        /// What it was called.
        name: String,
        /// What is wrong with that.
        reason: String,
    },
    /// A line that does not belong into a trace.
    #[error("{name}: line {line}: {reason}")]
    Line {
        /// The file's name.
        name: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
}

/// Blocks by id while a file is read.
#[derive(Default)]
struct Slots {
    live: HashMap<u64, u32>,
    /// Frees without a completion yet: which of [`Trace::ops`].
    freed: HashMap<u64, usize>,
    /// Slots that are empty again.
    empty: Vec<u32>,
}

impl Trace {
    /// Reads a file; gzip is told by its first bytes or the file's name. `moe:…` is made up (`moe.rs`).
    ///
    /// # Errors
    /// The file cannot be opened, or what is wrong with which line.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // A file of such a name has a folder.
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

    /// Reads a trace from anywhere; `name` is its file's.
    ///
    /// # Errors
    /// As [`Trace::open`].
    pub fn read(name: &str, input: impl Read) -> Result<Self, TraceError> {
        Self::read_at_most(MAX_TEXT, name, input)
    }

    /// As [`Trace::read`], of no more than so many bytes of text, however few they come from.
    ///
    /// # Errors
    /// As [`Trace::open`].
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
        // What is still in use at the end stays so.
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

    /// Whether an id was freed before.
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
