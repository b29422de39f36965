//! Stores over TCP: late and lost hosts and clients, and foreign connections to the port.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warpline_parallel::distributed::{Store, StoreError, TcpStore};

use crate::store_wire::{message, shake_hands};

/// A timeout that a passing test never reaches.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_client_may_come_before_the_host() {
    // Find a free port.
    let port = TcpStore::host("127.0.0.1:0", ()).unwrap().port();
    let client = std::thread::spawn(move || {
        let store = TcpStore::connect(("127.0.0.1", port), LONG)?;
        store.get("k", LONG)
    });
    std::thread::sleep(Duration::from_millis(30));
    let host = TcpStore::host(("127.0.0.1", port), ()).unwrap();
    host.set("k", b"v").unwrap();
    assert_eq!(client.join().unwrap().unwrap(), b"v");
}

#[test]
fn an_unreachable_host_is_an_error_with_the_address() {
    let port = TcpStore::host("127.0.0.1:0", ()).unwrap().port();
    let error = TcpStore::connect(("127.0.0.1", port), Duration::from_millis(80)).unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
}

#[test]
fn a_port_in_use_is_an_error_that_names_it() {
    let host = TcpStore::host("127.0.0.1:0", ()).unwrap();
    let error = TcpStore::host(("127.0.0.1", host.port()), ()).unwrap_err();
    assert!(matches!(error, StoreError::Bind { .. }), "{error}");
    assert!(error.to_string().contains(&host.port().to_string()), "{error}");
}

#[test]
fn a_lost_host_is_detected_by_waits_and_requests() {
    let host = TcpStore::host("127.0.0.1:0", ()).unwrap();
    let client = Arc::new(TcpStore::connect(("127.0.0.1", host.port()), LONG).unwrap());
    let waiting = {
        let client = Arc::clone(&client);
        std::thread::spawn(move || client.get("never", LONG))
    };
    client.set("k", b"").unwrap();
    drop(host);
    let error = waiting.join().unwrap().unwrap_err();
    assert!(matches!(error, StoreError::Lost { .. }), "{error}");
    let error = client.add("n", 1).unwrap_err();
    assert!(matches!(error, StoreError::Lost { op: "add", .. }), "{error}");
}

#[test]
fn a_lost_client_is_detected_even_while_it_waits() {
    let host = TcpStore::host("127.0.0.1:0", ()).unwrap();
    {
        let _idle = TcpStore::connect(("127.0.0.1", host.port()), LONG).unwrap();
        let mut waits = TcpStream::connect(("127.0.0.1", host.port())).unwrap();
        shake_hands(&mut waits, b"");
        // Send a `get` of "k" that waits for a minute.
        let body = [&[1][..], &60_000i64.to_le_bytes(), &1u32.to_le_bytes(), b"k"].concat();
        waits.write_all(&message(&body)).unwrap();
        assert_eq!(host.connections(), 2);
    }
    let deadline = Instant::now() + LONG;
    while host.connections() > 0 {
        assert!(Instant::now() < deadline, "{} are still there", host.connections());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_foreign_connection_is_closed_and_disturbs_no_client() {
    let host = TcpStore::host("127.0.0.1:0", ()).unwrap();
    let client = TcpStore::connect(("127.0.0.1", host.port()), LONG).unwrap();
    let connect = || {
        let stream = TcpStream::connect(("127.0.0.1", host.port())).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream
    };
    let closed = |mut stream: TcpStream| {
        // The connection is closed, or reset if it had unread bytes.
        let mut rest = Vec::new();
        if stream.read_to_end(&mut rest).is_ok() {
            assert_eq!(rest, b"");
        }
    };
    for says in [b"GET / HTTP/1.1\r\nHost: a-host-with-a-long-name\r\n\r\n".as_slice(), &[0; 64]] {
        let mut stream = connect();
        stream.write_all(says).unwrap();
        closed(stream);
        assert_eq!(client.add("n", 1).unwrap(), host.add("n", 0).unwrap());
    }
    for says in [u32::MAX.to_le_bytes().to_vec(), message(b"\xff\0\0\0\0")] {
        let mut stream = connect();
        shake_hands(&mut stream, b"");
        stream.write_all(&says).unwrap();
        closed(stream);
        assert_eq!(client.add("n", 1).unwrap(), host.add("n", 0).unwrap());
    }
    // Silent connections delay no other client.
    let silent: Vec<_> = (0..50).map(|_| TcpStream::connect(("127.0.0.1", host.port()))).collect();
    assert_eq!(client.add("n", 1).unwrap(), 5);
    drop(silent);
}

#[test]
fn another_server_at_the_port_is_not_a_store() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"220 mail ready\r\n").unwrap();
        let _ = stream.read(&mut [0; 64]);
    });
    let error = TcpStore::connect(address, LONG).unwrap_err();
    assert!(matches!(error, StoreError::NotAStore { .. }), "{error}");
    other.join().unwrap();
}
