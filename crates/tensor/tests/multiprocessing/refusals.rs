//! Tests that tensors that cannot be shared are refused with a reason, and that invalid messages of
//! a peer are errors.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use warpline::multiprocessing::Channel;
use warpline::{
    DType, ErrorKind, Result, ResultExt, SimulatedOptions, arange, cuda, ones, with_runtime, zeros,
};
use warpline_cuda_sys_safe::CudaCode;
use warpline_cuda_sys_safe::sim::{CallKind, Fault, Schedule, SimConfig};

use crate::cut::read_next_message;
use crate::threads::{pair, world};

/// Runs `body` on one simulated GPU.
fn alone(body: impl FnOnce() -> Result<()>) {
    let (_, runtime) = world(1, Schedule::Lazy);
    with_runtime(&runtime, body).unwrap();
}

fn reason(result: Result<impl Sized>) -> String {
    match result {
        Err(error) => match error.kind() {
            ErrorKind::CannotShare { reason } => format!("{}: {reason}", error.op()),
            _ => panic!("{error}"),
        },
        Ok(_) => panic!("it was shared"),
    }
}

#[test]
fn refusals_to_send_name_the_reason() {
    alone(|| {
        let (here, there) = pair();
        assert!(reason(here.send(&ones([2], ())?)).contains("host memory"));
        assert!(reason(here.send(&ones([2], "cuda")?)).contains("share_memory"));
        let shared = arange(6, "cuda")?.share_memory()?;
        let wide = shared.narrow(0, 0, 1)?.expand([7])?;
        assert!(reason(here.send(&wide)).contains("contiguous"), "7 elements of a storage of 6");
        here.send(&shared)?;
        let (_, other) = world(1, Schedule::Lazy);
        with_runtime(&other, || {
            let received = there.recv()?;
            assert!(reason(there.send(&received)).contains("came from another process"));
            there.send(&received.copy()?.share_memory()?)
        })?;
        assert_eq!(here.recv()?.to_vec::<i64>()?, [0, 1, 2, 3, 4, 5]);
        Ok(())
    });
}

#[test]
fn refusals_to_receive_name_the_reason() {
    let (here, there) = pair();
    let (_, two) = world(2, Schedule::Lazy);
    with_runtime(&two, || here.send(&ones([2], "cuda:1")?.share_memory()?)).unwrap();
    alone(|| {
        assert!(reason(there.recv()).contains("not visible to this process"));
        Ok(())
    });
    // The channel still works after a refused message.
    with_runtime(&two, || here.send(&ones([2], "cuda:0")?.share_memory()?)).unwrap();
    alone(|| {
        assert_eq!(there.recv()?.to_vec::<f32>()?, [1.0; 2]);
        Ok(())
    });
}

