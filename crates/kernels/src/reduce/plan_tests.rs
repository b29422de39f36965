//! Tests that plans distribute all work of a reduction, each part once.

use proptest::prelude::*;

use super::plan::{Two, vector};
use super::*;
use warpline_runtime::iter::Walk;
use warpline_runtime::testing::{Tensor, on_every_target};
use warpline_runtime::{Layout, Storage};

fn result_sizes(sizes: &[usize], dims: &[usize]) -> Vec<usize> {
    let is_kept = |d: &usize| !dims.is_empty() && !dims.contains(d);
    (0..sizes.len()).filter(is_kept).map(|d| sizes[d]).collect()
}

/// Plans a sum of `f32` at an address that is a multiple of 4 bytes. Returns the plan, its access
/// pattern, and the grid for 132 multiprocessors.
fn planned(
    sizes: &[usize],
    strides: &[isize],
    dims: &[usize],
    at: u64,
) -> (Plan, Access, [u64; 3]) {
    let planned = std::cell::Cell::new(None);
    on_every_target(|target| {
        let Target::Cpu(_) = target else { return };
        let small = Tensor::garbage(target, DType::F32, &[1]);
        let layout = Layout::from_parts(sizes.into(), strides.into(), 0);
        let a = View { layout: &layout, ..small.view() };
        let layout = Layout::contiguous(&result_sizes(sizes, dims)).unwrap();
        let out = View { layout: &layout, ..small.view() };
        let mut plan = Plan::new("sum", a, dims, out, false).unwrap();
        let kernel = plan.access(at, 4);
        let grid = plan.distribute("sum", kernel, 4, 132).unwrap();
        planned.set(Some((plan, kernel, grid.map(u64::from))));
    });
    planned.into_inner().unwrap()
}

#[test]
fn each_layout_has_its_kernel() {
    let kernel = |sizes: &[usize], strides: &[isize], dims: &[usize], at| {
        planned(sizes, strides, dims, at).1
    };
    assert_eq!(kernel(&[64, 64], &[64, 1], &[1], 4), Access::Rows);
    assert_eq!(kernel(&[64, 64], &[64, 1], &[0], 16), Access::Columns);
    assert_eq!(kernel(&[64, 64], &[64, 1], &[0], 4), Access::Strided);
    assert_eq!(kernel(&[64, 62], &[64, 1], &[0], 16), Access::Strided);
    assert_eq!(kernel(&[64, 64], &[66, 1], &[0], 16), Access::Strided);
    assert_eq!(kernel(&[64, 64], &[64, 2], &[1], 16), Access::Strided);
    assert_eq!(kernel(&[8, 64, 64], &[4096, 64, 1], &[0, 2], 4), Access::Rows);
    assert_eq!(kernel(&[8, 64, 64], &[4096, 64, 1], &[1], 16), Access::Columns);
}

#[test]
fn the_work_is_distributed_over_the_whole_gpu_without_a_remainder() {
    let cases: &[(&[usize], &[isize], &[usize])] = &[
        (&[1 << 20], &[1], &[0]),
        (&[1 << 28], &[1], &[0]),
        (&[1 << 20], &[2], &[0]),
        (&[1 << 16, 64], &[64, 1], &[0]),
        (&[1 << 16, 63], &[63, 1], &[0]),
        (&[100, 1 << 17], &[1 << 17, 1], &[1]),
        (&[1 << 19, 3], &[4, 1], &[0, 1]),
        (&[64, 256, 56, 56], &[256 * 3136, 3136, 56, 1], &[0, 2, 3]),
    ];
    for (sizes, strides, dims) in cases {
        let (plan, kernel, [x, y, z]) = planned(sizes, strides, dims, 0);
        assert!(x * y * z >= 120, "{sizes:?} over {dims:?}: {x} x {y} x {z} blocks of {kernel:?}");
        let (run, segments) = (u64::from(plan.run), u64::from(plan.segments));
        assert_eq!(run * (segments - 1) + u64::from(plan.last_run), plan.extent);
        let chunk = u64::from(plan.segment_chunk);
        assert!(z * chunk >= segments && (z - 1) * chunk < segments);
        assert!((y - 1) * u64::from(plan.across) < run);
        assert!(plan.lanes.is_power_of_two() && plan.across.is_power_of_two());
        assert!(plan.across <= plan.lanes && plan.lanes <= BLOCK);
    }
}

