//! Tests that error messages name the called op, the fault, and the line of the call.

use std::error::Error as _;
use std::panic::Location;

use warpline::cuda::PoolOptions;
use warpline::data::{DataLoader, Dataset};
use warpline::{
    DType, Device, Error, ErrorKind, Result, SyncPolicy, Tensor, TensorOptions, arange, cat, cuda,
    embedding, empty, eye, full, linspace, ones, rand, randint, randn, randperm, simulated, stack,
    tensor, where_cond, with_runtime, zeros,
};
use warpline_runtime::View;
use warpline_runtime::iter::halves;

use crate::common::bad_calls::{everywhere, on_gpu, refused};

const HUGE: &[usize] = &[usize::MAX, 2];

#[test]
fn factories_fail_under_their_own_names() -> Result<()> {
    everywhere(|at| {
        refused("empty", empty(HUGE, at));
        refused("zeros", zeros(HUGE, at));
        refused("ones", ones(HUGE, at));
        refused("full", full(HUGE, 1, at));
        refused("full", full([2], 300, (DType::U8, at)));
        refused("rand", rand(HUGE, at));
        refused("rand", rand([2], (DType::I64, at)));
        refused("randn", randn([2], (DType::I64, at)));
        refused("randint", randint(5, 5, [2], at));
        refused("arange", arange(f64::NAN, at));
        refused("arange", arange(300, (DType::U8, at)));
        refused("linspace", linspace(0.0, f64::INFINITY, 3, at));
        refused("eye", eye(usize::MAX, at));
        refused("tensor", tensor(vec![vec![1], vec![1, 2]], at));
        refused("tensor", tensor([300i64], (DType::U8, at)));
        let t = zeros([2], at)?;
        refused("new_zeros", t.new_zeros(HUGE, ()));
        refused("new_full", t.new_full([2], 300, DType::U8));
        refused("full_like", t.full_like(300, DType::U8));
        refused("rand_like", t.rand_like(DType::I64));
        refused("fill_", tensor([1u8], at)?.fill_(300));
        Ok(())
    })
}

#[test]
fn views_fail_under_their_own_names() -> Result<()> {
    everywhere(|at| {
        let t = arange(24, at)?.reshape([2, 3, 4])?;
        refused("reshape", t.reshape([5, 5]));
        refused("view", t.view([5, 5]));
        let text = refused("view", t.view([-2, 6]));
        assert!(text.contains("a size cannot be -2"), "{text}");
        let text = refused("view", t.view([-1, -1]));
        assert!(text.contains("several -1"), "{text}");
        let text = refused("reshape", t.reshape([-1, 2, -1]));
        assert!(text.contains("several -1"), "{text}");
        let text = refused("view", t.narrow(0, 0, 0)?.view([-1, 0]));
        assert!(text.contains("-1 can be any size"), "{text}");
        let moved = t.transpose(0, 2)?;
        let text = refused("view", moved.view([24]));
        assert!(text.contains("use reshape"), "{text}");
        refused("transpose", t.transpose(0, 3));
        refused("t", t.t());
        refused("permute", t.permute([0, 1, 3]));
        refused("permute", t.permute([0, 0, 1]));
        refused("expand", t.expand([7, 3, 4]));
        refused("narrow", t.narrow(0, 1, 2));
        refused("select", t.select(0, 2));
        refused("slice", t.slice(3, .., 1));
        refused("slice", t.slice(0, .., 0));
        refused("squeeze", t.squeeze(3));
        refused("unsqueeze", t.unsqueeze(4));
        refused("flatten", t.flatten((2, 1)));
        refused("flatten", t.flatten((0, 3)));
        refused("split", t.split(0, 0));
        refused("split", t.split(1, 3));
        refused("chunk", t.chunk(0, 0));
        refused("chunk", t.chunk(2, 3));
        refused("i", t.i(2));
        let text = refused("i", t.i((0, .., 9)));
        assert!(text.contains("dimension 2 with size 4"), "the tensor's own dimension: {text}");
        refused("i", t.i((0, 0, 0, 0)));
        refused("cat", cat::<Tensor>(&[], 0));
        refused("cat", cat(&[&t, &ones([2], at)?], 0));
        refused("cat", cat(&[&t], 3));
        refused("stack", stack(&[&t, &ones([2], at)?], 0));
        refused("stack", stack(&[&t], 4));
        Ok(())
    })
}

