//! What a message says, and that it says nothing that cannot be.

use std::panic::Location;

use warpline_runtime::{ExportedStorage, Layout, Sizes, Strides, checked_numel};

use crate::{DType, Error, ErrorKind, Result, Tensor};

/// The first bytes of each message: a mark and the version of what follows.
const MARK: [u8; 8] = *b"wrplne\x00\x03";

/// Bytes of the part that all messages have: the mark, the kind, the length of the rest.
pub(super) const HEAD: usize = 16;

/// More dimensions are refused.
const MOST_DIMS: usize = 64;

/// More than any message has.
const MOST_BYTES: usize = 128 + 16 * MOST_DIMS;

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A tensor, whose memory comes along.
    Tensor = 1,
    /// All work on a tensor is done, or will be.
    Event = 2,
    /// The semaphore, which comes along, that messages after it name numbers of.
    Semaphore = 3,
}

/// That a semaphore of the sender has a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signal {
    /// The semaphore, by its number among those of the sender.
    pub(super) semaphore: u32,
    pub(super) number: u32,
}

/// A tensor but for what carries its memory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) layout: Layout,
    pub(super) dtype: DType,
    pub(super) bytes: usize,
    pub(super) mapped: usize,
    pub(super) id: u128,
    pub(super) device: [u8; 16],
    /// Of the simulated driver, not of `cuda`.
    pub(super) simulated: bool,
    /// Of the host, not of a device.
    pub(super) host: bool,
    pub(super) requires_grad: bool,
    /// What says that the work on it is done; none if it is.
    pub(super) signal: Option<Signal>,
}

impl Sent {
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
        // What the other side would refuse is said here.
        match sent.flaw() {
            None => Ok(sent),
            Some(flaw) => {
                let reason = format!("{flaw}; make it contiguous first");
                Err(ErrorKind::CannotShare { reason }.of("send"))
            }
        }
    }

    /// Why no tensor can be so, if none can. That it lies inside its storage is seen later.
    fn flaw(&self) -> Option<&'static str> {
        if self.layout.ndim() > MOST_DIMS {
            return Some("it has more than 64 dimensions");
        }
        if self.requires_grad && !self.dtype.is_float() {
            return Some("it requires a gradient, and its dtype is not that of a float");
        }
        let numel = checked_numel(self.layout.sizes()).ok();
        let bytes = numel.and_then(|numel| numel.checked_mul(self.dtype.size()));
        // Or a copy of it could be of any size.
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
        message(Kind::Tensor, &body)
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
            size.map_err(|_| nonsense("a size is too large").at(location))
        };
        let (bytes, mapped, offset) = (size()?, size()?, size()?);
        let sizes: Sizes = (0..ndim).map(|_| size()).collect::<Result<_>>()?;
        let strides = (0..ndim).map(|_| number().map(|stride| stride as i64 as isize));
        let strides: Strides = strides.collect::<Result<_>>()?;
        if !rest.is_empty() {
            return Err(nonsense("it is longer than it says"));
        }
        let dtype = DType::ALL.get(usize::from(dtype)).copied();
        let Some(dtype) = dtype else { return Err(nonsense("its dtype is unknown")) };
        let layout = Layout::from_parts(sizes, strides, offset);
        if flags > 3 {
            return Err(nonsense("its flags are unknown"));
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
            Some(flaw) => Err(nonsense(flaw)),
        }
    }
}

/// That all work on the tensor of this number is done, or what says so.
pub(super) fn event(id: u128, signal: Option<Signal>) -> Vec<u8> {
    let body = [id.to_le_bytes().as_slice(), &encode_signal(signal)].concat();
    message(Kind::Event, &body)
}

#[track_caller]
pub(super) fn decode_event(body: &[u8]) -> Result<(u128, Option<Signal>)> {
    let mut rest = body;
    let id = u128::from_le_bytes(take(&mut rest)?);
    let signal = take_signal(&mut rest)?;
    if rest.is_empty() { Ok((id, signal)) } else { Err(nonsense("it is too long")) }
}

/// A semaphore, but for what carries it, and its number among those of the sender.
pub(super) fn semaphore(index: u32, device: [u8; 16], bytes: usize) -> Vec<u8> {
    let (index, bytes) = (index.to_le_bytes(), (bytes as u64).to_le_bytes());
    message(Kind::Semaphore, &[device.as_slice(), &index, &bytes].concat())
}

