//! An independent implementation of the store's TCP protocol, for tests with a hostile client or server.

use std::io::{Read, Write};
use std::net::TcpStream;

use hmac::{Hmac, Mac};
use sha2::Sha256;

pub(crate) const GREETING: &[u8; 8] = b"WLSTORE2";

/// Encodes a message with its length.
pub(crate) fn message(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes(), body].concat()
}

fn hello(nonce: &[u8; 32]) -> Vec<u8> {
    [&GREETING[..], nonce].concat()
}

pub(crate) fn proof(secret: &[u8], end: &str, client: &[u8; 32], server: &[u8; 32]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
    mac.update(format!("warpline store 2: {end}").as_bytes());
    mac.update(client);
    mac.update(server);
    mac.finalize().into_bytes().into()
}

/// Reads a greeting. Returns its nonce.
pub(crate) fn read_hello(stream: &mut TcpStream) -> [u8; 32] {
    let (mut greeting, mut nonce) = ([0; 8], [0; 32]);
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, GREETING);
    stream.read_exact(&mut nonce).unwrap();
    nonce
}

/// Runs a client's handshake, which must succeed.
pub(crate) fn shake_hands(stream: &mut TcpStream, secret: &[u8]) {
    let ours = [1; 32];
    stream.write_all(&hello(&ours)).unwrap();
    let theirs = read_hello(stream);
    stream.write_all(&proof(secret, "client", &ours, &theirs)).unwrap();
    let mut verdict = [0; 33];
    stream.read_exact(&mut verdict).unwrap();
    assert_eq!(verdict[0], 1);
    assert_eq!(verdict[1..], proof(secret, "server", &ours, &theirs));
}

/// Runs a client's handshake with the given proof. Returns the remaining bytes from the server.
pub(crate) fn answer_with(stream: &mut TcpStream, proof: &[u8]) -> Vec<u8> {
    stream.write_all(&hello(&[1; 32])).unwrap();
    read_hello(stream);
    stream.write_all(proof).unwrap();
    let mut verdict = Vec::new();
    let _ = stream.read_to_end(&mut verdict);
    verdict
}

/// Runs a server's handshake that accepts every client.
pub(crate) fn accept_handshake(stream: &mut TcpStream, secret: &[u8]) {
    let ours = [2; 32];
    let theirs = read_hello(stream);
    stream.write_all(&hello(&ours)).unwrap();
    stream.read_exact(&mut [0; 32]).unwrap();
    stream.write_all(&[&[1][..], &proof(secret, "server", &theirs, &ours)].concat()).unwrap();
}