#[test]
fn a_tensor_arrives_on_the_same_gpu_even_if_its_index_differs() {
    let (here, there) = pair();
    let [all, second] = [None, Some("1")]
        .map(|v| warpline::simulated(SimulatedOptions::new(2).visible(v)).unwrap());
    with_runtime(&all, || here.send(&ones([2], "cuda:1")?.share_memory()?)).unwrap();
    with_runtime(&second, || -> Result<()> {
        let tensor = there.recv()?;
        assert_eq!(tensor.device().to_string(), "cuda:0");
        assert_eq!(tensor.to_vec::<f32>()?, [1.0; 2]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_device_without_virtual_memory_returns_errors() {
    let mut config = SimConfig::new(1);
    config.properties.virtual_memory_management = false;
    let runtime = warpline::Runtime::new(config.build(), warpline::RuntimeConfig::default());
    with_runtime(&runtime.unwrap(), || {
        let reason = reason(ones([2], "cuda").unwrap().share_memory());
        assert!(reason.contains("virtual memory"), "{reason}");
    });
}

#[test]
fn captures_refuse_calls_that_wait_on_the_host() {
    alone(|| {
        let (here, _there) = pair();
        let shared = zeros([4], "cuda")?.share_memory()?;
        let (graph, ()) = cuda::graph(|| {
            let local = shared.add(1.0)?;
            let refused =
                [local.share_memory().map(drop), here.send(&shared), here.send_event(&shared)];
            for refused in refused {
                assert!(matches!(refused.kind(), Some(ErrorKind::Capture { .. })), "{refused:?}");
            }
            Ok(())
        })?;
        graph.replay()?;
        here.send(&shared)
    });
}

#[test]
fn a_closed_channel_fails_with_peer_gone() {
    alone(|| {
        let (here, there) = pair();
        let shared = ones([2], "cuda")?.share_memory()?;
        drop(there);
        let gone = [
            here.recv().map(drop),
            here.send(&shared),
            here.send_event(&shared),
            here.recv_event(&shared),
        ];
        for gone in gone {
            assert!(matches!(gone.kind(), Some(ErrorKind::PeerGone { .. })), "{gone:?}");
        }
        assert_eq!(shared.to_vec::<f32>()?, [1.0; 2]);
        Ok(())
    });
}

#[test]
fn the_wait_for_an_idle_peer_ends_with_the_timeout() {
    alone(|| {
        let (here, _there) = pair();
        here.set_timeout(Some(Duration::from_millis(10)))?;
        let error = here.recv().unwrap_err().to_string();
        assert!(error.contains("timeout"), "{error}");
        Ok(())
    });
}

#[test]
fn invalid_messages_are_errors() {
    alone(|| {
        // A valid message in which the descriptor is missing, and copies of it with one byte
        // changed.
        let shared = ones([2], "cuda")?.share_memory()?;
        let (a, b) = UnixStream::pair().unwrap();
        Channel::new(a).send(&shared)?;
        let (good, _) = read_next_message(&b, None);
        for at in 0..=good.len() {
            let mut bytes = good.clone();
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 0x81;
            }
            let (mut raw, end) = UnixStream::pair().unwrap();
            raw.write_all(&bytes).unwrap();
            drop(raw);
            assert!(Channel::new(end).recv().is_err(), "byte {at}: no memory came along");
        }
        // Half a message, then the end of the byte stream.
        let (mut raw, end) = UnixStream::pair().unwrap();
        raw.write_all(&good[..good.len() / 2]).unwrap();
        drop(raw);
        let end = Channel::new(end);
        for _ in 0..2 {
            assert!(matches!(end.recv().kind(), Some(ErrorKind::PeerGone { .. })));
        }
        // Bytes that are not a message, from a peer that stays connected.
        let (mut raw, end) = UnixStream::pair().unwrap();
        raw.write_all(&[0; 100]).unwrap();
        let end = Channel::new(end);
        assert!(end.recv().unwrap_err().to_string().contains("invalid message"));
        let again = end.recv().unwrap_err().to_string();
        assert!(again.contains("new channel"), "{again}");
        Ok(())
    });
}

#[test]
fn an_event_is_received_only_for_its_own_tensor() {
    alone(|| {
        let (here, there) = pair();
        let [one, other] =
            [ones([2], "cuda")?.share_memory()?, zeros([2], "cuda")?.share_memory()?];
        here.send_event(&one)?;
        let error = there.recv_event(&other).unwrap_err().to_string();
        assert!(error.contains("another tensor"), "{error}");
        here.send_event(&one)?;
        let error = there.recv().unwrap_err().to_string();
        assert!(error.contains("another kind"), "{error}");
        here.send_event(&one)?;
        there.recv_event(&one)
    });
}

#[test]
fn shared_memory_has_its_own_pages_and_no_old_contents() {
    alone(|| {
        let (here, there) = pair();
        for _ in 0..3 {
            // The device has free memory that was in use before.
            drop(ones([4 << 20], "cuda")?);
            cuda::empty_cache();
            let (one, other) =
                (ones([1], "cuda")?.share_memory()?, ones([1], "cuda")?.share_memory()?);
            assert!(one.data_ptr().abs_diff(other.data_ptr()) >= 2 << 20, "pages of its own");
            here.send(&one)?;
            let received = there.recv()?;
            assert_eq!(received.storage().bytes(), DType::F32.size(), "no more than that");
            assert!(received.narrow(0, 0, 2).is_err());
        }
        Ok(())
    });
}

/// The n-th query of a stream fails, and all later ones. The drop then cannot tell whether the receiver's streams still
/// wait for the sender, and must end all the same.
#[test]
fn a_channel_is_dropped_although_the_driver_refuses_queries() {
    for accepted in 0..8 {
        let (sim, runtime) = world(1, Schedule::Lazy);
        let (_, other) = world(1, Schedule::Lazy);
        let (here, there) = pair();
        here.set_timeout(Some(Duration::from_millis(200))).unwrap();
        let send = || {
            let shared = arange(6, "cuda")?.share_memory()?;
            there.send(&shared).map(|()| shared)
        };
        let _sent = with_runtime(&other, send).unwrap();
        let received = with_runtime(&runtime, || here.recv()).unwrap();
        // The driver has completed the wait for the sender.
        with_runtime(&runtime, || received.to_vec::<i64>()).unwrap();
        let refused = Fault::new(CallKind::StreamQuery, CudaCode::UNKNOWN);
        sim.inject(refused.after(accepted).times(usize::MAX));
        let (ended, end) = std::sync::mpsc::channel();
        let drops = std::thread::spawn(move || {
            drop(here);
            ended.send(()).unwrap();
        });
        let in_time = end.recv_timeout(Duration::from_secs(20));
        sim.clear_faults();
        assert!(in_time.is_ok(), "the drop waits, after {accepted} accepted queries");
        drops.join().unwrap();
        drop(received);
    }
}