#[test]
fn a_grid_has_a_block_for_every_result() {
    let (plan, kernel, _) = planned(&[2, 255], &[255, 2], &[1], 0);
    for outputs in [2, 1 << 20, (1 << 31) - 1] {
        let mut plan = Plan { outputs, ..plan };
        let [x, ..] = plan.distribute("any", kernel, 4, 132).unwrap();
        assert!(i32::try_from(x).is_ok(), "{x} blocks");
        let outs = BLOCK / plan.lanes;
        assert!(u64::from(x) * u64::from(outs) >= outputs);
    }
}

#[test]
fn reductions_beyond_32_bits_are_split_or_refused() {
    let (mut plan, kernel, [_, y, z]) = planned(&[(5 << 30) + 3], &[1], &[0], 0);
    assert_eq!((plan.run, plan.segments, plan.last_run), (1 << 30, 6, 3));
    assert_eq!((plan.segment_stride, z, kernel), (1 << 30, 6, Access::Rows));
    assert!(y > 80, "{y} blocks");
    plan.extent = 1 << 47;
    let refused = |plan: &mut Plan| plan.distribute("sum", kernel, 4, 132).unwrap_err().to_string();
    assert!(refused(&mut plan).contains("140737488355328 elements"));
    plan.reduced = Walk::new("sum", [(1 << 31, [1]), (2, [1 << 40])]).unwrap();
    assert!(refused(&mut plan).contains("elements"));
}

/// Returns the offset of a result's first element in the source, and the offset of the result, as
/// `reduce.cuh` computes them.
fn place_in_two(plan: &Plan, output: u32) -> [isize; 2] {
    let Two { size, magic, shift, strides } = plan.two;
    let high = (u64::from(output) * u64::from(magic)) >> 32;
    let next = (high + u64::from(output)) >> shift;
    let step = u64::from(output) - next * u64::from(size);
    strides.map(|[inner, outer]| (step as i64 * inner + next as i64 * outer) as isize)
}

/// The loads of one thread, as `reduce.cuh` computes them.
struct Thread<'a> {
    plan: &'a Plan,
    kernel: Access,
    item: usize,
    /// Address of the source, in elements.
    at: isize,
    grid: [u32; 3],
    block: [u32; 3],
    thread: u32,
}

