//! Messages of the store's protocol: a length, then a request or a reply.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use super::super::{MAX_KEY, MAX_KEYS, MAX_VALUE};

/// Largest size of a message, in bytes: a key, two values and their lengths.
pub(super) const MAX_MESSAGE: usize = 2 * MAX_VALUE + MAX_KEY + 64;

pub(super) fn send(stream: &mut impl Write, message: &[u8]) -> io::Result<()> {
    let length = u32::try_from(message.len()).map_err(|_| invalid("a message is too long"))?;
    // Send the message in one write, so that a small message is one packet.
    let mut bytes = Vec::with_capacity(4 + message.len());
    bytes.extend(length.to_le_bytes());
    bytes.extend(message);
    stream.write_all(&bytes)
}

/// Returns the bytes before the value in a reply with a value, including the length of the message.
pub(super) fn value_head(length: usize) -> Vec<u8> {
    let message = (1 + 4 + length as u32).to_le_bytes();
    [&message[..], &[1], &(length as u32).to_le_bytes()].concat()
}

/// Decodes the length of a message from the four bytes before it.
pub(super) fn length(bytes: [u8; 4]) -> io::Result<usize> {
    match u32::from_le_bytes(bytes) as usize {
        length if length <= MAX_MESSAGE => Ok(length),
        _ => Err(invalid("a message is too long")),
    }
}

pub(super) fn receive(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes)?;
    let length = length(bytes)?;
    // Let the vector grow as bytes arrive, so that a peer that sends only a length uses no memory.
    let mut message = Vec::new();
    if stream.take(length as u64).read_to_end(&mut message)? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(message)
}

pub(super) fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// A client's request.
#[derive(Debug, PartialEq)]
pub(super) enum StoreRequest<'a> {
    Set { key: &'a str, value: &'a [u8] },
    Get { key: &'a str, wait: Duration },
    Add { key: &'a str, amount: i64 },
    CompareSet { key: &'a str, expected: &'a [u8], desired: &'a [u8] },
    Delete { key: &'a str },
    Wait { keys: Vec<&'a str>, wait: Duration },
    Check { keys: Vec<&'a str> },
}

/// The server's reply.
#[derive(Debug, PartialEq)]
pub(super) enum StoreReply {
    Done,
    Value(Arc<[u8]>),
    Number(i64),
    /// A key is not set.
    NotYet,
    /// The stored value is not a number, or the sum would overflow. Has the start of that value.
    NotANumber(String),
    /// The store has no room for the value.
    Full,
}

impl<'a> StoreRequest<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Set { key, value } => MessageWriter::new(0).text(key).bytes(value).0,
            Self::Get { key, wait } => MessageWriter::new(1).number(millis(*wait)).text(key).0,
            Self::Add { key, amount } => MessageWriter::new(2).number(*amount).text(key).0,
            Self::CompareSet { key, expected, desired } => {
                MessageWriter::new(3).text(key).bytes(expected).bytes(desired).0
            }
            Self::Delete { key } => MessageWriter::new(4).text(key).0,
            Self::Wait { keys, wait } => {
                keys.iter()
                    .fold(MessageWriter::new(5).number(millis(*wait)), |out, key| out.text(key))
                    .0
            }
            Self::Check { keys } => {
                keys.iter().fold(MessageWriter::new(6), |out, key| out.text(key)).0
            }
        }
    }

    pub(super) fn decode(message: &'a [u8]) -> io::Result<Self> {
        let (&kind, rest) = message.split_first().ok_or_else(|| invalid("an empty message"))?;
        let mut rest = MessageReader(rest);
        let request = match kind {
            0 => Self::Set { key: rest.key()?, value: rest.value()? },
            1 => {
                let wait = rest.duration()?;
                Self::Get { key: rest.key()?, wait }
            }
            2 => {
                let amount = rest.number()?;
                Self::Add { key: rest.key()?, amount }
            }
            3 => {
                let key = rest.key()?;
                Self::CompareSet { key, expected: rest.value()?, desired: rest.value()? }
            }
            4 => Self::Delete { key: rest.key()? },
            5 => {
                let wait = rest.duration()?;
                Self::Wait { keys: rest.keys()?, wait }
            }
            6 => Self::Check { keys: rest.keys()? },
            _ => return Err(invalid("an unknown request")),
        };
        rest.end()?;
        Ok(request)
    }
}

impl StoreReply {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Done => MessageWriter::new(0).0,
            Self::Value(value) => MessageWriter::new(1).bytes(value).0,
            Self::Number(number) => MessageWriter::new(2).number(*number).0,
            Self::NotYet => MessageWriter::new(3).0,
            Self::NotANumber(value) => MessageWriter::new(4).text(value).0,
            Self::Full => MessageWriter::new(5).0,
        }
    }

    pub(super) fn decode(message: &[u8]) -> io::Result<Self> {
        let (&kind, rest) = message.split_first().ok_or_else(|| invalid("an empty message"))?;
        let mut rest = MessageReader(rest);
        let reply = match kind {
            0 => Self::Done,
            1 => Self::Value(rest.value()?.into()),
            2 => Self::Number(rest.number()?),
            3 => Self::NotYet,
            4 => Self::NotANumber(rest.key()?.into()),
            5 => Self::Full,
            _ => return Err(invalid("an unknown reply")),
        };
        rest.end()?;
        Ok(reply)
    }
}

/// Converts to milliseconds, rounded up, so that no wait ends early.
fn millis(wait: Duration) -> i64 {
    wait.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(i64::MAX)
}

/// A message under construction.
struct MessageWriter(Vec<u8>);

impl MessageWriter {
    fn new(kind: u8) -> Self {
        Self(vec![kind])
    }

