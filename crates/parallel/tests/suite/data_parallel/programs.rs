//! Random programs, with the race detector.

use warpline::{Tensor, cuda, full, ones, runtime, tensor};
use warpline_nn::Linear;
use warpline_parallel::{DataParallel, DataParallelOptions};

use super::nets::Counts;
use super::world::{TestResult, on_sim, values};

crate::on_both! {
    Auto([1, 2, 3, 5, 8]) s28_random_programs_agree_with_a_model gpu2_s28_random_programs_agree_with_a_model => any;
    Manual([2, 3]) s28_data_parallel_itself_causes_no_race gpu2_s28_data_parallel_itself_causes_no_race => no_race;
    Manual([2, 3]) s28_kept_copies_are_in_order_on_other_streams
        gpu2_s28_kept_copies_are_in_order_on_other_streams => other_streams;
}

/// A xorshift random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// A reference implementation of `DataParallel` of [`Counts`].
struct Model {
    weight: f32,
    count: f32,
}

impl Model {
    fn forward(&mut self, x: &[f32], devices: usize) -> Vec<f32> {
        let before = self.count;
        let size = x.len().div_ceil(devices);
        let piece = |piece: &[f32]| -> Vec<f32> {
            piece.iter().map(|v| v * self.weight + (before + piece[0])).collect()
        };
        let out = x.chunks(size).flat_map(piece).collect();
        self.count += x[0];
        out
    }
}

fn any(devices: usize) -> TestResult {
    for seed in 1..4 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let used = 1 + random.below(devices);
        let mut ids: Vec<usize> = (0..devices).collect();
        ids.rotate_left(random.below(devices));
        ids.truncate(used);
        let options =
            DataParallelOptions::new().device_ids(&ids).output_device(random.below(devices));
        let mut net = DataParallel::new(Counts::new(ids[0])?, options)?;
        let mut model = Model { weight: 2.0, count: 0.0 };
        let mut outputs: Vec<(Tensor, Vec<f32>)> = Vec::new();
        for step in 0..24 {
            // Change the stream at random. Only the library orders the streams.
            let device = random.below(devices);
            let stream = match random.below(2) {
                0 => cuda::default_stream(device)?,
                _ => cuda::Stream::new(device)?,
            };
            runtime().devices()?.set_current_stream(&stream)?;
            let value = random.below(5) as f32;
            match random.below(7) {
                0 => drop(net.module().weight.fill_(value).map(|_| model.weight = value)?),
                1 => drop(net.module().weight.add_(value).map(|_| model.weight += value)?),
                2 => drop(net.module().count.fill_(value).map(|_| model.count = value)?),
                3 => {
                    net.module_mut().weight.set(full([], f64::from(value), ids[0])?);
                    model.weight = value;
                }
                _ => {
                    let n = 1 + random.below(2 * devices + 1);
                    let x: Vec<f32> = (0..n).map(|i| (i + step % 3) as f32).collect();
                    let input = match random.below(3) {
                        0 => tensor(x.clone(), ())?,
                        1 => tensor(x.clone(), ())?.pin_memory()?,
                        _ => tensor(x.clone(), random.below(devices))?,
                    };
                    outputs.push((net.forward(input)?, model.forward(&x, used)));
                }
            }
        }
        for (i, (out, expected)) in outputs.into_iter().enumerate() {
            assert_eq!(values(&out)?, expected, "forward {i} of seed {seed}, devices {ids:?}");
        }
        assert_eq!(values(&net.module().count)?, [model.count]);
    }
    Ok(())
}

/// Under `SyncPolicy::Manual`, the program orders the streams for its own tensors only. The library must order the
/// streams for the copies.
fn no_race(devices: usize) -> TestResult {
    let net = DataParallel::new(Counts::new(0)?, ())?;
    let mut model = Model { weight: 2.0, count: 0.0 };
    for round in 0..4 {
        // Use new streams in each round. Only the stream of the first device waits for its predecessor, because the
        // program's own tensors are on that device.
        let streams = (0..devices).map(|d| cuda::Stream::new(d));
        let streams = streams.collect::<warpline::Result<Vec<_>>>()?;
        streams[0].wait_stream(&cuda::current_stream(0)?)?;
        for stream in &streams {
            runtime().devices()?.set_current_stream(stream)?;
        }
        net.module().weight.record_stream(&streams[0])?;
        net.module().count.record_stream(&streams[0])?;
        if round % 2 == 1 {
            net.module().weight.add_(1.0)?;
            model.weight += 1.0;
        }
        for _ in 0..2 {
            let x: Vec<f32> = (0..2 * devices).map(|v| v as f32 + 1.0).collect();
            for input in [tensor(x.clone(), 0)?, tensor(x.clone(), ())?.pin_memory()?] {
                let out = net.forward(input)?;
                let expected = model.forward(&x, devices);
                cuda::current_stream(0)?.synchronize()?;
                assert_eq!(values(&out)?, expected);
            }
        }
    }
    let races = cuda::take_races();
    assert!(races.is_empty(), "{races:#?}");
    Ok(())
}

/// The cached copies were written on streams that the program no longer uses, and the program cannot order them.
fn other_streams(devices: usize) -> TestResult {
    let options = DataParallelOptions::new().output_device(1);
    let net = DataParallel::new(Linear::new(2, 2, "cuda:0")?, options)?;
    let x = ones([devices, 2], ())?.pin_memory()?;
    for device in 0..devices {
        cuda::synchronize(device)?;
    }
    let mut outputs = Vec::new();
    for round in 0..3 {
        for device in 0..devices {
            let stream = cuda::exclusive_stream(device, 0)?;
            runtime().devices()?.set_current_stream(&stream)?;
        }
        let out = net.forward(x.clone())?;
        let races = cuda::take_races();
        assert!(races.is_empty(), "round {round}: {races:#?}");
        outputs.push(out); // read later, because a host read would order the streams
    }
    for device in 0..devices {
        cuda::synchronize(device)?;
    }
    let outputs = outputs.iter().map(values).collect::<anyhow::Result<Vec<_>>>()?;
    assert!(outputs.windows(2).all(|pair| pair[0] == pair[1]), "{outputs:?}");
    Ok(())
}

/// The race detector reports a race of the program itself.
#[test]
fn a_race_of_the_program_itself_is_reported() {
    on_sim([2], warpline::SyncPolicy::Manual, |_| {
        let net = DataParallel::new(Counts::new(0)?, ())?;
        let x = full([2], 1.0, 0)?;
        let s = cuda::Stream::new(0)?;
        net.forward(x.clone())?;
        cuda::synchronize(0)?;
        drop(cuda::take_races());
        cuda::with_stream(&s, || net.module().weight.fill_(7.0).map(drop))?;
        drop(net.forward(x)?);
        let races = cuda::take_races();
        assert!(races.iter().any(|race| race.first.op == "fill_"), "{races:#?}");
        cuda::synchronize(0)?;
        cuda::synchronize(1)?;
        Ok(())
    });
}
