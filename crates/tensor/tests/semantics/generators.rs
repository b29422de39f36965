//! S30 and S38: random ops draw from generators of the program, eagerly and in graphs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use warpline::autograd::checkpoint;
use warpline::cuda::{self, Callable, CaptureOptions, CudaGraph};
use warpline::data::{DataLoader, RandomSampler, TensorDataset};
use warpline::functional::dropout;
use warpline::{
    Device, ErrorKind, Generator, Result, Tensor, get_rng_state, manual_seed, ones, rand, randn,
    randperm, runtime, with_generator, with_runtime, zeros,
};

use crate::common::World;

crate::rows! {
    worlds(2) s30_generators_have_their_own_sequences gpu2_s30_generators_have_their_own_sequences => own;
    worlds(1) s30_generators_are_checked gpu_s30_generators_are_checked => refused;
    worlds(1) s30_a_checkpoint_draws_from_its_generator_again
        gpu_s30_a_checkpoint_draws_from_its_generator_again => checkpoints;
    schedules64(1) s38_graphs_draw_from_several_generators
        gpu_s38_graphs_draw_from_several_generators => graphs;
    schedules64(1) s38_a_graph_draws_from_several_states_of_a_generator
        gpu_s38_a_graph_draws_from_several_states_of_a_generator => states;
    schedules64(1) s38_graphed_callables_draw_from_several_generators
        gpu_s38_graphed_callables_draw_from_several_generators => callables;
    worlds(1) s38_a_graph_draws_from_at_most_32_generators
        gpu_s38_a_graph_draws_from_at_most_32_generators => limit;
    schedules64(1) s38_threads_replay_graphs_with_the_same_generators
        gpu_s38_threads_replay_graphs_with_the_same_generators => threads;
}

fn seeded(device: impl warpline::IntoDevice, seed: u64) -> Result<Generator> {
    let generator = Generator::on(device)?;
    generator.manual_seed(seed);
    Ok(generator)
}

fn numbers(f: impl FnOnce() -> Result<Tensor>) -> Result<Vec<f32>> {
    f()?.to_vec()
}

fn own(world: &World) -> Result<()> {
    for at in world.places() {
        let draw = || numbers(|| rand([50], at)?.add(&randn([50], at)?));
        manual_seed(3);
        let [first, second] = [draw()?, draw()?];
        let [a, b] = [seeded(at, 3)?, seeded(at, 3)?];
        assert_eq!(a.device(), at);
        // The runtime's generator does not advance, and neither does a generator of another owner.
        manual_seed(9);
        let state = get_rng_state()?.to_vec::<u8>()?;
        assert_eq!(with_generator(&a, draw)?, first);
        assert_eq!(with_generator(&b.clone(), draw)?, first);
        assert_eq!(with_generator(&b, || with_generator(&a, draw))?, second);
        assert_eq!(with_generator(&b, draw)?, second);
        assert_eq!(get_rng_state()?.to_vec::<u8>()?, state);
        // Every random op draws from it, also if its thread has chosen a generator of another device last.
        let other = if at.is_cuda() { seeded("cpu", 1)? } else { seeded(0, 1)? };
        let ops: [fn(Device) -> Result<Tensor>; 7] = [
            |at| rand([64], at),
            |at| randn([64], at),
            |at| randperm(64, at)?.to(warpline::DType::F32),
            |at| Ok(zeros([64], at)?.random_(0, 1000)?.clone()),
            |at| Ok(zeros([64], at)?.bernoulli_(0.5)?.clone()),
            |at| Ok(zeros([64], at)?.exponential_(1.0)?.clone()),
            |at| dropout(&ones([64], at)?, 0.5),
        ];
        for op in ops {
            manual_seed(5);
            let want = numbers(|| op(at))?;
            a.manual_seed(5);
            manual_seed(6);
            assert_eq!(with_generator(&a, || with_generator(&other, || numbers(|| op(at))))?, want);
        }
        // A state continues the sequence, in another generator as well.
        let state = a.get_state()?;
        let next = with_generator(&a, draw)?;
        b.set_state(&state)?;
        assert_eq!((with_generator(&b, draw)?, b.initial_seed()), (next, 5));
        // `manual_seed` seeds the generators that the thread draws from.
        with_generator(&a, || manual_seed(3));
        assert_eq!(with_generator(&a, draw)?, first);
        // The former generator serves again after a panic.
        manual_seed(3);
        let panic = || with_generator(&a, || panic!("on purpose"));
        assert!(catch_unwind(AssertUnwindSafe(panic)).is_err());
        assert_eq!(draw()?, first);
    }
    // Devices have generators of their own.
    let [a, b] = [seeded(0, 3)?, seeded(1, 3)?];
    let draw = |device: usize| numbers(|| rand([50], device));
    manual_seed(4);
    let elsewhere = draw(1)?;
    manual_seed(4);
    assert_eq!(with_generator(&a, || draw(1))?, elsewhere);
    assert_eq!(with_generator(&a, || draw(0))?, with_generator(&b, || draw(1))?);
    // Threads of the program do not inherit the choice.
    let here = runtime();
    manual_seed(4);
    let there = with_generator(&b, || {
        thread::scope(|scope| scope.spawn(|| with_runtime(&here, || draw(1))).join())
    });
    assert_eq!(there.expect("no panic")?, elsewhere);
    Ok(())
}