#[test]
fn ops_fail_under_their_own_names() -> Result<()> {
    everywhere(|at| {
        let (a, b) = (ones([2, 3], at)?, ones([2, 2], at)?);
        let ints = ones([3, 2], (DType::I64, at))?;
        refused("add", a.add(&b));
        refused("add", &a + &b);
        refused("mul", &a * &b);
        refused("add_", a.add_(&b));
        refused("copy_", a.copy_(&b, ()));
        refused("where", where_cond(&a.gt(0.0)?, &a, &b));
        let text = refused("where", where_cond(&a, &a, 0));
        assert!(text.contains("the condition must have dtype torch.bool"), "{text}");
        let text = refused("masked_fill", a.masked_fill(&a, 0));
        assert!(text.contains("the mask must have dtype torch.bool"), "{text}");
        refused("masked_fill_", a.masked_fill_(&a, 0));
        refused("matmul", a.matmul(&b.t()?.contiguous()?.narrow(0, 0, 1)?));
        let text = refused("matmul", a.matmul(&ints));
        assert!(text.contains("torch.float32") && text.contains("torch.int64"), "{text}");
        assert!(text.contains("convert one with `to`"), "{text}");
        refused("sum", a.sum(2));
        refused("sum", a.sum([0, 0]));
        let text = refused("mean", ints.mean(()));
        assert!(text.contains("torch.int64") && text.contains("convert with `to`"), "{text}");
        refused("softmax", a.softmax(2));
        refused("item", a.item::<f32>());
        refused("item", a.narrow(0, 0, 1)?.narrow(1, 0, 1)?.fill_(1.5)?.item::<u8>());
        refused("to_scalar", a.to_scalar());
        refused("to_vec", a.to_vec::<i64>());
        refused("to_vec_async", a.to_vec_async::<i64>());
        refused("index_select", a.index_select(2, &tensor([0i64], at)?));
        refused("index_select", a.index_select(0, &tensor([0f32], at)?));
        refused("gather", a.gather(2, &tensor([[0i64]], at)?));
        refused("embedding", embedding(&a, &tensor([0f32], at)?));
        refused("normal_", a.normal_((f64::NAN, 1.0)));
        refused("bernoulli_", a.bernoulli_(2.0));
        refused("uniform_", ints.uniform_(()));
        refused("bitwise_not", a.bitwise_not());
        Ok(())
    })
}

#[test]
fn mixed_devices_are_named_with_the_op_and_the_line() -> Result<()> {
    with_runtime(&simulated(2)?, || {
        let (a, b) = (ones([2, 2], "cuda:0")?, ones([2, 2], "cpu")?);
        let text = refused("add", &a + &b);
        assert!(text.contains("cuda:0 and cpu"), "{text}");
        refused("matmul", a.matmul(&b));
        refused("pin_memory", a.pin_memory());
        let options = TensorOptions::new().device("cuda").pin_memory(true);
        refused("zeros", zeros([2], options));
        Ok(())
    })
}

/// Tests unknown devices and malformed device names in functions of each kind that accepts a device.
#[test]
fn unknown_devices_are_named_with_the_op_and_the_line() -> Result<()> {
    with_runtime(&simulated(2)?, || {
        for (name, said) in [("cuda:x", "'cuda:x'"), ("gpu", "'gpu'"), ("cuda:7", "cuda:7")] {
            let t = ones([2], ())?;
            let text = refused("zeros", zeros([2], name));
            assert!(text.contains(said), "{text}");
            refused("empty", empty([2], (DType::F16, name)));
            refused("tensor", tensor([1], name));
            refused("arange", arange(3, name));
            refused("randperm", randperm(3, name));
            refused("new_ones", t.new_ones([2], name));
            refused("ones_like", t.ones_like(name));
            refused("to", t.to(name));
            refused("to", t.to_non_blocking(name));
            refused("set_device", cuda::set_device(name));
            refused("device", cuda::device(name).map(drop));
            refused("synchronize", cuda::synchronize(name));
            refused("get_device_name", cuda::get_device_name(name));
            refused("memory_allocated", cuda::memory_allocated(name));
            refused("memory_cached", cuda::memory_cached(name));
            refused("reset_max_memory_cached", cuda::reset_max_memory_cached(name));
            refused("memory_stats", cuda::memory_stats(name));
            refused("mem_get_info", cuda::mem_get_info(name));
            refused("current_stream", cuda::current_stream(name));
            refused("Stream::new", cuda::Stream::new(name));
            refused("MemPool::new", cuda::MemPool::new(name, PoolOptions::default()));
        }
        let parsed = "cuda:x".parse::<Device>().expect_err("no device");
        assert_eq!(parsed.location(), None, "not one inside the standard library");
        assert!(parsed.to_string().starts_with("invalid device string: 'cuda:x'"), "{parsed}");
        let text = refused("synchronize", cuda::synchronize("cpu"));
        assert!(text.contains("'cpu' was given"), "{text}");
        let fraction = cuda::set_per_process_memory_fraction;
        let text = refused("set_per_process_memory_fraction", fraction(1.5, ()));
        assert!(text.contains("1.5"), "{text}");
        let path = "/nonexistent/folder/snapshot.pickle";
        let text = refused("dump_snapshot", cuda::memory::dump_snapshot(path));
        assert!(text.contains("/nonexistent/folder"), "{text}");
        Ok(())
    })
}