    fn number(mut self, number: i64) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend((bytes.len() as u32).to_le_bytes());
        self.0.extend(bytes);
        self
    }

    fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }
}

/// The unread rest of a message. Enforces the limits on keys and values.
struct MessageReader<'a>(&'a [u8]);

impl<'a> MessageReader<'a> {
    fn take(&mut self, count: usize) -> io::Result<&'a [u8]> {
        let cut = self.0.split_at_checked(count);
        let (bytes, rest) = cut.ok_or_else(|| invalid("a message is too short"))?;
        self.0 = rest;
        Ok(bytes)
    }

    fn number(&mut self) -> io::Result<i64> {
        let mut number = [0; 8];
        number.copy_from_slice(self.take(8)?);
        Ok(i64::from_le_bytes(number))
    }

    fn duration(&mut self) -> io::Result<Duration> {
        Ok(Duration::from_millis(self.number()?.try_into().unwrap_or(0)))
    }

    fn bytes(&mut self, max: usize) -> io::Result<&'a [u8]> {
        let mut length = [0; 4];
        length.copy_from_slice(self.take(4)?);
        match u32::from_le_bytes(length) as usize {
            length if length <= max => self.take(length),
            _ => Err(invalid("a key or a value is too long")),
        }
    }

    fn value(&mut self) -> io::Result<&'a [u8]> {
        self.bytes(MAX_VALUE)
    }

    fn key(&mut self) -> io::Result<&'a str> {
        std::str::from_utf8(self.bytes(MAX_KEY)?).map_err(|_| invalid("a key is not UTF-8"))
    }

    fn keys(&mut self) -> io::Result<Vec<&'a str>> {
        let mut keys = Vec::new();
        while !self.0.is_empty() {
            if keys.len() == MAX_KEYS {
                return Err(invalid("there are too many keys"));
            }
            keys.push(self.key()?);
        }
        Ok(keys)
    }

    fn end(&self) -> io::Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(invalid("a message is too long")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_are_refused_when_cut() {
        let wait = Duration::from_millis(7);
        for request in [
            StoreRequest::Set { key: "a", value: b"b" },
            StoreRequest::Get { key: "key", wait },
            StoreRequest::Add { key: "n", amount: -3 },
            StoreRequest::CompareSet { key: "k", expected: b"", desired: &[0; 300] },
            StoreRequest::Delete { key: "k" },
            StoreRequest::Wait { keys: vec!["a", "bc"], wait },
            StoreRequest::Check { keys: vec!["a"] },
        ] {
            let bytes = request.encode();
            assert_eq!(StoreRequest::decode(&bytes).unwrap(), request);
            assert!(StoreRequest::decode(&bytes[..bytes.len() - 1]).is_err(), "{request:?}");
            assert!(StoreRequest::decode(&[&bytes[..], &[0]].concat()).is_err(), "{request:?}");
        }
        let text = "x".into();
        for reply in [
            StoreReply::Done,
            StoreReply::Value([1, 2].into()),
            StoreReply::Full,
            StoreReply::Number(-1),
            StoreReply::NotYet,
            StoreReply::NotANumber(text),
        ] {
            assert_eq!(StoreReply::decode(&reply.encode()).unwrap(), reply);
        }
        let value = StoreReply::Value([7; 9].into()).encode();
        let mut sent = Vec::new();
        send(&mut sent, &value).unwrap();
        assert_eq!(sent, [&value_head(9)[..], &[7; 9]].concat());
        let wait = Duration::from_micros(59_999);
        let bytes = StoreRequest::Get { key: "k", wait }.encode();
        let rounded = StoreRequest::Get { key: "k", wait: Duration::from_millis(60) };
        assert_eq!(StoreRequest::decode(&bytes).unwrap(), rounded);
        assert!(StoreRequest::decode(&[]).is_err() && StoreRequest::decode(&[99]).is_err());
        assert!(StoreRequest::decode(&[4, 1, 0, 0, 0, 0xff]).is_err(), "not UTF-8");
    }

    #[test]
    fn keys_values_and_lists_beyond_the_limits_are_refused() {
        let (key, value) = ("k".repeat(MAX_KEY + 1), vec![0; MAX_VALUE + 1]);
        for request in [
            StoreRequest::Delete { key: &key },
            StoreRequest::Set { key: "k", value: &value },
            StoreRequest::CompareSet { key: "k", expected: b"", desired: &value },
            StoreRequest::Check { keys: vec!["k"; MAX_KEYS + 1] },
        ] {
            assert!(StoreRequest::decode(&request.encode()).is_err());
        }
        let keys = vec!["k"; MAX_KEYS];
        assert!(StoreRequest::decode(&StoreRequest::Check { keys }.encode()).is_ok());
    }

    proptest::proptest! {
        #[test]
        fn hostile_bytes_are_refused_or_round_trip(
            kind in 0..8u8,
            rest in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64),
        ) {
            // The second mask produces small numbers, so that some lengths are valid.
            for mask in [0xff, 0x07] {
                let rest = rest.iter().map(|byte| byte & mask);
                let bytes: Vec<u8> = std::iter::once(kind).chain(rest).collect();
                if let Ok(request) = StoreRequest::decode(&bytes) {
                    let again = request.encode();
                    proptest::prop_assert_eq!(StoreRequest::decode(&again).unwrap(), request);
                }
                if let Ok(reply) = StoreReply::decode(&bytes) {
                    proptest::prop_assert_eq!(reply.encode(), bytes);
                }
            }
        }
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_anything_is_read() {
        let mut bytes = (MAX_MESSAGE as u32 + 1).to_le_bytes().to_vec();
        bytes.extend([0; 100]);
        let mut stream = bytes.as_slice();
        assert_eq!(receive(&mut stream).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(stream.len(), 100);
    }
}
