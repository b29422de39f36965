//! Timeouts of stores bound the entire call, even if the peer of a TCP connection stalls or sends slowly, or another
//! process keeps the lock of a store's file.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use warpline::{Error, RuntimeConfig, open, with_runtime};
use warpline_parallel::distributed::{
    FileStore, GroupError, InitOptions, Store, StoreError, TcpStore, init_process_group,
};

use crate::store::TempFile;
use crate::store_wire::{GREETING, accept_handshake};

/// Longest delay of a busy machine. Less than 30 seconds, the time limit of calls without a timeout, so that a call
/// with a timeout fails its test if that limit applies to it.
const SLACK: Duration = Duration::from_secs(20);
/// Time that each of these calls would take without its timeout.
const LONG: Duration = Duration::from_secs(60);

/// Sends bytes one at a time, until the peer closes the connection. All of them take [`LONG`].
fn drip(stream: &mut TcpStream, bytes: &[u8]) {
    for byte in bytes {
        std::thread::sleep(LONG / bytes.len() as u32);
        if stream.write_all(&[*byte]).is_err() {
            return;
        }
    }
}

/// Starts a server that runs `answer` in a thread for each connection. Returns its address.
fn serve(answer: impl Fn(TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || answer(stream));
        }
    });
    address
}

#[test]
fn connecting_to_a_silent_or_dripping_server_ends_at_the_timeout() {
    let silent = serve(|stream| {
        std::thread::sleep(LONG);
        drop(stream);
    });
    let dripping = serve(|mut stream| {
        drip(&mut stream, &[GREETING, &[0; 32][..]].concat());
    });
    // The dripping server sends a byte in this time.
    let timeout = Duration::from_secs(2);
    for address in [silent, dripping] {
        let begun = Instant::now();
        TcpStore::connect(address, timeout).unwrap_err();
        assert!(begun.elapsed() < timeout + SLACK, "{:?}", begun.elapsed());
    }
}

#[test]
fn a_get_from_a_silent_or_dripping_server_ends_at_its_timeout() {
    let silent = serve(|mut stream| {
        accept_handshake(&mut stream, b"");
        std::thread::sleep(LONG);
    });
    let dripping = serve(|mut stream| {
        accept_handshake(&mut stream, b"");
        drip(&mut stream, &[&60u32.to_le_bytes()[..], &[1; 60]].concat());
    });
    let timeout = Duration::from_secs(2);
    for address in [silent, dripping] {
        let store = TcpStore::connect(address, LONG).unwrap();
        let begun = Instant::now();
        let error = store.get("k", timeout).unwrap_err();
        assert!(matches!(error, StoreError::Timeout { .. }), "{error}");
        assert!(error.to_string().contains("reply"), "{error}");
        assert!(begun.elapsed() < timeout + SLACK, "{:?}", begun.elapsed());
    }
}

/// Returns the error of rank 1 of 2, which waits alone for one second.
fn error_of_init(store: Arc<dyn Store>) -> Error {
    let runtime = open("sim:2", &RuntimeConfig::default()).unwrap();
    let options = InitOptions::new(store, 1, 2).device(1).timeout(Duration::from_secs(1));
    let (begun, timeout) = (Instant::now(), options.timeout);
    let error = with_runtime(&runtime, || init_process_group(options)).unwrap_err();
    assert!(begun.elapsed() < timeout + SLACK, "{:?}", begun.elapsed());
    error
}

#[test]
fn init_with_a_silent_store_ends_at_its_timeout() {
    let silent = serve(|mut stream| {
        accept_handshake(&mut stream, b"");
        std::thread::sleep(LONG);
    });
    let error = error_of_init(Arc::new(TcpStore::connect(silent, LONG).unwrap()));
    assert!(matches!(error.find(), Some(StoreError::Lost { op: "add", .. })), "{error}");
}

#[test]
fn init_with_a_store_that_falls_silent_ends_at_its_timeout() {
    let file = TempFile::new();
    let [store, other] = [0; 2].map(|_| FileStore::open(&file.0).unwrap());
    let locked = std::fs::File::open(&file.0).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            other.wait(&["default/2/round 1/came/1"], LONG).unwrap();
            locked.lock().unwrap();
        });
        let error = error_of_init(Arc::new(store));
        assert!(matches!(error.find(), Some(GroupError::Init { .. })), "{error}");
        assert!(error.to_string().contains("could not be asked about rank 0"), "{error}");
    });
}

#[test]
fn a_client_that_is_silent_or_drips_its_greeting_is_closed_after_five_seconds() {
    let host = TcpStore::host("127.0.0.1:0", ()).unwrap();
    let timeout = Duration::from_secs(5);
    let begun = Instant::now();
    let connect = || TcpStream::connect(("127.0.0.1", host.port())).unwrap();
    std::thread::scope(|scope| {
        let silent = connect();
        let mut dripping = connect();
        let dripped = dripping.try_clone().unwrap();
        scope.spawn(move || drip(&mut dripping, &[GREETING, &[0; 32][..]].concat()));
        for mut stream in [silent, dripped] {
            scope.spawn(move || {
                stream.set_read_timeout(Some(2 * LONG)).unwrap();
                let _ = std::io::copy(&mut stream, &mut std::io::sink());
                assert!(begun.elapsed() >= timeout, "{:?}", begun.elapsed());
                assert!(begun.elapsed() < timeout + SLACK, "{:?}", begun.elapsed());
            });
        }
    });
}

#[test]
fn a_file_that_another_process_keeps_locked_does_not_hold_up_a_get_beyond_its_timeout() {
    let file = TempFile::new();
    let store = FileStore::open(&file.0).unwrap();
    store.set("k", b"v").unwrap();
    let other = std::fs::File::open(&file.0).unwrap();
    other.lock().unwrap();
    let timeout = Duration::from_millis(200);
    let begun = Instant::now();
    let error = store.get("k", timeout).unwrap_err();
    assert!(matches!(error, StoreError::Timeout { .. }), "{error}");
    assert!(begun.elapsed() < timeout + SLACK, "{:?}", begun.elapsed());
    // A second thread's call also ends in time while a call without a timeout waits for the lock.
    std::thread::scope(|scope| {
        let setting = scope.spawn(|| store.set("k", b"w"));
        std::thread::sleep(Duration::from_millis(20));
        let begun = Instant::now();
        store.get("k", timeout).unwrap_err();
        assert!(begun.elapsed() < timeout + SLACK, "{:?}", begun.elapsed());
        other.unlock().unwrap();
        setting.join().unwrap().unwrap();
    });
    assert_eq!(store.get("k", timeout).unwrap(), b"w");
}
