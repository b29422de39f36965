//! Encoding and decoding of messages, with checks of all values.

use std::panic::Location;

use warpline_runtime::{ExportedStorage, Layout, Sizes, Strides, checked_numel};

use crate::{DType, Error, ErrorKind, Result, Tensor};

/// First bytes of each message: the format's magic number and version.
const MAGIC: [u8; 8] = *b"wrplne\x00\x03";

/// Length of a message header, in bytes: the magic number, the kind, and the length of the body.
pub(super) const HEADER_LEN: usize = 16;

/// Maximum number of dimensions of a tensor.
const MAX_DIMS: usize = 64;

/// Maximum length of a body, in bytes.
const MAX_BODY_LEN: usize = 128 + 16 * MAX_DIMS;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageKind {
    /// A tensor, with the descriptor of its memory.
    Tensor = 1,
    /// The sender's work on a tensor is complete, or will be when the named signal arrives.
    Event = 2,
    /// Announces a semaphore and carries its file descriptor. Later messages contain values that this semaphore will
    /// reach.
    Semaphore = 3,
}

/// A value that one of the sender's semaphores will reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signal {
    /// Index of the semaphore, in the order of announcements.
    pub(super) semaphore: u32,
    pub(super) number: u32,
}

/// The message of a tensor, without the descriptor of the tensor's memory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TensorMessage {
    pub(super) layout: Layout,
    pub(super) dtype: DType,
    pub(super) bytes: usize,
    pub(super) mapped: usize,
    pub(super) id: u128,
    pub(super) device: [u8; 16],
    /// Whether the memory belongs to the simulated driver, not to `cuda`.
    pub(super) simulated: bool,
    /// Whether the memory is host memory, not device memory.
    pub(super) host: bool,
    pub(super) requires_grad: bool,
    /// The signal after the sender's work on the tensor; `None` if that work is already complete.
    pub(super) signal: Option<Signal>,
}

impl TensorMessage {
    #[track_caller]
    pub(super) fn new(
        tensor: &Tensor,
        exported: &ExportedStorage,
        signal: Option<Signal>,
    ) -> Result<Self> {
        let sent = Self {
            layout: tensor.layout().clone(),
            dtype: tensor.dtype(),
            bytes: exported.bytes,
            mapped: exported.mapped,
            id: exported.id,
            device: exported.device,
            simulated: exported.driver != "cuda",
            host: exported.host,
            requires_grad: tensor.requires_grad(),
            signal,
        };
        // Fails in the sender, instead of in the receiver.
        match sent.flaw() {
            None => Ok(sent),
            Some(flaw) => {
                let reason = format!("{flaw}; make it contiguous first");
                Err(ErrorKind::CannotShare { reason }.of("send"))
            }
        }
    }

