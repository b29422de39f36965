//! The secret of a store over TCP: accepted and refused peers, error messages, and confidentiality.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use warpline_parallel::distributed::{
    InitOptions, Secret, Store, StoreError, TcpStore, TcpStoreOptions, launch::Launcher,
};

use crate::store_wire::{accept_handshake, answer_with, message, proof, read_hello, shake_hands};

const LONG: Duration = Duration::from_secs(60);
const TEXT: &str = "correct horse battery staple";

#[test]
fn short_secrets_and_secrets_of_zeros_are_refused() {
    for refused in [&b""[..], &[1; 15], &[0; 16], &[0; 32]] {
        let error = Secret::new(refused).unwrap_err();
        assert!(matches!(error, StoreError::InvalidSecret { .. }), "{error}");
    }
    Secret::new([&[0; 15][..], &[1]].concat()).unwrap();
}

fn host() -> (TcpStore, Secret, (&'static str, u16)) {
    let secret = Secret::new(TEXT).unwrap();
    let host = TcpStore::host("127.0.0.1:0", TcpStoreOptions::new().secret(&secret)).unwrap();
    let address = ("127.0.0.1", host.port());
    (host, secret, address)
}

fn connect_raw(address: (&'static str, u16)) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

#[test]
fn only_clients_with_the_secret_are_accepted() {
    let (host, secret, address) = host();
    TcpStore::connect(address, TcpStoreOptions::new().secret(&secret).timeout(LONG))
        .unwrap()
        .set("k", b"v")
        .unwrap();
    assert_eq!(host.get("k", LONG).unwrap(), b"v");
    let error = TcpStore::connect(address, LONG).unwrap_err();
    assert!(matches!(error, StoreError::WrongSecret { .. }), "{error}");
    assert!(error.to_string().contains("this process has none"), "{error}");
    let other = Secret::random().unwrap();
    let error = TcpStore::connect(address, TcpStoreOptions::new().secret(&other).timeout(LONG))
        .unwrap_err();
    assert!(matches!(error, StoreError::WrongSecret { .. }), "{error}");
    assert!(error.to_string().contains("WARPLINE_SECRET"), "{error}");
    // A client with a secret refuses a server without the secret.
    let open = TcpStore::host("127.0.0.1:0", ()).unwrap();
    let error = TcpStore::connect(
        ("127.0.0.1", open.port()),
        TcpStoreOptions::new().secret(&secret).timeout(LONG),
    );
    assert!(matches!(error, Err(StoreError::WrongSecret { .. })));
}

#[test]
fn requests_before_the_proof_change_nothing() {
    let (host, _, address) = host();
    // Send a `set` of "k" to "v" in place of each message of a client.
    let set = message(&[&[0][..], &1u32.to_le_bytes(), b"k", &1u32.to_le_bytes(), b"v"].concat());
    let mut first = connect_raw(address);
    first.write_all(&set.repeat(8)).unwrap();
    let _ = first.read_to_end(&mut Vec::new());
    let mut second = connect_raw(address);
    assert_eq!(answer_with(&mut second, &set.repeat(8))[0], 0);
    assert!(!host.check(&["k"]).unwrap());
}

#[test]
fn a_recorded_answer_and_a_returned_proof_are_refused() {
    let (_host, secret, address) = host();
    // Record the greetings and the proof of an honest client, as an eavesdropper could.
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    let relayed = relay.local_addr().unwrap();
    let honest = std::thread::spawn(move || {
        TcpStore::connect(relayed, TcpStoreOptions::new().secret(&secret).timeout(LONG)).unwrap()
    });
    let (mut client, _) = relay.accept().unwrap();
    let mut server = connect_raw(address);
    let mut pass = |count: usize, to_server: bool| {
        let mut bytes = vec![0; count];
        let (from, to) =
            if to_server { (&mut client, &mut server) } else { (&mut server, &mut client) };
        from.read_exact(&mut bytes).unwrap();
        to.write_all(&bytes).unwrap();
        bytes
    };
    let hello = pass(40, true);
    pass(40, false);
    let answer = pass(32, true);
    let verdict = pass(33, false);
    honest.join().unwrap();
    // Replay the recorded bytes on a new connection, which has another server nonce.
    let mut replay = connect_raw(address);
    replay.write_all(&[hello, answer].concat()).unwrap();
    let mut said = Vec::new();
    let _ = replay.read_to_end(&mut said);
    assert_eq!(said.len(), 41);
    assert_eq!(said[40], 0);
    // The server's own proof is not valid for a client.
    assert_eq!(answer_with(&mut connect_raw(address), &verdict[1..]), [0]);
    assert_eq!(answer_with(&mut connect_raw(address), &[0; 32]), [0]);
    assert_eq!(
        answer_with(&mut connect_raw(address), &proof(b"", "client", &[1; 32], &[0; 32])),
        [0]
    );
}

#[test]
fn a_server_without_the_secret_is_not_trusted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let impostor = std::thread::spawn(move || {
        // The first server guesses a secret; the second returns the client's own nonce and proof.
        let (mut first, _) = listener.accept().unwrap();
        accept_handshake(&mut first, b"some other secret");
        let _ = first.read(&mut [0; 64]);
        let (mut second, _) = listener.accept().unwrap();
        let nonce = read_hello(&mut second);
        second.write_all(&[b"WLSTORE2", &nonce[..]].concat()).unwrap();
        let mut proof = [0; 32];
        second.read_exact(&mut proof).unwrap();
        second.write_all(&[&[1][..], &proof].concat()).unwrap();
        let _ = second.read(&mut [0; 64]);
    });
    let secret = Secret::new(TEXT).unwrap();
    for _ in 0..2 {
        let error =
            TcpStore::connect(address, TcpStoreOptions::new().secret(&secret).timeout(LONG))
                .unwrap_err();
        assert!(matches!(error, StoreError::WrongSecret { .. }), "{error}");
    }
    impostor.join().unwrap();
}

#[test]
fn neither_side_sends_or_prints_the_secret() {
    let (host, secret, address) = host();
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    let relayed = relay.local_addr().unwrap();
    let recording = std::thread::spawn(move || {
        let (client, _) = relay.accept().unwrap();
        let server = TcpStream::connect(address).unwrap();
        let copy = |from: &TcpStream, to: &TcpStream| {
            let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            std::thread::spawn(move || {
                let (mut all, mut buffer) = (Vec::<u8>::new(), [0; 4096]);
                while let Ok(read @ 1..) = from.read(&mut buffer) {
                    all.extend(&buffer[..read]);
                    if to.write_all(&buffer[..read]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Write);
                all
            })
        };
        let both = [copy(&client, &server), copy(&server, &client)];
        both.map(|thread| thread.join().unwrap()).concat()
    });
    let client =
        TcpStore::connect(relayed, TcpStoreOptions::new().secret(&secret).timeout(LONG)).unwrap();
    client.set("k", b"value").unwrap();
    let printed = format!("{client:?} {host:?} {secret:?}");
    assert!(!printed.contains("horse"), "{printed}");
    drop(client);
    let wire = recording.join().unwrap();
    let has = |text: &[u8]| wire.windows(text.len()).any(|window| window == text);
    assert!(has(b"WLSTORE2") && has(b"value"));
    assert!(!has(&TEXT.as_bytes()[..8]));
}

#[test]
fn without_a_secret_only_the_loopback_is_listened_on_and_connected_to() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let error = TcpStore::host(address, ()).unwrap_err();
        assert!(matches!(error, StoreError::NeedsSecret { .. }), "{address}: {error}");
        assert!(error.to_string().contains("WARPLINE_SECRET"), "{error}");
    }
    let error = TcpStore::connect("192.0.2.1:29500", LONG).unwrap_err();
    assert!(matches!(error, StoreError::NeedsSecret { .. }), "{error}");
    // With a secret, only the address is refused, because it is not an address of this host.
    let secret = Secret::random().unwrap();
    let error = TcpStore::host("192.0.2.1:0", TcpStoreOptions::new().secret(&secret)).unwrap_err();
    assert!(matches!(error, StoreError::Bind { .. }), "{error}");
    TcpStore::host("0.0.0.0:0", TcpStoreOptions::new().secret(&secret)).unwrap();
}

#[test]
#[cfg(target_os = "linux")]
fn a_store_listens_only_on_the_given_address() {
    let secret = Secret::random().unwrap();
    let host = TcpStore::host("127.0.0.2:0", TcpStoreOptions::new().secret(&secret)).unwrap();
    assert!(TcpStream::connect(("127.0.0.2", host.port())).is_ok());
    assert!(TcpStream::connect(("127.0.0.1", host.port())).is_err());
}

/// The program of a rank. The tests below start it.
#[test]
#[ignore = "is started by the other tests"]
fn program_of_a_rank() {
    let Ok(text) = std::env::var("MASTER_ADDR") else { return };
    match InitOptions::from_env(LONG) {
        Ok(options) => {
            options.store.add("ranks", 1).unwrap();
            println!("joined at {text}");
            let others = std::env::args().any(|arg| arg.contains(&secret_of_this_process()));
            assert!(!others, "the secret is on the command line");
        }
        Err(error) => println!("refused at {text}: {error}"),
    }
}

fn secret_of_this_process() -> String {
    std::env::var("WARPLINE_SECRET").unwrap_or_else(|_| "no secret".into())
}

/// Starts a rank with these variables in addition to the launcher's. Returns its output.
fn run_rank(variables: &[(&str, &str)]) -> String {
    let lines = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let seen = std::sync::Arc::clone(&lines);
    let mut launch = Launcher::new(std::env::current_exe().unwrap(), 1).driver("sim");
    for arg in [
        &*crate::full_test_name(module_path!(), "program_of_a_rank"),
        "--exact",
        "--ignored",
        "--nocapture",
    ] {
        launch = launch.arg(arg);
    }
    for (name, value) in variables {
        launch = launch.env(name, value);
    }
    let launch = launch.on_line(std::sync::Arc::new(move |_, _, line| {
        *seen.lock().unwrap() += &format!("{line}\n");
    }));
    let outcome = launch.run().unwrap();
    let lines = std::mem::take(&mut *lines.lock().unwrap());
    assert_eq!(outcome.code(), 0, "{lines}");
    lines
}

#[test]
fn the_launchers_ranks_have_its_secret_and_no_other_process_does() {
    let lines = run_rank(&[]);
    assert!(lines.contains("joined at 127.0.0.1"), "{lines}");
    // Another user of the machine knows the port but not the secret.
    let lines = run_rank(&[("WARPLINE_SECRET", TEXT)]);
    assert!(lines.contains("refused at 127.0.0.1: the store at 127.0.0.1:"), "{lines}");
    assert!(!lines.contains("horse"), "{lines}");
}

#[test]
fn a_job_over_several_machines_without_a_secret_is_an_error_that_says_how_to_set_it() {
    // Start the rank without the launcher, which would set a secret.
    let run = |address: &str, rank: &str, secret: Option<&str>| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args([
            &*crate::full_test_name(module_path!(), "program_of_a_rank"),
            "--exact",
            "--ignored",
            "--nocapture",
        ]);
        command.env("WARPLINE_DRIVER", "sim:1").env("RANK", rank).env("WORLD_SIZE", "2");
        command.env("MASTER_ADDR", address).env("MASTER_PORT", "29511").env("LOCAL_RANK", "0");
        if let Some(secret) = secret {
            command.env("WARPLINE_SECRET", secret);
        }
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    for rank in ["0", "1"] {
        let lines = run("192.0.2.1", rank, None);
        assert!(lines.contains("refused at 192.0.2.1"), "{lines}");
        assert!(lines.contains("set WARPLINE_SECRET to the same random text"), "{lines}");
    }
    let lines = run("192.0.2.1", "0", Some("short"));
    assert!(
        lines.contains("WARPLINE_SECRET: the secret cannot be used: it has 5 bytes"),
        "{lines}"
    );
    // With a secret, binding fails because the address belongs to another machine.
    let lines = run("192.0.2.1", "0", Some(TEXT));
    assert!(lines.contains("cannot listen on 192.0.2.1:29511"), "{lines}");
}

#[test]
fn an_open_store_speaks_the_same_protocol_with_an_empty_key() {
    let host = TcpStore::host("127.0.0.1:0", ()).unwrap();
    shake_hands(&mut connect_raw(("127.0.0.1", host.port())), b"");
}
