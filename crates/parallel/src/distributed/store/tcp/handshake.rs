//! The first messages of a connection: each end proves that it knows the job's secret.
//!
//! | from | bytes |
//! |---|---|
//! | client | [`GREETING`], then a nonce of 32 random bytes |
//! | server | [`GREETING`], then a nonce of 32 random bytes |
//! | client | its proof: an HMAC-SHA256 over its role and both nonces, with the secret as key |
//! | server | [`ACCEPTED`] and its own proof, or [`REFUSED`] |
//!
//! Without a secret the key is empty, and anyone can compute the proofs.

use std::io::{self, Read, Write};

use super::super::secret::{PROOF_LEN, Proof, Role, Secret, prove, random, verify};
use super::wire::invalid;

const GREETING: &[u8; 8] = b"WLSTORE2";
/// Length of a greeting with its nonce.
pub(super) const HELLO_LEN: usize = GREETING.len() + 32;
/// Length of a client's proof.
pub(super) const CLIENT_PROOF_LEN: usize = PROOF_LEN;

const REFUSED: u8 = 0;
const ACCEPTED: u8 = 1;

/// The reason why a client could not connect.
#[derive(Debug)]
pub(super) enum ConnectError {
    /// The connection failed, or the server is busy. Another attempt may succeed.
    Io(io::Error),
    /// The server uses a different protocol.
    WrongProtocol(String),
    /// The two ends do not have the same secret.
    Secret(String),
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::InvalidData => Self::WrongProtocol(error.to_string()),
            _ => Self::Io(error),
        }
    }
}

fn hello(nonce: &[u8; 32]) -> Vec<u8> {
    [GREETING.as_slice(), nonce].concat()
}

/// Runs the client's side of the handshake.
pub(super) fn greet(
    stream: &mut (impl Read + Write),
    secret: Option<&Secret>,
) -> Result<(), ConnectError> {
    let ours = random().map_err(io::Error::other)?;
    stream.write_all(&hello(&ours))?;
    // The greeting is read separately, because a server of another protocol may send fewer bytes than a nonce.
    let (mut greeting, mut theirs) = ([0; GREETING.len()], [0; 32]);
    stream.read_exact(&mut greeting)?;
    if &greeting != GREETING {
        return Err(ConnectError::WrongProtocol("its greeting belongs to another protocol".into()));
    }
    stream.read_exact(&mut theirs)?;
    let nonces = [&ours, &theirs];
    stream.write_all(&prove(secret, Role::Client, nonces))?;
    let (mut verdict, mut proof): ([u8; 1], Proof) = ([REFUSED], [0; PROOF_LEN]);
    stream.read_exact(&mut verdict)?;
    let refused = match secret {
        Some(_) => "its secret is not the secret of this process",
        None => "it asks for a secret, and this process has none",
    };
    if verdict != [ACCEPTED] {
        return Err(ConnectError::Secret(refused.into()));
    }
    stream.read_exact(&mut proof)?;
    match verify(secret, Role::Server, nonces, &proof) {
        true => Ok(()),
        false => Err(ConnectError::Secret("the server does not know this process's secret".into())),
    }
}

/// The server's side of one handshake, up to the client's proof.
#[derive(Debug)]
pub(super) struct Challenge {
    client_nonce: [u8; 32],
    server_nonce: [u8; 32],
}

impl Challenge {
    /// Creates the answer to a client's greeting and nonce ([`HELLO_LEN`] bytes). Also returns the bytes to send.
    pub(super) fn new(hello_bytes: &[u8]) -> io::Result<(Self, Vec<u8>)> {
        let client_nonce =
            hello_bytes.strip_prefix(GREETING).and_then(|nonce| nonce.try_into().ok());
        let client_nonce = client_nonce.ok_or_else(|| invalid("the greeting is unknown"))?;
        let server_nonce = random().map_err(io::Error::other)?;
        Ok((Self { client_nonce, server_nonce }, hello(&server_nonce)))
    }

    /// Checks a client's proof. Returns whether the proof is valid, and the bytes to send.
    pub(super) fn answer(&self, secret: Option<&Secret>, proof: &[u8]) -> (bool, Vec<u8>) {
        let nonces = [&self.client_nonce, &self.server_nonce];
        match verify(secret, Role::Client, nonces, proof) {
            true => {
                let own = prove(secret, Role::Server, nonces);
                (true, [&[ACCEPTED][..], &own].concat())
            }
            false => (false, vec![REFUSED]),
        }
    }
}
