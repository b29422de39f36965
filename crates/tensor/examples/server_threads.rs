//! A server whose threads share a model, each with a stream of its own.
//!
//! `cargo run --example server_threads`, on simulated GPUs with `WARPLINE_DRIVER=sim:1` before it.

use std::sync::{Mutex, mpsc};
use std::thread;

use warpline::{Result, Tensor, cuda, full, randn};

const THREADS: usize = 4;
const REQUESTS: usize = 32;

/// A request, and where its answer goes.
type Request = (f32, mpsc::Sender<Result<f32>>);

/// Two layers. All threads read the same memory.
struct Model([Tensor; 2]);

fn answer(Model([first, second]): &Model, input: f32) -> Result<f32> {
    let x = full([1, 16], input, "cuda")?;
    // Waits for this thread's stream alone.
    x.matmul(first)?.relu()?.matmul(second)?.sum(())?.item()
}

fn serve(model: &Model, requests: &Mutex<mpsc::Receiver<Request>>) -> Result<()> {
    let stream = cuda::Stream::new(())?;
    // Current streams are a thread's own: all that this one calls runs on its stream.
    let _current = cuda::stream(&stream)?;
    loop {
        let request = requests.lock().expect("no thread panics").recv();
        let Ok((input, reply)) = request else { return Ok(()) };
        // One that failed is the client's to hear of; the server goes on.
        let _ = reply.send(answer(model, input));
    }
}

fn main() -> Result<()> {
    let model = Model([randn([16, 64], "cuda")?, randn([64, 1], "cuda")?]);

    let (send, receive) = mpsc::channel::<Request>();
    let receive = Mutex::new(receive);
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..THREADS).map(|_| scope.spawn(|| serve(&model, &receive))).collect();
        let replies: Vec<_> = (0..REQUESTS)
            .map(|i| {
                let (reply, answer) = mpsc::channel();
                send.send((i as f32, reply)).expect("the server is there");
                answer
            })
            .collect();
        drop(send); // no more requests: the threads end
        for (i, reply) in replies.into_iter().enumerate() {
            let output = reply.recv().expect("each request is answered")?;
            let expected = answer(&model, i as f32)?;
            assert!((output - expected).abs() <= 1e-3 * expected.abs().max(1.0));
        }
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    println!("{REQUESTS} requests were answered by {THREADS} threads");
    Ok(())
}
