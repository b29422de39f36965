//! Stores: the server of a malicious client, the client of a malicious server, and a damaged file.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use hmac::{Hmac, Mac};
use sha2::Sha256;
use warpline_parallel::distributed::{
    FileStore, Secret, Store, StoreResult, TcpStore, TcpStoreOptions,
};

use crate::scratch::Folder;

const SECRET: &[u8] = b"a secret of the two ends";
const GREETING: &[u8] = b"WLSTORE2";
const NONCE: [u8; 32] = [7; 32];
/// Time limit of a client. Too short for a second attempt to connect.
const TIMEOUT: Duration = Duration::from_millis(50);

fn options() -> TcpStoreOptions {
    let secret = Secret::new(SECRET).expect("a valid secret");
    TcpStoreOptions::new().secret(&secret).timeout(TIMEOUT)
}

/// Returns a loopback address that no recent run has used, because closed connections keep their ports for a minute.
fn new_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) % 0x00ff_fff0;
    (Ipv4Addr::from_bits(0x7f00_0001 + number), 0).into()
}

fn proof(role: &str, client: &[u8], server: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET).expect("a key of any length");
    mac.update(b"warpline store 2: ");
    [role.as_bytes(), client, server].iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().to_vec()
}

/// Proves the secret to a server.
fn greet(server: &mut TcpStream) -> io::Result<()> {
    server.write_all(&[GREETING, &NONCE].concat())?;
    let mut hello = [0; 40];
    server.read_exact(&mut hello)?;
    server.write_all(&proof("client", &NONCE, &hello[8..]))?;
    server.read_exact(&mut [0; 33])
}

/// Sends bytes to a server, after the proof of the secret if the first byte of the input is odd. Afterwards the server
/// still answers.
pub(crate) fn server(input: &[u8]) {
    let Some((mode, bytes)) = input.split_first() else { return };
    let mut address = new_address();
    let host = TcpStore::host(address, options()).expect("a server");
    address.set_port(host.port());
    let mut client = TcpStream::connect(address).expect("a connection");
    if mode & 1 == 1 {
        greet(&mut client).expect("an accepted proof");
    }
    // The server may have closed the connection.
    let _ = client.write_all(bytes).and_then(|()| client.shutdown(Shutdown::Write));
    let _ = io::copy(&mut client, &mut io::sink());
    host.set("own", b"value").expect("a working server");
    assert_eq!(host.get("own", TIMEOUT).expect("a working server"), b"value");
}

/// Accepts one connection, proves the secret if asked to, and sends bytes.
fn serve(listener: TcpListener, proves: bool, bytes: &[u8]) -> io::Result<()> {
    let (mut client, _) = listener.accept()?;
    // Further connections are refused.
    drop(listener);
    if proves {
        let mut hello = [0; 40];
        client.read_exact(&mut hello)?;
        client.write_all(&[GREETING, &NONCE].concat())?;
        client.read_exact(&mut [0; 32])?;
        client.write_all(&[&[1][..], &proof("server", &hello[8..], &NONCE)].concat())?;
    }
    client.write_all(bytes)?;
    client.shutdown(Shutdown::Write)?;
    io::copy(&mut client, &mut io::sink()).map(drop)
}

/// Connects to a server that sends these bytes, after the proof of the secret if the first byte of the input is odd. The
/// rest of that byte is the first call.
pub(crate) fn client(input: &[u8]) {
    let Some((mode, bytes)) = input.split_first() else { return };
    let listener = TcpListener::bind(new_address()).expect("a listener");
    let address = listener.local_addr().expect("an address");
    let calls = calls();
    thread::scope(|scope| {
        let server = scope.spawn(|| serve(listener, mode & 1 == 1, bytes));
        match TcpStore::connect(address, options()) {
            Ok(store) => {
                for call in calls.iter().cycle().skip(usize::from(mode >> 1)).take(calls.len()) {
                    if let Err(error) = call(&store) {
                        drop(error.to_string());
                    }
                }
            }
            Err(error) => {
                drop(error.to_string());
                // Ends the server's wait for a connection, if the client has made none.
                let _ = TcpStream::connect(address);
            }
        }
        let _ = server.join().expect("no panic");
    });
}

type Call = fn(&dyn Store) -> StoreResult<()>;

/// Returns a call of each kind.
fn calls() -> [Call; 7] {
    [
        |store| store.set("key", b"value"),
        |store| store.get("key", Duration::ZERO).map(drop),
        |store| store.add("key", 1).map(drop),
        |store| store.compare_set("key", b"", b"value").map(drop),
        |store| store.delete("key").map(drop),
        |store| store.wait(&["key", "other"], Duration::ZERO),
        |store| store.check(&["key"]).map(drop),
    ]
}

/// Opens the file of a store. A change of an intact store is found by the next process.
pub(crate) fn file(input: &[u8]) {
    static FOLDER: LazyLock<Folder> = LazyLock::new(|| Folder::new("store-file"));
    let path = FOLDER.write("input", input);
    let store = match FileStore::open(&path) {
        Ok(store) => store,
        Err(error) => return drop(error.to_string()),
    };
    for call in calls() {
        let _ = call(&store);
    }
    if store.set("own", b"value").is_ok() {
        let other = FileStore::open(&path).expect("an intact file");
        assert_eq!(other.get("own", Duration::ZERO).expect("the value"), b"value");
    }
}