fn refused(world: &World) -> Result<()> {
    let missing = Generator::on(world.devices + 7).unwrap_err();
    assert!(matches!(missing.kind(), ErrorKind::NoSuchDevice { .. }), "{missing}");
    let unknown = Generator::on("gpu").unwrap_err();
    assert!(matches!(unknown.kind(), ErrorKind::InvalidDeviceString { .. }), "{unknown}");
    let [cpu, gpu] = [Generator::new(), Generator::on("cuda")?];
    assert_eq!((gpu.device(), cpu.device()), (Device::Cuda(Some(0)), Device::Cpu));
    assert_eq!((gpu.get_state()?.numel(), cpu.get_state()?.numel()), (16, 5056));
    for (generator, state) in [(&cpu, gpu.get_state()?), (&gpu, cpu.get_state()?)] {
        let error = generator.set_state(&state).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
        assert_eq!(error.op(), "set_state");
    }
    let data = || TensorDataset::new(zeros([4], ())?, zeros([4], ())?);
    let loader = DataLoader::new(data()?).generator(&gpu).unwrap_err();
    let sampler = RandomSampler::new(4).generator(&gpu).unwrap_err();
    for (error, op) in [(loader, "DataLoader"), (sampler, "RandomSampler")] {
        assert_eq!(error.op(), op);
        assert!(
            error.to_string().contains("expects a generator of the cpu, not of cuda:0"),
            "{error}"
        );
    }
    Ok(())
}

fn checkpoints(world: &World) -> Result<()> {
    for at in world.places() {
        let generator = seeded(at, 11)?;
        let gradient = |with_checkpoint: bool| -> Result<Vec<f32>> {
            generator.manual_seed(11);
            let x = ones([100], at)?.requires_grad_(true)?;
            let y = with_generator(&generator, || {
                let f = |x: &[Tensor]| Ok(vec![dropout(&x[0].exp()?, 0.5)?]);
                if with_checkpoint { checkpoint(f, &[&x]) } else { f(std::slice::from_ref(&x)) }
            })?;
            // The backward pass runs outside the scope, and advances no generator.
            let state = generator.get_state()?.to_vec::<u8>()?;
            y[0].sum(())?.backward()?;
            assert_eq!(generator.get_state()?.to_vec::<u8>()?, state);
            x.grad().expect("a gradient").to_vec()
        };
        assert_eq!(gradient(true)?, gradient(false)?);
    }
    Ok(())
}

/// Draws from the device's generator and from two others, in turns.
fn draws([a, b]: &[Generator; 2]) -> Result<[Tensor; 5]> {
    Ok([
        with_generator(a, || rand([300], 0))?,
        rand([70], 0)?,
        with_generator(b, || dropout(&ones([500], 0)?, 0.25))?,
        with_generator(a, || randn([300], 0))?,
        dropout(&ones([40], 0)?, 0.5)?,
    ])
}

fn values(tensors: &[Tensor]) -> Result<Vec<f32>> {
    let mut all = Vec::new();
    for tensor in tensors {
        all.extend(tensor.to_vec::<f32>()?);
    }
    Ok(all)
}

fn graphs(_: &World) -> Result<()> {
    let generators = [seeded(0, 1)?, seeded(0, 2)?];
    let seed = || {
        manual_seed(3);
        generators[0].manual_seed(1);
        generators[1].manual_seed(2);
    };
    seed();
    let want = (0..6).map(|_| values(&draws(&generators)?)).collect::<Result<Vec<_>>>()?;
    // The capture itself draws nothing.
    seed();
    let mut graph = CudaGraph::new();
    let drawn = graph.capture(|| draws(&generators))?;
    // Another graph of the pool draws from one of them.
    let mut other = CudaGraph::new();
    let pool = graph.pool()?;
    let second = other.capture_with(CaptureOptions::new().pool(&pool), || {
        with_generator(&generators[1], || rand([60], 0))
    })?;
    let from_b = |draws: usize| -> Result<Vec<f32>> {
        let own = seeded(0, 2)?;
        with_generator(&own, || {
            for _ in 0..draws {
                dropout(&ones([500], 0)?, 0.25)?;
            }
            numbers(|| rand([60], 0))
        })
    };
    for (i, want) in want.iter().enumerate() {
        match i {
            // Eager draws continue the sequences between replays.
            2 | 4 => assert_eq!(values(&draws(&generators)?)?, *want),
            _ => {
                graph.replay()?;
                assert_eq!(values(&drawn)?, *want, "replay {i}");
            }
        }
    }
    other.replay()?;
    assert_eq!(second.to_vec::<f32>()?, from_b(6)?);
    Ok(())
}