#[track_caller]
pub(super) fn decode_semaphore(body: &[u8]) -> Result<(u32, [u8; 16], usize)> {
    let mut rest = body;
    let (device, index) = (take(&mut rest)?, u32::from_le_bytes(take(&mut rest)?));
    let Ok(bytes) = usize::try_from(u64::from_le_bytes(take(&mut rest)?)) else {
        return Err(nonsense("a size is too large"));
    };
    if rest.is_empty() { Ok((index, device, bytes)) } else { Err(nonsense("it is too long")) }
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

fn message(kind: Kind, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEAD + body.len());
    message.extend_from_slice(&MARK);
    message.extend_from_slice(&(kind as u32).to_le_bytes());
    message.extend_from_slice(&(body.len() as u32).to_le_bytes());
    message.extend_from_slice(body);
    message
}

/// What a message is about, and how long the rest of it is.
#[track_caller]
pub(super) fn decode_head(head: [u8; HEAD]) -> Result<(Kind, usize)> {
    let mut rest = head.as_slice();
    let mark: [u8; 8] = take(&mut rest)?;
    if mark != MARK {
        return Err(nonsense("it is none of Warpline's, or of another version"));
    }
    let [kind, length] = [take(&mut rest)?, take(&mut rest)?].map(u32::from_le_bytes);
    let kind = match kind {
        1 => Kind::Tensor,
        2 => Kind::Event,
        3 => Kind::Semaphore,
        _ => return Err(nonsense("its kind is unknown")),
    };
    match usize::try_from(length) {
        Ok(length) if length <= MOST_BYTES => Ok((kind, length)),
        _ => Err(nonsense("it is longer than any")),
    }
}

#[track_caller]
fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N]> {
    let Some((taken, left)) = rest.split_first_chunk() else {
        return Err(nonsense("it is too short"));
    };
    *rest = left;
    Ok(*taken)
}

#[cold]
#[track_caller]
pub(super) fn nonsense(why: &str) -> Error {
    Error::invalid("recv", format!("the other process sent what is no message: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent() -> Sent {
        let layout = Layout::contiguous(&[3, 4]).and_then(|l| l.transpose(0, 1)).unwrap();
        let dtype = DType::F64;
        Sent {
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
        let (head, body) = message.split_first_chunk().unwrap();
        assert_eq!(decode_head(*head).unwrap().1, body.len());
        body.to_vec()
    }

    #[test]
    fn messages_come_back_as_they_were() {
        assert_eq!(Sent::decode(&body(&sent().encode())).unwrap(), sent());
        for signal in [None, sent().signal, Some(Signal { semaphore: 0, number: 0 })] {
            let event = body(&event(1 << 100, signal));
            assert_eq!(decode_event(&event).unwrap(), (1 << 100, signal));
        }
        let semaphore = body(&semaphore(7, [9; 16], 4096));
        assert_eq!(decode_semaphore(&semaphore).unwrap(), (7, [9; 16], 4096));
    }

    #[test]
    fn each_changed_byte_gives_an_error_or_another_message() {
        let good = sent().encode();
        for at in 0..good.len() {
            for value in 0..=255 {
                let mut bad = good.clone();
                bad[at] = value;
                let (head, rest) = bad.split_first_chunk().unwrap();
                let Ok((_, length)) = decode_head(*head) else { continue };
                assert!(length <= MOST_BYTES);
                if let Ok(read) = Sent::decode(rest) {
                    assert!(read.flaw().is_none());
                }
            }
        }
        let whole = body(&good);
        for length in 0..whole.len() {
            assert!(Sent::decode(&whole[..length]).is_err(), "{length} bytes of it");
        }
        assert!(Sent::decode(&[whole, vec![0]].concat()).is_err());
    }

    #[test]
    fn what_would_need_any_amount_of_memory_is_refused() {
        let mut huge = sent();
        huge.layout = Layout::from_parts([1 << 40].into_iter().collect(), Strides::new(), 0);
        assert!(Sent::decode(&body(&huge.encode())).is_err());
    }
}