    /// Returns the reason why the description is invalid; `None` if it is valid. Does not check that the tensor lies
    /// inside its storage; the receiver does, once it has the storage.
    fn flaw(&self) -> Option<&'static str> {
        if self.layout.ndim() > MAX_DIMS {
            return Some("it has more than 64 dimensions");
        }
        if self.requires_grad && !self.dtype.is_float() {
            return Some("it requires a gradient, but its dtype is not floating-point");
        }
        let numel = checked_numel(self.layout.sizes()).ok();
        let bytes = numel.and_then(|numel| numel.checked_mul(self.dtype.size()));
        // Strides of 0 could make a copy of the tensor arbitrarily large.
        match bytes {
            Some(bytes) if bytes <= self.bytes => None,
            _ => Some("it has more elements than its storage has room for"),
        }
    }

    pub(super) fn driver(&self) -> &'static str {
        if self.simulated { "sim" } else { "cuda" }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = vec![self.dtype as u8, u8::from(self.simulated), self.layout.ndim() as u8];
        body.push(u8::from(self.host) | u8::from(self.requires_grad) << 1);
        body.extend_from_slice(&self.device);
        body.extend_from_slice(&self.id.to_le_bytes());
        body.extend_from_slice(&encode_signal(self.signal));
        let numbers = [self.bytes, self.mapped, self.layout.offset()];
        let numbers = numbers.iter().chain(self.layout.sizes()).map(|&number| number as u64);
        let strides = self.layout.strides().iter().map(|&stride| stride as i64 as u64);
        body.extend(numbers.chain(strides).flat_map(u64::to_le_bytes));
        message(MessageKind::Tensor, &body)
    }

    #[track_caller]
    pub(super) fn decode(body: &[u8]) -> Result<Self> {
        let mut rest = body;
        let [dtype, simulated, ndim, flags] = take(&mut rest)?;
        let (device, id) = (take(&mut rest)?, u128::from_le_bytes(take(&mut rest)?));
        let signal = take_signal(&mut rest)?;
        let mut number = || take(&mut rest).map(u64::from_le_bytes);
        let location = Location::caller();
        let mut size = || {
            let size = usize::try_from(number()?);
            size.map_err(|_| invalid_message("a size is too large").at(location))
        };
        let (bytes, mapped, offset) = (size()?, size()?, size()?);
        let sizes: Sizes = (0..ndim).map(|_| size()).collect::<Result<_>>()?;
        let strides = (0..ndim).map(|_| number().map(|stride| stride as i64 as isize));
        let strides: Strides = strides.collect::<Result<_>>()?;
        if !rest.is_empty() {
            return Err(invalid_message("it is longer than it says"));
        }
        let dtype = DType::ALL.get(usize::from(dtype)).copied();
        let Some(dtype) = dtype else { return Err(invalid_message("its dtype is unknown")) };
        let layout = Layout::from_parts(sizes, strides, offset);
        if flags > 3 {
            return Err(invalid_message("its flags are unknown"));
        }
        let sent = Self {
            layout,
            dtype,
            bytes,
            mapped,
            id,
            device,
            simulated: simulated != 0,
            host: flags & 1 != 0,
            requires_grad: flags & 2 != 0,
            signal,
        };
        match sent.flaw() {
            None => Ok(sent),
            Some(flaw) => Err(invalid_message(flaw)),
        }
    }
}

/// Encodes an event of the tensor `id`. `signal` is `None` if all work on the tensor is complete.
pub(super) fn event(id: u128, signal: Option<Signal>) -> Vec<u8> {
    let body = [id.to_le_bytes().as_slice(), &encode_signal(signal)].concat();
    message(MessageKind::Event, &body)
}

#[track_caller]
pub(super) fn decode_event(body: &[u8]) -> Result<(u128, Option<Signal>)> {
    let mut rest = body;
    let id = u128::from_le_bytes(take(&mut rest)?);
    let signal = take_signal(&mut rest)?;
    if rest.is_empty() { Ok((id, signal)) } else { Err(invalid_message("it is too long")) }
}

/// Encodes the announcement of a semaphore, without its descriptor.
pub(super) fn semaphore(index: u32, device: [u8; 16], bytes: usize) -> Vec<u8> {
    let (index, bytes) = (index.to_le_bytes(), (bytes as u64).to_le_bytes());
    message(MessageKind::Semaphore, &[device.as_slice(), &index, &bytes].concat())
}

#[track_caller]
pub(super) fn decode_semaphore(body: &[u8]) -> Result<(u32, [u8; 16], usize)> {
    let mut rest = body;
    let (device, index) = (take(&mut rest)?, u32::from_le_bytes(take(&mut rest)?));
    let Ok(bytes) = usize::try_from(u64::from_le_bytes(take(&mut rest)?)) else {
        return Err(invalid_message("a size is too large"));
    };
    if rest.is_empty() {
        Ok((index, device, bytes))
    } else {
        Err(invalid_message("it is too long"))
    }
}

fn encode_signal(signal: Option<Signal>) -> [u8; 9] {
    let mut body = [0; 9];
    if let Some(Signal { semaphore, number }) = signal {
        body[0] = 1;
        body[1..5].copy_from_slice(&semaphore.to_le_bytes());
        body[5..].copy_from_slice(&number.to_le_bytes());
    }
    body
}

#[track_caller]
fn take_signal(rest: &mut &[u8]) -> Result<Option<Signal>> {
    let [there] = take(rest)?;
    let [semaphore, number] = [take(rest)?, take(rest)?].map(u32::from_le_bytes);
    Ok((there != 0).then_some(Signal { semaphore, number }))
}

