//! Ranks of other processes, whose requests and events pass through a local socket.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::codec::{ByteReader, ByteWriter};
use super::driver::process;
use super::hub::{
    Departure, Endpoint, EventSink, Hub, HubMember, HubRequest, RankEvent, RequestSink, failed,
};

/// Time limit for connecting, and for sending a part of a message.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest number of connections with an unfinished handshake.
const MAX_HANDSHAKES: usize = 64;
/// Largest number of connections.
const MAX_CONNECTIONS: usize = 1024;
/// Largest size of a message in bytes. The longest messages hold the inputs of one group.
const MAX_MESSAGE: u64 = 4 << 30;

/// Returns the port at which other processes reach the hubs of this process, or `None` if no socket
/// can be opened.
pub(super) fn port() -> Option<u16> {
    static PORT: OnceLock<Option<u16>> = OnceLock::new();
    *PORT.get_or_init(|| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
        let port = listener.local_addr().ok()?.port();
        let accept = move || {
            // Counts of connections. The thread of a connection holds one reference to each, and
            // drops its reference to `handshakes` after the handshake.
            let (handshakes, all) = (Arc::new(()), Arc::new(()));
            for stream in listener.incoming().flatten() {
                let (handshake, one) = (Arc::clone(&handshakes), Arc::clone(&all));
                if Arc::strong_count(&handshakes) <= 1 + MAX_HANDSHAKES
                    && Arc::strong_count(&all) <= 1 + MAX_CONNECTIONS
                {
                    start("warpline-sim-hub", move || {
                        serve(stream, handshake);
                        drop(one);
                    });
                }
            }
        };
        start("warpline-sim-hubs", accept).then_some(port)
    })
}

