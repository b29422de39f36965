//! Tests of appending to a cache that run on every target.

use warpline_kernels::kv_cache::*;
use warpline_runtime::testing::{Tensor, on_every_target, on_gpu};
use warpline_runtime::{DType, ErrorKind, Result, ResultExt, Target};

const CAPACITY: usize = 7;

fn numbers(target: Target<'_>, dtype: DType, sizes: &[usize], salt: usize) -> Tensor {
    let numel: usize = sizes.iter().product();
    let values: Vec<f64> = (0..numel).map(|i| ((i * 7 + salt) % 97) as f64).collect();
    Tensor::new(target, dtype, sizes, &values)
}

/// A cache in one block of memory.
struct Cache {
    keys: Tensor,
    values: Tensor,
    state: Tensor,
}

impl Cache {
    fn new(target: Target<'_>, dtype: DType, [batch, heads, width]: [usize; 3]) -> Self {
        let memory = Tensor::garbage(target, dtype, &[2, batch, heads, CAPACITY, width]);
        let [keys, values] = [0, 1].map(|i| memory.with(|l| l.select(0, i)));
        Self { keys, values, state: Tensor::new(target, DType::I64, &[2], &[0.0, 0.0]) }
    }

    fn append(&self, target: Target<'_>, k: &Tensor, v: &Tensor) -> Result<()> {
        let [keys, values, state] = [&self.keys, &self.values, &self.state].map(Tensor::view);
        append(target, "append", &KvCache { keys, values, state }, k.view(), v.view())
    }
}

/// Appends none, one or several positions at a time, until the cache is full. Covers operands that
/// are aligned to vectors and operands that are not.
fn appended_positions(target: Target<'_>) {
    for dtype in DType::ALL {
        for width in [0, 1, 5, 16, 300] {
            for offset in [0, 1] {
                let context = format!("{dtype}, {width}, {offset}");
                let [batch, heads] = [2, 3];
                let cache = Cache::new(target, dtype, [batch, heads, width]);
                let numel = batch * heads * CAPACITY * width;
                let [k, v] = [1, 40].map(|salt| {
                    // Positions before heads in memory, from an offset.
                    numbers(target, dtype, &[numel + offset], salt).with(|l| {
                        let l = l.narrow(0, offset as isize, numel)?;
                        let l = l.view(&[batch, CAPACITY, heads, width]);
                        l.expect("contiguous").transpose(1, 2)
                    })
                });
                let mut length = 0;
                for count in [3, 0, 1, 1, 2] {
                    let part = |of: &Tensor| of.with(|l| l.narrow(2, length as isize, count));
                    cache.append(target, &part(&k), &part(&v)).unwrap();
                    length += count;
                    let state = cache.state.floats(target);
                    assert_eq!(state, [length as f64, 0.0], "{context}");
                    for (cached, source) in [(&cache.keys, &k), (&cache.values, &v)] {
                        let first = |of: &Tensor| of.with(|l| l.narrow(2, 0, length));
                        let rest = cached
                            .with(|l| l.narrow(2, length as isize, CAPACITY - length))
                            .floats(target);
                        let (cached, source) = (first(cached), first(source));
                        assert_eq!(cached.floats(target), source.floats(target), "{context}");
                        let garbage = Tensor::garbage(target, dtype, &[1]).floats(target)[0];
                        assert!(rest.iter().all(|x| *x == garbage), "{context}");
                    }
                }
            }
        }
    }
}

#[test]
fn positions_are_appended_from_the_length_on() {
    on_every_target(appended_positions);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_positions_are_appended_from_the_length_on() {
    on_gpu(appended_positions);
}

/// Many blocks read the length before one of them advances it.
fn many_blocks(target: Target<'_>) {
    let cache = Cache::new(target, DType::F32, [16, 64, 32]);
    let (k, v) = (
        numbers(target, DType::F32, &[16, 64, 3, 32], 1),
        numbers(target, DType::F32, &[16, 64, 3, 32], 2),
    );
    for times in 1..=2 {
        cache.append(target, &k, &v).unwrap();
        assert_eq!(cache.state.floats(target), [3.0 * f64::from(times), 0.0]);
        let start = 3 * (times as isize - 1);
        for (cached, source) in [(&cache.keys, &k), (&cache.values, &v)] {
            let cached = cached.with(|l| l.narrow(2, start, 3));
            assert_eq!(cached.floats(target), source.floats(target));
        }
    }
}

#[test]
fn every_block_reads_the_former_length() {
    on_every_target(many_blocks);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_every_block_reads_the_former_length() {
    on_gpu(many_blocks);
}

/// Neither a full cache nor a length that a caller has written lets the kernel write outside the
/// cache.
fn lengths_without_room(target: Target<'_>) {
    for length in [5.0, 7.0, 1e18, -1.0, -3.0] {
        let mut cache = Cache::new(target, DType::F32, [1, 2, 4]);
        cache.state = Tensor::new(target, DType::I64, &[2], &[length, 0.0]);
        let [k, v] = [1, 2].map(|salt| numbers(target, DType::F32, &[1, 2, 3, 4], salt));
        let result = cache.append(target, &k, &v);
        let result = match target {
            Target::Cpu(_) => result,
            Target::Cuda(_, _, stream) => {
                result.unwrap();
                stream.synchronize()
            }
        };
        let kind = result.kind();
        assert!(
            matches!(kind, Some(ErrorKind::IndexCheck { dim: 2, size: CAPACITY, .. })),
            "{length}: {kind:?}"
        );
        for of in [&cache.keys, &cache.values] {
            assert!(of.unmarked().floats(target).iter().all(|x| *x == 77.0));
        }
        assert_eq!(cache.state.unmarked().floats(target), [length, 0.0]);
    }
}

#[test]
fn a_length_without_room_is_reported() {
    on_every_target(lengths_without_room);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_a_length_without_room_is_reported() {
    on_gpu(lengths_without_room);
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    on_every_target(|target| {
        let cache = Cache::new(target, DType::F32, [1, 2, 4]);
        let make = |dtype, sizes: &[usize]| Tensor::garbage(target, dtype, sizes);
        let k = make(DType::F32, &[1, 2, 3, 4]);
        let refused = cache.append(target, &k, &make(DType::F16, &[1, 2, 3, 4]));
        assert!(matches!(refused.kind(), Some(ErrorKind::DTypeMismatch { .. })));
        for sizes in [&[1, 2, 2, 4][..], &[1, 1, 3, 4], &[2, 3, 4]] {
            let refused = cache.append(target, &k, &make(DType::F32, sizes));
            assert!(matches!(refused.kind(), Some(ErrorKind::ShapeMismatch { .. })));
        }
        let part = cache.keys.with(|l| l.narrow(2, 0, 3));
        let refused = cache.append(target, &part, &k);
        assert!(matches!(refused.kind(), Some(ErrorKind::OverlappingOperands)));
    });
}