fn message(kind: MessageKind, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER_LEN + body.len());
    message.extend_from_slice(&MAGIC);
    message.extend_from_slice(&(kind as u32).to_le_bytes());
    message.extend_from_slice(&(body.len() as u32).to_le_bytes());
    message.extend_from_slice(body);
    message
}

/// Decodes a header to the kind of the message and the length of its body.
#[track_caller]
pub(super) fn decode_header(header: [u8; HEADER_LEN]) -> Result<(MessageKind, usize)> {
    let mut rest = header.as_slice();
    let magic: [u8; 8] = take(&mut rest)?;
    if magic != MAGIC {
        return Err(invalid_message(
            "it does not begin with the magic number of this version of Warpline",
        ));
    }
    let [kind, length] = [take(&mut rest)?, take(&mut rest)?].map(u32::from_le_bytes);
    let kind = match kind {
        1 => MessageKind::Tensor,
        2 => MessageKind::Event,
        3 => MessageKind::Semaphore,
        _ => return Err(invalid_message("its kind is unknown")),
    };
    match usize::try_from(length) {
        Ok(length) if length <= MAX_BODY_LEN => Ok((kind, length)),
        _ => Err(invalid_message("it is longer than the longest message")),
    }
}

#[track_caller]
fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N]> {
    let Some((bytes, left)) = rest.split_first_chunk() else {
        return Err(invalid_message("it is too short"));
    };
    *rest = left;
    Ok(*bytes)
}

#[cold]
#[track_caller]
pub(super) fn invalid_message(why: &str) -> Error {
    Error::invalid("recv", format!("the other process sent an invalid message: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent() -> TensorMessage {
        let layout = Layout::contiguous(&[3, 4]).and_then(|l| l.transpose(0, 1)).unwrap();
        let dtype = DType::F64;
        TensorMessage {
            layout,
            dtype,
            bytes: 96,
            mapped: 2 << 20,
            id: 7 << 64 | 9,
            device: [3; 16],
            simulated: true,
            host: false,
            requires_grad: true,
            signal: Some(Signal { semaphore: u32::MAX - 1, number: u32::MAX }),
        }
    }

    fn body(message: &[u8]) -> Vec<u8> {
        let (header, body) = message.split_first_chunk().unwrap();
        assert_eq!(decode_header(*header).unwrap().1, body.len());
        body.to_vec()
    }

    #[test]
    fn messages_round_trip() {
        assert_eq!(TensorMessage::decode(&body(&sent().encode())).unwrap(), sent());
        for signal in [None, sent().signal, Some(Signal { semaphore: 0, number: 0 })] {
            let event = body(&event(1 << 100, signal));
            assert_eq!(decode_event(&event).unwrap(), (1 << 100, signal));
        }
        let semaphore = body(&semaphore(7, [9; 16], 4096));
        assert_eq!(decode_semaphore(&semaphore).unwrap(), (7, [9; 16], 4096));
    }

    #[test]
    fn each_changed_byte_gives_an_error_or_a_valid_message() {
        let good = sent().encode();
        for at in 0..good.len() {
            for value in 0..=255 {
                let mut bad = good.clone();
                bad[at] = value;
                let (header, rest) = bad.split_first_chunk().unwrap();
                let Ok((_, length)) = decode_header(*header) else { continue };
                assert!(length <= MAX_BODY_LEN);
                if let Ok(read) = TensorMessage::decode(rest) {
                    assert!(read.flaw().is_none());
                }
            }
        }
        let whole = body(&good);
        for length in 0..whole.len() {
            assert!(TensorMessage::decode(&whole[..length]).is_err(), "{length} bytes");
        }
        assert!(TensorMessage::decode(&[whole, vec![0]].concat()).is_err());
    }

    #[test]
    fn a_message_with_unbounded_sizes_is_refused() {
        let mut huge = sent();
        huge.layout = Layout::from_parts([1 << 40].into_iter().collect(), Strides::new(), 0);
        assert!(TensorMessage::decode(&body(&huge.encode())).is_err());
    }
}