impl Thread<'_> {
    /// Calls `f` for each load, with the result, the index of its first element, the offset and the
    /// number of elements.
    fn each(&self, mut f: impl FnMut(u32, u32, isize, usize)) {
        let (p, rows) = (self.plan, self.kernel == Access::Rows);
        let [block, lanes, across] = [BLOCK, p.lanes, p.across];
        let outs = block / lanes;
        let (lane, slot) = match !rows && (self.kernel == Access::Columns || p.outs_first != 0) {
            true => (self.thread / outs, self.thread % outs),
            false => (self.thread % lanes, self.thread / lanes),
        };
        let neighbours = if self.kernel == Access::Columns { vector(self.item, 4) } else { 1 };
        let output = (self.block[0] * outs + slot) * neighbours as u32;
        if u64::from(output) >= p.outputs {
            return;
        }
        let base = self.at
            + match self.kernel {
                Access::Strided => p.kept.offsets(output as usize)[0],
                _ => place_in_two(p, output)[0],
            };
        let (x, step) = (self.block[1] * across + lane % across, across * self.grid[1]);
        let first = self.block[2] * p.segment_chunk;
        let end = p.segments.min(first + p.segment_chunk);
        for segment in (first + lane / across..end).step_by((lanes / across) as usize) {
            let outer = match p.outer {
                2 => 0,
                _ => p.reduced.offsets(segment as usize * p.reduced.inner().0)[0],
            };
            let from = base + segment as isize * p.segment_stride as isize + outer;
            let count = if segment + 1 < p.segments { p.run } else { p.last_run };
            let index = segment * p.run;
            if rows {
                let v = vector(self.item, 8);
                let head = ((-from).rem_euclid(v as isize) as u32).min(count);
                let n = (count - head) / v as u32;
                for i in (x..n).step_by(step as usize) {
                    let i = head + i * v as u32;
                    f(output, index + i, from + i as isize, v);
                }
                for i in (x..count - n * v as u32).step_by(step as usize) {
                    let i = if i < head { i } else { i + n * v as u32 };
                    f(output, index + i, from + i as isize, 1);
                }
            } else {
                let [stride] = p.reduced.inner().1;
                for i in (x..count).step_by(step as usize) {
                    f(output, index + i, from + i as isize * stride, neighbours);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Exactly one thread loads each element, from the element's offset. Every vector that a thread
    /// loads is aligned.
    #[test]
    fn every_element_is_folded_into_its_result_once(
        mut sizes in prop::collection::vec(
            prop::sample::select(vec![1usize, 2, 3, 8, 16, 17, 64, 100, 256, 1024, 5000, 70_000]), 1..5),
        kinds in prop::collection::vec((0usize..12, any::<bool>()), 4),
        rotated in 0usize..4,
        item in prop::sample::select(vec![1usize, 2, 4, 8]),
        at in prop::sample::select(vec![0isize, 1, 3, 8]),
        ordered in any::<bool>(),
        multiprocessors in 1u64..9,
    ) {
        while sizes.iter().map(|&size| size as f64).product::<f64>() > 300_000.0 {
            sizes.pop();
        }
        let ndim = sizes.len();
        let mut strides = vec![0isize; ndim];
        let mut next = 1;
        for d in (0..ndim).rev().map(|d| (d + rotated) % ndim) {
            // Some dimensions are expanded, some reversed, and some have gaps.
            let size = (sizes[d] + usize::from(kinds[d].0 == 2) * 8) as isize;
            strides[d] = match kinds[d].0 { 0 => 0, 1 => -next, _ => next };
            next *= size;
        }
        let dims: Vec<usize> = (0..ndim).filter(|&d| kinds[d].1).collect();
        let runtime = warpline_runtime::testing::small_sim(1).build();
        let runtime = warpline_runtime::Runtime::new(runtime, Default::default()).unwrap();
        let storage = Storage::pageable(&runtime, 8).unwrap();
        let layout = Layout::from_parts(sizes.as_slice().into(), strides.as_slice().into(), 0);
        let a = View { storage: &storage, layout: &layout, dtype: DType::F32 };
        let result = Layout::contiguous(&result_sizes(&sizes, &dims)).unwrap();
        let out = View { layout: &result, ..a };
        let mut plan = Plan::new("sum", a, &dims, out, ordered).unwrap();
        let kernel = plan.access(4096 + (at * item as isize) as u64, item);
        let grid = plan.distribute("sum", kernel, item, multiprocessors).unwrap();
        let neighbours = if kernel == Access::Columns { vector(item, 4) } else { 1 };
        if grid[1] * grid[2] > 1 {
            let results = BLOCK / plan.lanes * neighbours as u32;
            let most = if kernel == Access::Rows { 1 } else { BLOCK };
            prop_assert!(results <= most, "a split kernel visits each result once");
        }
        if kernel != Access::Strided {
            prop_assert!(plan.kept.dims().count() <= 2 && plan.reduced.dims().count() <= 2);
        }
        let extent = plan.extent as usize;
        let mut folded = vec![0u8; plan.outputs as usize * extent];
        let blocks = (0..grid[2]).flat_map(|z| (0..grid[1]).flat_map(move |y| (0..grid[0]).map(move |x| [x, y, z])));
        for block in blocks {
            for thread in 0..BLOCK {
                let thread = Thread { plan: &plan, kernel, item, at, grid, block, thread };
                thread.each(|output, index, place, width| {
                    let expected = |output: u32, index: u32| {
                        at + plan.kept.offsets(output as usize)[0] + plan.reduced.offsets(index as usize)[0]
                    };
                    if width > 1 {
                        assert_eq!(place.rem_euclid(width as isize), 0, "aligned");
                    }
                    for k in 0..width as u32 {
                        let (output, index) = match kernel {
                            Access::Columns => (output + k, index),
                            _ => (output, index + k),
                        };
                        assert_eq!(place + k as isize, expected(output, index));
                        if kernel != Access::Strided {
                            let at = plan.kept.offsets(output as usize);
                            assert_eq!(place_in_two(&plan, output), at);
                        }
                        folded[output as usize * extent + index as usize] += 1;
                    }
                });
            }
        }
        prop_assert!(folded.iter().all(|&n| n == 1), "{kernel:?} {grid:?} {plan:?}");
    }
}