fn start(name: &str, f: impl FnOnce() + Send + 'static) -> bool {
    std::thread::Builder::new().name(name.into()).spawn(f).is_ok()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn send(mut stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    if bytes.len() as u64 > MAX_MESSAGE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut frame = (bytes.len() as u64).to_le_bytes().to_vec();
    frame.extend(bytes);
    stream.write_all(&frame)
}

fn receive(mut stream: &TcpStream) -> io::Result<Vec<u8>> {
    let mut size = [0; 8];
    stream.read_exact(&mut size)?;
    let size = u64::from_le_bytes(size);
    if size > MAX_MESSAGE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    stream.take(size).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == size { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

// ---- hub side ---------------------------------------------------------------------------

/// A rank in another process.
struct Remote {
    stream: Arc<Mutex<TcpStream>>,
    /// Identifies the rank on this connection.
    token: u64,
    members: Arc<Mutex<Vec<HubMember>>>,
}

impl EventSink for Remote {
    fn deliver(&self, event: RankEvent) {
        if let RankEvent::Split(Some((member, _))) = &event {
            locked(&self.members).push(*member);
        }
        let mut writer = ByteWriter::default();
        writer.number(self.token).event(&event);
        let stream = locked(&self.stream);
        if send(&stream, &writer.0).is_err() {
            // The thread that reads from this socket then sees the end, and reports the death of
            // the rank.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn is_elsewhere(&self) -> bool {
        true
    }
}

/// Serves a rank of another process, in its communicator and in all communicators split off it.
fn serve(stream: TcpStream, handshake: Arc<()>) {
    let _ = stream.set_nodelay(true);
    let _ = stream.set_write_timeout(Some(SOCKET_TIMEOUT));
    let Some(hub) = accept_handshake(&stream) else { return };
    drop(handshake);
    let Ok(own) = stream.try_clone() else { return };
    let (own, members) = (Arc::new(Mutex::new(own)), Arc::<Mutex<Vec<HubMember>>>::default());
    let endpoint = |reader: &mut ByteReader<'_>| -> Option<Option<Endpoint>> {
        let Some(token) = reader.maybe()? else { return Some(None) };
        let device_id = reader.device_id()?;
        let (stream, members) = (Arc::clone(&own), Arc::clone(&members));
        Some(Some(Endpoint { sink: Arc::new(Remote { stream, token, members }), device_id }))
    };
    while let Ok(bytes) = receive(&stream) {
        let mut reader = ByteReader(&bytes);
        let Some(request) = request(&mut reader, &endpoint) else { break };
        if let HubRequest::Join { rank, .. } = &request {
            locked(&members).push(HubMember { comm: 0, rank: *rank });
        }
        hub.submit(request);
    }
    // Report the death of each rank; a report for a rank that has already left changes nothing.
    // Loop, because a split may add a rank to `members` until the last report.
    loop {
        let left = std::mem::take(&mut *locked(&members));
        if left.is_empty() {
            break;
        }
        for member in left {
            hub.submit(HubRequest::Leave { member, why: Departure::Died });
        }
    }
}

/// Reads a handshake and returns the requested hub. The handshake must contain this process's
/// identifier, which only holders of a communicator id know.
fn accept_handshake(stream: &TcpStream) -> Option<Arc<Hub>> {
    let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
    let (mut handshake, mut read) = ([0; 16], 0);
    let mut reader = stream;
    while read < handshake.len() {
        let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
        stream.set_read_timeout(Some(left?)).ok()?;
        match reader.read(&mut handshake[read..]).ok()? {
            0 => return None,
            more => read += more,
        }
    }
    let mut handshake = ByteReader(&handshake);
    let known = handshake.number()? == process();
    stream.set_read_timeout(None).ok()?;
    Hub::find(handshake.number().filter(|_| known)?)
}

type ReadEndpoint<'a> = &'a dyn Fn(&mut ByteReader<'_>) -> Option<Option<Endpoint>>;

fn request(reader: &mut ByteReader<'_>, endpoint: ReadEndpoint<'_>) -> Option<HubRequest> {
    Some(match reader.number()? {
        0 => {
            let (ranks, rank) = (reader.size()?, reader.size()?);
            HubRequest::Join { ranks, rank, endpoint: endpoint(reader)?? }
        }
        1 => {
            let (member, op, begin) = (reader.member()?, reader.number()?, reader.time()?);
            let mut calls = Vec::new();
            for _ in 0..reader.size()? {
                calls.push((reader.desc()?, reader.bytes()?.to_vec()));
            }
            HubRequest::Begin { member, op, begin, calls }
        }
        2 => {
            let (member, color, key) = (reader.member()?, reader.maybe()?, reader.size()?);
            let color = color.map(|color| color as u32);
            HubRequest::Split { member, color, key, endpoint: endpoint(reader)? }
        }
        3 => HubRequest::Leave { member: reader.member()?, why: reader.departure()? },
        4 => HubRequest::Progress { member: reader.member()? },
        5 => {
            let (member, split) = (reader.member()?, reader.number()?);
            HubRequest::Abandon { member, split, why: reader.departure()? }
        }
        _ => return None,
    })
}

// ---- rank side --------------------------------------------------------------------------

type Participants = Arc<Mutex<HashMap<u64, Weak<dyn EventSink>>>>;

/// A connection to a hub of another process. Closed when the last rank that uses it is dropped.
pub(super) struct HubConnection {
    stream: Mutex<TcpStream>,
    participants: Participants,
}

impl HubConnection {
    /// Connects to a hub. Returns `None` if the hub's process cannot be reached, for example
    /// because it has ended.
    pub(super) fn open(port: u16, process: u64, number: u64) -> Option<Arc<Self>> {
        let stream =
            TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), SOCKET_TIMEOUT).ok()?;
        let _ = stream.set_nodelay(true);
        stream.set_write_timeout(Some(SOCKET_TIMEOUT)).ok()?;
        let mut handshake = ByteWriter::default();
        handshake.number(process).number(number);
        (&stream).write_all(&handshake.0).ok()?;
        let (incoming, participants) = (stream.try_clone().ok()?, Participants::default());
        let known = Arc::clone(&participants);
        let connection = Arc::new(Self { stream: Mutex::new(stream), participants });
        start("warpline-sim-rank", move || listen(&incoming, &known)).then_some(connection)
    }

    fn endpoint(&self, writer: &mut ByteWriter, endpoint: Option<&Endpoint>) {
        let Some(endpoint) = endpoint else {
            writer.maybe(None);
            return;
        };
        let mut participants = locked(&self.participants);
        let token = participants.len() as u64;
        participants.insert(token, Arc::downgrade(&endpoint.sink));
        writer.maybe(Some(token)).device_id(endpoint.device_id);
    }
}

impl RequestSink for HubConnection {
    fn submit(&self, request: HubRequest) {
        let mut writer = ByteWriter::default();
        match &request {
            HubRequest::Join { ranks, rank, endpoint } => {
                writer.number(0).size(*ranks).size(*rank);
                self.endpoint(&mut writer, Some(endpoint));
            }
            HubRequest::Begin { member, op, begin, calls } => {
                writer.number(1).member(*member).number(*op).time(*begin).size(calls.len());
                for (desc, input) in calls {
                    writer.desc(desc).bytes(input);
                }
            }
            HubRequest::Split { member, color, key, endpoint } => {
                writer.number(2).member(*member).maybe(color.map(u64::from)).size(*key);
                self.endpoint(&mut writer, endpoint.as_ref());
            }
            HubRequest::Leave { member, why } => {
                writer.number(3).member(*member).departure(*why);
            }
            HubRequest::Progress { member } => {
                writer.number(4).member(*member);
            }
            HubRequest::Abandon { member, split, why } => {
                writer.number(5).member(*member).number(*split).departure(*why);
            }
        }
        let stream = locked(&self.stream);
        if send(&stream, &writer.0).is_err() {
            // The listening thread then sees the end of the connection, and fails the ranks.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for HubConnection {
    fn drop(&mut self) {
        let _ = locked(&self.stream).shutdown(Shutdown::Both);
    }
}

impl fmt::Debug for HubConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubConnection").finish_non_exhaustive()
    }
}

/// Delivers the hub's events to ranks until the connection ends.
fn listen(stream: &TcpStream, participants: &Participants) {
    while let Ok(bytes) = receive(stream) {
        let mut reader = ByteReader(&bytes);
        let Some((token, event)) = reader.number().zip(reader.event()) else { break };
        let participant = locked(participants).get(&token).and_then(Weak::upgrade);
        if let Some(participant) = participant {
            participant.deliver(event);
        }
    }
    let why = "the process of the rank that made the id is gone, or has no such communicator";
    let error = failed("ncclCommGetAsyncError", "ncclRemoteError", why.to_owned());
    let all: Vec<_> = locked(participants).values().filter_map(Weak::upgrade).collect();
    all.iter().for_each(|participant| participant.deliver(RankEvent::Failed(error.clone())));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect() -> TcpStream {
        TcpStream::connect((Ipv4Addr::LOCALHOST, port().unwrap())).unwrap()
    }

    fn is_closed(stream: &TcpStream) -> bool {
        stream.set_nonblocking(true).unwrap();
        let closed = !stream.peek(&mut [0]).is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock);
        stream.set_nonblocking(false).unwrap();
        closed
    }

    #[test]
    fn handshakes_are_limited_in_number_and_duration() {
        let begun = Instant::now();
        let mut slow = connect();
        let crowd: Vec<_> = (0..2 * MAX_HANDSHAKES).map(|_| connect()).collect();
        // The longest delay of a busy machine.
        let slack = Duration::from_secs(30);
        while slow.write_all(&[0]).is_ok() && !is_closed(&slow) {
            assert!(begun.elapsed() < HANDSHAKE_TIMEOUT + slack);
            std::thread::sleep(Duration::from_millis(500));
        }
        assert!(begun.elapsed() >= HANDSHAKE_TIMEOUT);
        // The connections in `crowd` were made later, so their deadlines are later.
        while !crowd.iter().all(is_closed) {
            assert!(begun.elapsed() < 2 * HANDSHAKE_TIMEOUT + slack);
            std::thread::sleep(Duration::from_millis(50));
        }
        // All other connections are closed by now, so a new connection is accepted.
        let next = connect();
        std::thread::sleep(Duration::from_millis(100));
        assert!(!is_closed(&next));
    }

    #[test]
    fn a_message_beyond_the_size_limit_is_refused() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        receiver.set_read_timeout(Some(HANDSHAKE_TIMEOUT)).unwrap();
        sender.write_all(&(MAX_MESSAGE + 1).to_le_bytes()).unwrap();
        assert_eq!(receive(&receiver).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
