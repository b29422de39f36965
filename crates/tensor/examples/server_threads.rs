//! A server whose threads share a model. Each thread has its own stream.
//!
//! `cargo run --example server_threads`; put `WARPLINE_DRIVER=sim:1` before the command to run on a simulated
//! GPU.

use std::sync::{Mutex, mpsc};
use std::thread;

use warpline::{Result, Tensor, cuda, full, randn};

const THREADS: usize = 4;
const REQUESTS: usize = 32;

/// A request, and the channel for the answer.
type Request = (f32, mpsc::Sender<Result<f32>>);

/// Two layers. All threads read the same memory.
struct Model([Tensor; 2]);

fn answer(Model([first, second]): &Model, input: f32) -> Result<f32> {
    let x = full([1, 16], input, "cuda")?;
    // `item` waits for this thread's stream only.
    x.matmul(first)?.relu()?.matmul(second)?.sum(())?.item()
}

fn serve(model: &Model, requests: &Mutex<mpsc::Receiver<Request>>) -> Result<()> {
    let stream = cuda::Stream::new(())?;
    // Each thread has its own current stream, so all ops that this thread calls run on `stream`.
    let _current = cuda::stream(&stream)?;
    loop {
        let request = requests.lock().expect("no thread panics").recv();
        let Ok((input, reply)) = request else { return Ok(()) };
        // An error is sent to the client as the answer, and the server continues.
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