#[test]
fn without_cuda_the_op_and_the_line_are_named() {
    crate::common::cpu(|_| {
        let t = ones([2], ())?;
        refused("zeros", zeros([2], "cuda"));
        refused("tensor", tensor([1], "cuda:3"));
        refused("cuda", t.cuda());
        refused("to", t.to("cuda"));
        refused("pin_memory", t.pin_memory());
        refused("zeros", zeros([2], TensorOptions::new().pin_memory(true)));
        refused("set_device", cuda::set_device(0));
        refused("current_device", cuda::current_device());
        refused("manual_seed", cuda::manual_seed(1));
        refused("memory_snapshot", cuda::memory_snapshot());
        let text = refused("memory_allocated", cuda::memory_allocated(()));
        assert!(text.contains("CUDA is not available"), "{text}");
        Ok(())
    });
}

/// The op that allocates names itself and the size.
#[test]
fn without_memory_the_op_the_size_and_the_line_are_named() -> Result<()> {
    everywhere(|at| {
        let text = refused("zeros", zeros([1 << 60], (DType::U8, at)));
        assert!(text.contains("1073741824.00 GiB") && text.contains("out of memory"), "{text}");
        let t = zeros([1], at)?;
        // 4 EiB exceeds any address space, even on a system that overcommits memory.
        let wide = t.expand([1isize << 60])?;
        refused("full", full([1 << 60], 1, at));
        refused("new_empty", t.new_empty([1 << 60], ()));
        refused("empty_like", wide.empty_like(()));
        refused("add", wide.add(1));
        refused("add", &wide + &wide);
        refused("copy", wide.copy());
        refused("contiguous", wide.contiguous());
        refused("neg", wide.neg());
        refused("softmax", wide.softmax(0));
        refused("to_vec", wide.to_vec::<f32>());
        refused("index_select", t.index_select(0, &tensor([0i64], at)?.expand([1isize << 60])?));
        refused("to", wide.to(DType::F64));
        refused("cat", cat(&[&wide, &wide], 0));
        refused("stack", stack(&[&wide, &wide], 0));
        Ok(())
    })?;
    with_runtime(&simulated(1)?, || {
        let text = refused("zeros", zeros([1 << 40], "cuda"));
        assert!(text.contains("Tried to allocate 4096.00 GiB"), "{text}");
        let text = refused("ones", ones([1 << 58], TensorOptions::new().pin_memory(true)));
        assert!(text.contains("1073741824.00 GiB"), "{text}");
        Ok(())
    })
}