/// PyTorch's `test_graphsafe_set_get_rng_state`.
fn states(_: &World) -> Result<()> {
    let make = || -> Result<[Generator; 3]> {
        let generator = seeded(0, 0)?;
        let (old, new) = (generator.graphsafe_get_state()?, generator.clone_state());
        Ok([generator, old, new])
    };
    let draws = |[generator, old, new]: &mut [Generator; 3]| -> Result<[Tensor; 3]> {
        generator.graphsafe_set_state(new)?;
        let first = with_generator(generator, || rand([5], 0))?;
        generator.graphsafe_set_state(old)?;
        let draw = || with_generator(generator, || rand([5], 0));
        Ok([first, draw()?, draw()?])
    };
    let (mut eager, mut captured) = (make()?, make()?);
    let mut graph = CudaGraph::new();
    let drawn = graph.capture(|| draws(&mut captured))?;
    for _ in 0..3 {
        let want = draws(&mut eager)?;
        graph.replay()?;
        assert_eq!(values(&drawn)?, values(&want)?);
        for (eager, captured) in eager.iter().zip(&captured) {
            assert_eq!(eager.get_state()?.to_vec::<u8>()?, captured.get_state()?.to_vec::<u8>()?);
        }
    }
    let [mut generator, old, new] = eager;
    let offset = |generator: &Generator| -> Result<u8> { Ok(generator.get_state()?.to_vec()?[8]) };
    assert_eq!((offset(&generator)?, offset(&old)?, offset(&new)?), (24, 24, 12));
    let mut cpu = Generator::new();
    for error in [
        cpu.graphsafe_get_state().map(drop),
        cpu.graphsafe_set_state(&old),
        generator.graphsafe_set_state(&cpu),
    ] {
        let error = error.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
    }
    Ok(())
}

fn callables(_: &World) -> Result<()> {
    let generator = seeded(0, 8)?;
    let layer = |x: &Tensor| -> Result<Tensor> {
        dropout(&with_generator(&generator, || dropout(x, 0.5))?, 0.25)
    };
    let sample = ones([200], 0)?.requires_grad_(true)?;
    let callable = Callable::new(|x| Ok(vec![layer(&x[0])?]), &[&sample]);
    let [graphed] = cuda::make_graphed_callables([callable], ())?;
    let run = |f: &dyn Fn(&Tensor) -> Result<Tensor>| -> Result<Vec<f32>> {
        generator.manual_seed(8);
        manual_seed(9);
        let mut all = Vec::new();
        for _ in 0..5 {
            let x = ones([200], 0)?.requires_grad_(true)?;
            f(&x)?.sum(())?.backward()?;
            all.extend(x.grad().expect("a gradient").to_vec::<f32>()?);
        }
        Ok(all)
    };
    assert_eq!(run(&|x| Ok(graphed.call(&[x])?.remove(0)))?, run(&layer)?);
    Ok(())
}

fn limit(_: &World) -> Result<()> {
    let generators = (0..33).map(|i| seeded(0, i)).collect::<Result<Vec<_>>>()?;
    let draw = |generator: &Generator| with_generator(generator, || rand([9], 0));
    let (mut graph, mut refused) = (CudaGraph::new(), None);
    let drawn = graph.capture(|| {
        let drawn = generators[..32].iter().map(draw).collect::<Result<Vec<_>>>()?;
        refused = draw(&generators[32]).err();
        Ok(drawn)
    })?;
    let error = refused.expect("an error");
    assert!(matches!(error.kind(), ErrorKind::Capture { .. }), "{error}");
    assert!(error.to_string().contains("32 generators"), "{error}");
    graph.replay()?;
    for (i, drawn) in drawn.iter().enumerate() {
        let want = with_generator(&seeded(0, i as u64)?, || numbers(|| rand([9], 0)))?;
        assert_eq!(drawn.to_vec::<f32>()?, want);
    }
    Ok(())
}

fn threads(_: &World) -> Result<()> {
    let generators = [seeded(0, 1)?, seeded(0, 2)?];
    let mut graphs = [CudaGraph::new(), CudaGraph::new()];
    for (i, graph) in graphs.iter_mut().enumerate() {
        let [first, second] = [&generators[i], &generators[1 - i]];
        graph.capture(|| {
            with_generator(first, || rand([8], 0))?;
            with_generator(second, || rand([8], 0))
        })?;
    }
    let here = runtime();
    thread::scope(|scope| {
        let replays = |graph| {
            let here = &here;
            scope.spawn(move || {
                with_runtime(here, || (0..500).try_for_each(|_| CudaGraph::replay(graph)))
            })
        };
        let threads: Vec<_> = graphs.iter().map(replays).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    // A replay advances each generator by the draw of four values that an eager op makes.
    for (seed, generator) in (1..).zip(&generators) {
        let own = seeded(0, seed)?;
        with_generator(&own, || (0..1000).try_for_each(|_| rand([8], 0).map(drop)))?;
        assert_eq!(generator.get_state()?.to_vec::<u8>()?, own.get_state()?.to_vec::<u8>()?);
    }
    Ok(())
}
