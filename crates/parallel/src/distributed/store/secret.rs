//! The secret that the ranks of a job share.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::{StoreError, StoreResult};

/// Smallest size of a secret, in bytes.
const MIN_SECRET: usize = 16;

/// Length of a [`Proof`], in bytes.
pub(super) const PROOF_LEN: usize = 32;

/// A MAC over a handshake.
pub(super) type Proof = [u8; PROOF_LEN];

/// A secret that the ranks of a job share. Both ends of a connection to a [`TcpStore`](super::TcpStore) prove that they
/// know the secret. The secret is never sent, and `Debug` does not print it.
///
/// The secret must be random, because anyone who connects can test guesses. `openssl rand -hex 32` prints a good
/// secret.
#[derive(Clone)]
pub struct Secret(Arc<[u8]>);

impl Secret {
    /// Creates a secret from bytes.
    ///
    /// # Errors
    /// [`StoreError::InvalidSecret`] if there are fewer than 16 bytes, or all of them are zero.
    pub fn new(secret: impl AsRef<[u8]>) -> StoreResult<Self> {
        match secret.as_ref() {
            short if short.len() < MIN_SECRET => {
                let found = short.len();
                let reason = format!("it has {found} bytes, but needs at least {MIN_SECRET}");
                Err(StoreError::InvalidSecret { reason })
            }
            // To HMAC, a key of up to 64 zeros is the same as no key.
            zeros if zeros.iter().all(|byte| *byte == 0) => {
                Err(StoreError::InvalidSecret { reason: "all its bytes are zero".to_owned() })
            }
            secret => Ok(Self(secret.into())),
        }
    }

    /// Creates a secret from 32 random bytes, written as 64 hexadecimal digits.
    ///
    /// # Errors
    /// [`StoreError::InvalidSecret`] if the system gives no random bytes.
    pub fn random() -> StoreResult<Self> {
        let digits: String = random()?.iter().map(|byte| format!("{byte:02x}")).collect();
        Self::new(digits)
    }

    /// Returns the secret as text for the environment of a process. `None` if it is not UTF-8.
    pub(in super::super) fn to_text(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Returns 32 bytes from the system's cryptographic random generator.
pub(super) fn random() -> StoreResult<[u8; 32]> {
    let mut bytes = [0; 32];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) => {
            Err(StoreError::InvalidSecret { reason: format!("no random bytes: {error}") })
        }
    }
}

/// The role of the prover in a connection. A proof is valid for one role only, so that a peer cannot send back the
/// proof that it received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Client,
    Server,
}

/// Computes the MAC of a handshake. Each connection has new nonces.
fn mac(secret: Option<&Secret>, role: Role, nonces: [&[u8; 32]; 2]) -> Hmac<Sha256> {
    // Without a secret, the key is empty. A `Secret` is never empty.
    let key = secret.map_or(&[][..], |secret| &secret.0);
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        unreachable!("HMAC takes keys of every length")
    };
    mac.update(match role {
        Role::Client => b"warpline store 2: client",
        Role::Server => b"warpline store 2: server",
    });
    nonces.iter().for_each(|nonce| mac.update(*nonce));
    mac
}

/// Computes the proof that the peer in `role` knows the secret. `nonces` are the client's and the server's.
pub(super) fn prove(secret: Option<&Secret>, role: Role, nonces: [&[u8; 32]; 2]) -> Proof {
    mac(secret, role, nonces).finalize().into_bytes().into()
}

/// Returns `true` if a proof is valid. The comparison takes the same time for every invalid proof.
pub(super) fn verify(
    secret: Option<&Secret>,
    role: Role,
    nonces: [&[u8; 32]; 2],
    proof: &[u8],
) -> bool {
    mac(secret, role, nonces).verify_slice(proof).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_valid_for_its_secret_role_and_nonces_only() {
        let secret = Secret::random().unwrap();
        let other = Secret::random().unwrap();
        let (a, b) = (random().unwrap(), random().unwrap());
        let proof = prove(Some(&secret), Role::Client, [&a, &b]);
        assert!(verify(Some(&secret), Role::Client, [&a, &b], &proof));
        assert!(!verify(Some(&secret), Role::Server, [&a, &b], &proof));
        assert!(!verify(Some(&secret), Role::Client, [&b, &a], &proof));
        assert!(!verify(Some(&other), Role::Client, [&a, &b], &proof));
        assert!(!verify(None, Role::Client, [&a, &b], &proof));
        for bit in 0..8 * PROOF_LEN {
            let mut wrong = proof;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(!verify(Some(&secret), Role::Client, [&a, &b], &wrong), "{bit}");
        }
        assert!(!verify(Some(&secret), Role::Client, [&a, &b], &proof[..31]));
    }

    #[test]
    fn a_secret_is_not_printed_and_a_short_one_is_refused() {
        let text = "correct horse battery staple";
        assert_eq!(format!("{:?}", Secret::new(text).unwrap()), "Secret(..)");
        let error = Secret::new("hunter2").unwrap_err().to_string();
        assert!(error.contains("7 bytes") && !error.contains("hunter2"), "{error}");
        assert_ne!(Secret::random().unwrap().to_text(), Secret::random().unwrap().to_text());
    }
}