/// A closure does not know the caller of its function, so the code must pass the location
/// explicitly.
#[test]
fn loaders_fail_at_the_line_that_asks_for_a_batch() -> Result<()> {
    struct Ragged;
    impl Dataset for Ragged {
        type Sample = Tensor;
        fn len(&self) -> usize {
            2
        }
        fn get(&self, index: usize) -> Result<Tensor> {
            match index {
                2.. => Err(Error::invalid("get", "no such sample")),
                _ => ones([index + 1], ()),
            }
        }
    }
    let loader = DataLoader::new(Ragged).batch_size(2)?;
    let mut batches = loader.iter()?;
    refused("DataLoader", batches.next().expect("a batch"));
    let batches = DataLoader::new(Ragged).batch_size(2)?.num_workers(1);
    for batch in &mut batches.iter()? {
        let text = batch.expect_err("ragged").to_string();
        assert!(text.contains("messages.rs:"), "{text}");
    }
    // `halves` splits a large launch in two and runs each in a closure.
    let t = ones([4], ())?;
    let fails = |_: [View<'_>; 1]| Err(Error::invalid("half", "no"));
    refused("half", halves(&[t.as_view()], fails));
    Ok(())
}

/// Tests a peer that is gone, and a peer that sends bytes that are not a message.
#[cfg(target_os = "linux")]
#[test]
fn channels_fail_at_the_line_of_the_call() -> Result<()> {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use warpline::multiprocessing::Channel;

    let (channel, other) = Channel::pair()?;
    drop(other);
    refused("recv", channel.recv());
    refused("set_timeout", channel.set_timeout(Some(std::time::Duration::ZERO)));
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(&[7; 64]).unwrap();
    let text = refused("recv", Channel::new(ours).recv());
    assert!(text.contains("invalid message"), "{text}");
    Ok(())
}

/// `fn main() -> warpline::Result<()>` prints an error with `Debug`, and libraries that print
/// chains of errors follow `source`.
#[test]
fn debug_is_the_message_and_no_source_repeats_it() -> Result<()> {
    with_runtime(&simulated(1)?, || {
        let mut errors: Vec<Error> = vec![
            zeros(HUGE, ()).unwrap_err(),
            zeros([2], "cuda:7").unwrap_err(),
            zeros([2], "gpu").unwrap_err(),
            zeros([1 << 40], "cuda").unwrap_err(),
            Error::driver(
                "add",
                warpline_cuda_sys_safe::DriverError::cuda(
                    "cuLaunchKernel",
                    warpline_cuda_sys_safe::CudaCode::ILLEGAL_ADDRESS,
                    Some(0),
                ),
            ),
        ];
        errors.push(ErrorKind::NoSuchDevice { index: 1, count: 1 }.of("get"));
        for error in errors {
            let text = error.to_string();
            assert_eq!(format!("{error:?}"), text);
            assert!(!text.contains(" {"), "no struct: {text}");
            let mut source = error.source();
            while let Some(cause) = source {
                assert!(!text.contains(&cause.to_string()), "twice: {text}");
                source = cause.source();
            }
        }
        Ok(())
    })
}

#[test]
fn runtimes_streams_and_events_fail_under_their_own_names() -> Result<()> {
    refused("open", warpline::open("sim:x", &Default::default()));
    with_runtime(&simulated(2)?, || {
        let (here, there) = (cuda::Stream::new(0)?, cuda::Stream::new(1)?);
        let (plain, timed) =
            (cuda::Event::new(()), cuda::Event::new(cuda::EventFlags::new().enable_timing(true)));
        refused("elapsed_time", timed.elapsed_time(&plain));
        refused("elapsed_time", timed.elapsed_time(&timed));
        plain.record(&here)?;
        refused("record", plain.record(&there));
        refused("record_event", there.record_event(Some(&plain)));
        let other = with_runtime(&simulated(1)?, || cuda::Stream::new(0))?;
        refused("wait", plain.wait(&other));
        refused("wait_event", other.wait_event(&plain));
        refused("wait_stream", other.wait_stream(&here));
        refused("with_stream", cuda::with_stream(&other, || Ok(())));
        refused("stream", cuda::stream(&other).map(drop));
        refused("set_stream", cuda::set_stream(&other));
        Ok(())
    })
}

/// `?` converts the errors of options, streams, events, tensors and files to one type, so the closure needs no
/// annotation.
#[test]
fn a_closure_uses_options_streams_tensors_and_files_with_one_error_type() -> Result<()> {
    with_runtime(&simulated(1)?, || {
        let stream = cuda::Stream::new(())?;
        let x = ones([2], "cuda")?;
        let work = |options: &str, file: &mut [u8]| {
            let _options = cuda::AllocatorConfig::parse(options)?;
            let event = stream.record_event(None)?;
            let sum = x.add(&x)?.sum(())?;
            event.synchronize()?;
            cuda::memory::snapshot()?.write_json(file)?;
            sum.item::<f32>()
        };
        let mut file = vec![0; 1 << 20];
        assert_eq!(work("policy:torch", &mut file)?, 4.0);
        let error = work("policy:none", &mut file).expect_err("no such policy");
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
        assert!(error.to_string().contains("`policy` cannot be `none`"), "{error}");
        assert_eq!(error.location().map(Location::file), Some(file!()), "the line of the `?`");
        let error = work("policy:torch", &mut []).expect_err("no space");
        assert!(matches!(error.kind(), ErrorKind::Io), "{error}");
        assert!(error.find::<std::io::Error>().is_some());
        assert_eq!(error.location().map(Location::file), Some(file!()), "the line of the `?`");
        Ok(())
    })
}

/// The second access of a race can be the print of a tensor. The report then names the line that prints.
#[test]
fn a_race_completed_by_printing_is_reported_at_the_line_that_prints() -> Result<()> {
    with_runtime(&simulated(1)?, || {
        cuda::set_sync_policy(SyncPolicy::Manual);
        let x = zeros([2], "cuda")?;
        let side = cuda::Stream::new(())?;
        cuda::synchronize(())?;
        let _on_side = cuda::stream(&side)?;
        x.fill_(1)?;
        drop(_on_side);
        let (text, line) = (format!("{x}"), line!());
        assert!(text.starts_with("tensor(["), "{text}");
        let races = cuda::take_races();
        let race = races.first().expect("a race");
        let report = race.to_string();
        assert!(report.contains("`print` at ") && report.contains("`fill_` at "), "{report}");
        assert!(report.contains(&format!("messages.rs:{line}:")), "{report}");
        assert!(!report.contains("src/methods/print.rs"), "{report}");
        Ok(())
    })
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_ops_fail_under_their_own_names() {
    on_gpu(&[
        factories_fail_under_their_own_names,
        views_fail_under_their_own_names,
        ops_fail_under_their_own_names,
        without_memory_the_op_the_size_and_the_line_are_named,
    ]);
}
